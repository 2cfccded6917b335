"""DASH: what leads to a right intermediate answer is praised, what leads away from one is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks, tokens
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import token_label
from marl_llm.credit.segments import Array
from marl_llm.credit.shaped import Response, Shaped, shaped_credit


def tokens_past(commitment: Array, offsets: Array) -> Array:
    """How many tokens lie between a token and the last right commitment before it, [M] int.

    Args:
        commitment: [M], above 0 where the token's segment ends in a right answer.
        offsets: responses, [R+1]; one without a right commitment so far counts from its start.
    """
    past = np.arange(len(commitment))
    # The place before a response's start is beyond all places of the responses before it, and
    # keeps the running maximum from leaking.
    last = tokens.spread(offsets[:-1] - 1, offsets)
    np.copyto(last, past, where=commitment > 0)
    past -= np.maximum.accumulate(last, out=last)
    past -= 1
    return past


def drift_weight(past: Array, growth: float, largest: float) -> Array:
    """w(n) = min(1 + growth · n, largest), n tokens past a right commitment, [M]."""
    return np.minimum(1.0 + growth * past, largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class DashReading(Shaped):
    """Segments signed by where they lead: our reading.

        A_t = +|A| · a⁺                  in a segment that ends in a right answer
        A_t = -|A| · a⁻ · w(n)           in one that leads away, n tokens past the right answer
        A_t = A                          elsewhere
        w(n) = min(1 + growth · n, w_max)

    A is GRPO's. The trace is the agent's whole episode, and it commits itself where it states an
    answer or, in a game, reaches a state that decides it. Needs the signal "commitment" [M]: 1, -1
    or 0 as above. A sign may change: good steps of a lost episode are praised. Partial reward for
    episodes that drifted away is left to the reward.

    Source: our reading of DASH, arXiv 2607.00482, whose constants are not given in what we read.
    """

    card: ClassVar[Card] = Card(
        name="dash_reading",
        title="DASH",
        source="our reading of arXiv 2607.00482",
        evidence="reading",
        granularity="segment",
        methodology="information",
        level="token",
        needs=frozenset({"commitment"}),
        cost="comparing each stated answer with the right one",
    )

    a_plus: float  # a⁺
    a_minus: float  # a⁻
    growth: float  # of w, per token past the right answer
    w_max: float
    response: Response = "agent"  # "turn": every turn is a trace of its own

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        checks.within("dash_reading.a_plus", self.a_plus, 0.0)
        checks.within("dash_reading.a_minus", self.a_minus, 0.0)
        checks.within("dash_reading.growth", self.growth, 0.0)
        checks.within("dash_reading.w_max", self.w_max, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        commitment = token_label(batch, "commitment", -1.0, 1.0)
        responses = self.responses(batch, agents)
        past = responses.put_back(tokens_past(responses.lay(commitment), responses.offsets))
        away = drift_weight(past, self.growth, self.w_max)
        away *= -self.a_minus
        advantage = np.where(commitment > 0, self.a_plus, away)
        advantage *= np.abs(base)
        np.copyto(advantage, base, where=commitment == 0)
        return shaped_credit(batch, base, advantage, stats)


def toward_factors(commitment: Array, base: Array, offsets: Array, k: float) -> Array:
    """Factors of mean 1 per response: 1 + k toward the right answer, 1 - k away, if A > 0.

    Args:
        commitment: 1 toward, -1 away, 0 the same, [M].
        base: A, [M]; where it is negative, toward and away change places.
        offsets: responses, [R+1].
        k: in [0, 1).
    """
    factor = np.sign(commitment)
    factor *= np.sign(base)
    factor *= k
    factor += 1.0
    factor /= tokens.spread(tokens.mean_turns(factor, offsets), offsets)
    return factor


@dataclass(frozen=True, slots=True, kw_only=True)
class DashFactorReading(Shaped):
    """DASH as a redistribution that keeps signs and mass: our other reading.

        u = 1 + k · c · sign(A),   A_t = A · L · u_t / Σ_j u_j

    c is the signal "commitment" [M], 1 toward the right answer, -1 away from it, 0 neither; the sum
    is over the L tokens of the agent in its episode. Σ_t A_t = L · A, and a lost episode is only
    blamed less where it went the right way.

    Source: our reading of DASH, arXiv 2607.00482, of which we read the abstract; k is our own.
    """

    card: ClassVar[Card] = Card(
        name="dash_factor_reading",
        title="DASH with factors",
        source="our reading of arXiv 2607.00482",
        evidence="reading",
        granularity="segment",
        methodology="information",
        level="token",
        needs=frozenset({"commitment"}),
        cost="comparing each stated answer with the right one",
    )

    k: float  # how much more and less, below 1
    response: Response = "agent"  # "turn": the mass of every turn is kept

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        checks.within("dash_factor_reading.k", self.k, 0.0, 0.999)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        commitment = token_label(batch, "commitment", -1.0, 1.0)
        responses = self.responses(batch, agents)
        factors = toward_factors(
            responses.lay(commitment), responses.lay(base), responses.offsets, self.k
        )
        return shaped_credit(batch, base, base * responses.put_back(factors), stats)
