"""SPO-chain: credit of segments that are cut where the policy was uncertain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import paid_on_tokens, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, chains, following, sums
from marl_llm.credit.tokens import sum_turns
from marl_llm.credit.whitened import Whitened


def cut_points(
    logprobs: Array, offsets: Array, agents: Chains, *, uncertain: float, interval: int
) -> Array:
    """The tokens before which a segment starts: every `interval`-th uncertain one of an agent.

    Args:
        logprobs: the sampler's, nats, [M].
        offsets: tokens of turn i are offsets[i]:offsets[i+1], [N+1].
        agents: chains of (episode, agent), along which uncertain tokens are counted.
        uncertain: probability below which a token is uncertain.
        interval: 1 = cut before each uncertain token; k = before the first, and each k-th after.

    Returns:
        [M] bool.
    """
    doubtful = logprobs < math.log(uncertain)
    number, first = numbered(doubtful, offsets, agents)
    number -= np.repeat(first, np.diff(offsets))
    return doubtful & (number % interval == 0)


def numbered(marked: Array, offsets: Array, agents: Chains) -> tuple[Array, Array]:
    """Number marked tokens, agent after agent, each from the start of its episode on.

    Args:
        marked: [M] bool.
        offsets: [N+1].
        agents: chains of (episode, agent).

    Returns:
        The number of the last marked token up to each token, itself included, [M] int; and the
        number of the first one of the row's agent, [N] int. A token before the first has a smaller
        number than that.
    """
    number = np.cumsum(marked)
    count = sum_turns(marked, offsets).astype(np.int64)
    in_order = count[agents.order]
    before = np.cumsum(count) - count  # marked in all turns that stand before it in the batch
    earlier = np.empty_like(count)  # and in all that come before it along the chains
    earlier[agents.order] = np.cumsum(in_order) - in_order
    starts = np.zeros(agents.count, dtype=np.int64)
    starts[agents.of[agents.before == 0]] = earlier[agents.before == 0]
    number += np.repeat(earlier - before - 1, np.diff(offsets))
    return number, starts[agents.of]


def segment_gains(
    reward: Array,
    value: Array,
    value_end: Array,
    cut: Array,
    offsets: Array,
    agents: Chains,
) -> Array:
    """What each segment changed in the expected return, at each of its tokens.

        A = Σ r in the segment + V(its end) - V(its start)

    A segment runs from one cut of an agent to the next, over ends of turns, or to the agent's end.

    Args:
        reward: r, [N]; that of a turn lies on its last token.
        value: V before each token, [M]; read at cuts only.
        value_end: V after the agent's last turn, [N]; read at last turns only.
        cut: the tokens before which segments start, [M] bool.
        offsets: [N+1].
        agents: chains of (episode, agent).

    Returns:
        A, [M] float64; 0 before an agent's first cut.
    """
    lengths = np.diff(offsets)
    held = lengths > 0
    number, first = numbered(cut, offsets, agents)
    at = np.flatnonzero(cut)
    number[number < np.repeat(first, lengths)] = len(at)  # in front of all segments of its agent
    place = number[at]  # of each cut, along the chains
    turn = np.searchsorted(offsets, at, side="right") - 1
    start, of = np.empty(len(at)), np.empty_like(at)
    start[place], of[place] = value[at], agents.of[turn]
    end = np.zeros(agents.count)
    end[agents.of[agents.after == 0]] = value_end[agents.after == 0]
    segment = number[offsets[1:][held] - 1]  # in which each turn's last token lies
    earned = sums(paid_on_tokens(reward, held, agents)[held], segment, len(at) + 1)
    segments = chains((of,), np.arange(len(at)))
    gain = earned[:-1] + following(start, segments, end[of]) - start
    return np.append(gain, 0.0)[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class SPOChain(Whitened):
    """Segment-level credit with values at few places, and only the uncertain tokens trained.

        A_t = Σ r in the segment of t + V(its end) - V(its start);   0 if p_t > mask_above

    A segment starts before every `interval`-th token whose probability under the sampler is below
    `uncertain`, counted over all turns of an agent, and ends where the next one starts, or with the
    agent's last token. Tokens before the first gain 0, and so do all where there is none. The A of
    an agent's segments sum to what it got from the first cut on, minus V there.

    Needs the signal "token_value" [M], V before each token, of which the cuts alone are read: the
    authors play 4 or 9 continuations from each and take the mean, and `cut_points` says where.
    Behind an agent's last token V is 0, or the signal "value_next" [N] if the episode was cut
    short. Then A is whitened over the sampled tokens of the batch, as in the authors' code. A token
    above `mask_above` gets 0 and is left out of the whitening; the loss can leave out whole turns
    only, so such tokens still count in its mean.

    Source: SPO, arXiv 2505.23564, and its public code.
    """

    card: ClassVar[Card] = Card(
        name="spo_chain",
        title="SPO-chain",
        source="arXiv 2505.23564",
        evidence="code",
        granularity="segment",
        methodology="monte carlo",
        level="token",
        needs=frozenset({"token_value"}),
        cost="4 to 9 continuations per cut",
        breaks=frozenset({"groups", "shift"}),
    )

    uncertain: float = 0.9  # a token may start a segment if its probability is below
    interval: int = 5  # uncertain tokens per segment
    mask_above: float = 0.9  # tokens with a larger probability get 0; 1 = none do
    whiten: bool = True  # over the tokens that are not masked

    def __post_init__(self) -> None:
        Whitened.__post_init__(self)
        checks.within("spo_chain.uncertain", self.uncertain, 1e-9, 1.0)
        checks.within("spo_chain.interval", self.interval, 1)
        checks.within("spo_chain.mask_above", self.mask_above, 1e-9, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents, offsets = batch.agents(), batch.offsets
        cut = cut_points(
            batch.logprobs, offsets, agents, uncertain=self.uncertain, interval=self.interval
        )
        gain = segment_gains(
            batch.reward,
            batch.token_signal("token_value"),
            value_end(batch, agents),
            cut,
            offsets,
            agents,
        )
        open_tokens = batch.logprobs <= math.log(self.mask_above)
        if self.mask_above == 1.0:
            open_tokens[:] = True  # a log-prob above 0 is rounding
        scaled = self.whitened(gain, open_tokens.astype(np.float64))
        advantage = np.where(open_tokens, scaled, 0.0)
        components = {"segment": gain, "scaling": scaled - gain, "mask": advantage - scaled}
        stats = {"segments": float(cut.sum()), "masked_tokens": float(np.sum(~open_tokens))}
        return token_credit(batch, advantage, components=components, stats=stats)
