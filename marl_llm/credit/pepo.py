"""PEPO: tokens more uncertain than their neighbours take a larger share of a success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import checks, returns, tokens
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array
from marl_llm.credit.shaped import Shaped, shaped_credit
from marl_llm.errors import ConfigError

Edges = Literal["sum", "mean"]
BLOCK = 2**18  # tokens that are looked at at once


def entropy_shares(entropy: Array, offsets: Array, window: int, edges: Edges = "sum") -> Array:
    """Each token's entropy against that of its neighbours, as factors of mean 1 per response.

        e_t = exp(H_t) / Σ_{|k-t| ≤ window/2} exp(H_k),   c_t = T · e_t / Σ_k e_k

    Args:
        entropy: H, [M] nats.
        offsets: responses, T long, [R+1].
        window: tokens in the sum, the token itself in their middle.
        edges: at the ends of a response the sum has fewer terms, which makes the tokens there
            stand out. "mean" divides by how many there are, so that equal entropies give c = 1.

    Returns:
        c, [M]. The sum over a response is T.
    """
    # What is common to a response cancels; without it exp is at most 1 and cannot overflow.
    share = entropy - tokens.spread(tokens.max_turns(entropy, offsets), offsets)
    np.exp(share, out=share)
    for first, behind in tokens.blocks(offsets, BLOCK):
        inside = share[offsets[first] : offsets[behind]]
        inside /= _around(inside, offsets[first : behind + 1] - offsets[first], window // 2, edges)
    share /= tokens.spread(tokens.mean_turns(share, offsets), offsets)
    return share


def _around(weight: Array, offsets: Array, half: int, edges: Edges) -> Array:
    """Sum, or mean, of the weights of a token and of up to `half` before and behind it, [B]."""
    place, length = np.arange(len(weight)), np.diff(offsets)
    start = np.maximum(place - half, np.repeat(offsets[:-1], length))
    stop = np.minimum(place + half + 1, np.repeat(offsets[1:], length))
    # Every window by itself: a cumulative sum would carry rounding from one response to the next.
    around = np.add.reduceat(np.append(weight, 0.0), np.stack((start, stop), 1).ravel())[::2]
    return around if edges == "sum" else around / (stop - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class PEPO(Shaped):
    """Advantages of good episodes, shared out by local entropy.

        e_t = exp(H_t) / Σ_{|k-t| ≤ W/2} exp(H_k)
        A_t = A · T · e_t / Σ_k e_k   where R > 0,   A elsewhere

    A is GRPO's, R [N] the whole return of the agent in its episode, T the tokens of the response;
    a response keeps its mass, Σ_t A_t = T · A. Needs the signal "entropy" [M]. The window ends
    where the response ends; that equal entropies then favour the ends follows from the formula as
    it is written, and `edges: mean` takes it out (our reading).

    Source: PEPO, arXiv 2609.39402.
    """

    card: ClassVar[Card] = Card(
        name="pepo",
        title="PEPO",
        source="arXiv 2609.39402",
        evidence="paper",
        granularity="token",
        methodology="information",
        level="token",
        needs=frozenset({"entropy"}),
        cost="none, if the sampler keeps entropies",
        breaks=frozenset({"shift"}),  # R > 0 is asked of the raw return
    )

    window: int = 101  # W, tokens, odd
    edges: Edges = "sum"  # as written; "mean" does not favour the ends of a response

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        if self.window < 1 or self.window % 2 == 0:
            raise ConfigError(
                f"pepo.window must be odd, with the token itself in its middle, got {self.window}"
            )
        checks.one_of("pepo.edges", self.edges, ("sum", "mean"))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        responses = self.responses(batch, agents)
        entropy = responses.lay(batch.token_signal("entropy"))
        shares = entropy_shares(entropy, responses.offsets, self.window, self.edges)
        good = tokens.spread(returns.totals(batch.reward, agents) > 0, batch.offsets)
        advantage = np.where(good, responses.put_back(shares), 1.0)
        advantage *= base
        return shaped_credit(batch, base, advantage, stats)
