"""HAPPO: MAPPO's advantage, times what the agents updated before have changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.mappo import MAPPO


@dataclass(frozen=True, slots=True, kw_only=True)
class HAPPO(MAPPO):
    """Heterogeneous-agent PPO's advantage.

        A_i = f_i · A,   f_i = Π_{j updated before i} π_j,new(a_j) / π_j,old(a_j)

    A [N] is MAPPO's, of the signals "value" and "value_next". Agents are updated one after another,
    in a new random order each time; the learner attaches f [N] as the signal "ratio_before", which
    is 1 for the first, and to which an agent that did not act contributes 1. A turn without it
    counts as the first. The product of the ratios of whole replies explodes: take the geometric
    mean over a reply's tokens, or set `limit`, which keeps f within [1/limit, limit]. The critic's
    targets are not touched.

    Source: Kuba et al., arXiv 2109.11251, and the code of HARL.
    """

    card: ClassVar[Card] = Card(
        name="happo",
        title="HAPPO",
        source="arXiv 2109.11251",
        evidence="code",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value", "ratio_before"}),
        cost="a critic's T values, one update per agent",
        breaks=frozenset({"groups", "shift"}),
    )

    limit: float | None = None  # of the factor; None = none

    def __post_init__(self) -> None:
        MAPPO.__post_init__(self)
        if self.limit is not None:
            checks.within("happo.limit", self.limit, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        base = MAPPO.estimate(self, batch)
        _, stats = labelled(batch, "value", "ratio_before")
        factor = np.where(batch.known("ratio_before"), label(batch, "ratio_before", 0.0), 1.0)
        if self.limit is not None:
            factor = np.clip(factor, 1.0 / self.limit, self.limit)
        return turn_credit(
            batch,
            factor * base.advantage,
            components={**base.components, "others": (factor - 1.0) * base.advantage},
            stats={**base.stats, **stats},
            targets=base.targets,
        )
