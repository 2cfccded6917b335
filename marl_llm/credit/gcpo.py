"""GCPO: the tokens on which a prompt for wrong answers disagrees carry most of the advantage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import checks, tokens
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array
from marl_llm.credit.shaped import Shaped, shaped_credit
from marl_llm.errors import ConfigError

Ties = Literal["place", "mean"]
LOG_RATIO_LIMIT = 20.0  # nats
CONTRAST_LIMIT = 10.0
BLOCK = 2**16  # tokens that are sorted at once, so that they fit into the cache


def contrast(negative: Array, positive: Array) -> Array:
    """How unlike two prompts judge a token, [M], at least 0, whichever of them likes it more.

        d = exp(k) - 1 - k,   k = log π(y | negative prompt) - log π(y | prompt)

    Args:
        negative: log-probs under the negative prompt, [M] nats.
        positive: under the prompt itself, [M] nats.
    """
    k = np.subtract(negative, positive)
    np.clip(k, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT, out=k)
    unlike = np.expm1(k)  # exp(k) - 1 is noise where k is small
    unlike -= k
    return np.minimum(unlike, CONTRAST_LIMIT, out=unlike)


def rank_weights(x: Array, offsets: Array, power: float, ties: Ties = "place") -> Array:
    """Factors of mean 1 per response that rise with the rank of x.

        w_t = N · (rank_t / N)^a / Σ_k (rank_k / N)^a,   rank 1 = the smallest

    Args:
        x: [M].
        offsets: responses, N long, [R+1].
        power: a.
        ties: equal x rank as they stand ("place"), or all at the mean of their ranks ("mean").

    Returns:
        w, [M]. The sum over a response is N.
    """
    weight = np.empty(len(x))
    for first, behind in tokens.blocks(offsets, BLOCK):
        inside = slice(offsets[first], offsets[behind])
        weight[inside] = _ranks(x[inside], offsets[first : behind + 1] - offsets[first], ties)
    weight /= tokens.spread(np.diff(offsets), offsets)
    weight **= power
    weight /= tokens.spread(tokens.mean_turns(weight, offsets), offsets)
    return weight


def _ranks(x: Array, offsets: Array, ties: Ties) -> Array:
    """Rank of each x in its response, 1 = the smallest, [B] float64."""
    of = tokens.turn_of(offsets)
    # Sorting by numbers of few bits takes no comparisons.
    order = np.lexsort((x, of.astype(np.min_scalar_type(len(offsets)))))
    placed = tokens.places(offsets) + 1.0
    if ties == "mean":
        in_order = x[order]
        new = np.append(True, (in_order[1:] != in_order[:-1]) | (of[1:] != of[:-1]))[: len(x)]
        equal = np.cumsum(new) - 1
        placed = (np.bincount(equal, placed) / np.bincount(equal))[equal]
    rank = np.empty(len(x))
    rank[order] = placed
    return rank


@dataclass(frozen=True, slots=True, kw_only=True)
class GCPO(Shaped):
    """GRPO, weighted by how much the policy's view of a token hangs on being asked for a wrong one.

        d = exp(k) - 1 - k,   k = log π(y | negative prompt) - log π(y | prompt)
        w_t = (rank of d_t / N)^a, scaled to mean 1;   A_t = A · w_t

    a = ln(1 - mass) / ln(1 - share) - 1 puts `mass` of the weight on about the top `share` of a
    response's N tokens. Needs the signal "negative_logprob" [M]: the tokens scored behind a prompt
    that asks for a wrong answer, or behind none. The prompt's own log-probs are the sampler's; the
    authors score both again before every step. d tells unlike, not better: it does not say which of
    the prompts likes the token.

    Tokens that both prompts are sure of tie at d = 0. "place" ranks them as they stand, as a stable
    sort does; "mean" (our reading) weighs equals equally, so that a prompt without influence leaves
    GRPO.

    Source: Guidance contrastive token credit assignment, code of jacklishufan/gcpo.
    """

    card: ClassVar[Card] = Card(
        name="gcpo",
        title="GCPO",
        source="code of jacklishufan/gcpo",
        evidence="code",
        granularity="token",
        methodology="counterfactual",
        level="token",
        needs=frozenset({"negative_logprob"}),
        cost="one pass of the policy over a second prompt",
    )

    share: float = 0.4  # of the tokens, those with the largest contrast,
    mass: float = 0.8  # hold this much of the weight
    ties: Ties = "place"  # or "mean": tokens of equal contrast weigh equally

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        if not 0.0 < self.share <= self.mass < 1.0:
            raise ConfigError(
                "gcpo.mass of the weight lies on gcpo.share of the tokens: 0 < share <= mass < 1, "
                f"got share {self.share}, mass {self.mass}"
            )
        checks.one_of("gcpo.ties", self.ties, ("place", "mean"))

    @property
    def power(self) -> float:
        """The exponent a."""
        return math.log(1.0 - self.mass) / math.log(1.0 - self.share) - 1.0

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        responses = self.responses(batch, agents)
        unlike = contrast(batch.token_signal("negative_logprob"), batch.logprobs)
        weight = rank_weights(responses.lay(unlike), responses.offsets, self.power, self.ties)
        return shaped_credit(batch, base, base * responses.put_back(weight), stats)
