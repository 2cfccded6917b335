"""AVATAR's temporal advantage shaping: the two ends of a response count more than its middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks, tokens
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array
from marl_llm.credit.shaped import Shaped, shaped_credit


def parabola(offsets: Array, lam: float) -> Array:
    """A factor that is 1 in the middle of a response and 1 + λ at its ends, [M].

        w_t = 1 + λ · (2t / (L - 1) - 1)²,   t = 0..L - 1

    Args:
        offsets: responses, [R+1]. The only token of a response gets 1.
        lam: λ.
    """
    length = np.diff(offsets)
    weight = tokens.places(offsets).astype(np.float64)
    weight *= tokens.spread(2.0 / np.maximum(length - 1, 1), offsets)
    weight -= 1.0
    weight *= weight
    weight *= tokens.spread(np.where(length > 1, lam, 0.0), offsets)
    weight += 1.0
    return weight


@dataclass(frozen=True, slots=True, kw_only=True)
class AvatarTAS(Shaped):
    """GRPO, weighted by a parabola over the response: planning and conclusion before the middle.

        w_t = 1 + λ · (2t / (L - 1) - 1)²,   A_t = A · w_t

    L tokens, t = 0..L - 1. The factors' mean is about 1 + λ/3, so that the step grows with λ and a
    little with short replies; `keep_mass` divides it out (our reading).

    Source: AVATAR, arXiv 2508.03100; λ is not given in what we read.
    """

    card: ClassVar[Card] = Card(
        name="avatar_tas",
        title="AVATAR's temporal advantage shaping",
        source="arXiv 2508.03100",
        evidence="notes",
        granularity="token",
        methodology="redistribution",
        level="token",
        cost="none",
    )

    lam: float  # λ, how much more the ends count
    keep_mass: bool = False  # scale the factors to mean 1 in every response

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        checks.within("avatar_tas.lam", self.lam, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        responses = self.responses(batch, agents)
        offsets = responses.offsets
        weight = parabola(offsets, self.lam)
        if self.keep_mass:
            mean = tokens.mean_turns(weight, offsets)
            weight /= tokens.spread(mean, offsets)
        return shaped_credit(batch, base, base * responses.put_back(weight), stats)
