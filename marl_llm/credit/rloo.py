"""RLOO: an agent's return against the mean of the *others* of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO(Grouped):
    """REINFORCE with a leave-one-out baseline.

        A_i = R_i - 1/(n-1) Σ_{j≠i} R_j = n/(n-1) · (R_i - mean_cell R)

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N]. The baseline of i does not depend on R_i, so it adds no bias. What is left out is
    what is counted once: an agent of an episode, or (`unit: episode`) the mean of the episode's
    agents in the cell, whose own deviations from it are scaled alike.

    Source: Kool et al., Buy 4 REINFORCE samples, get a baseline for free, 2019; Ahmadian et al.,
    Back to basics, arXiv 2402.14740.
    """

    card: ClassVar[Card] = Card(
        name="rloo",
        title="RLOO",
        source="arXiv 2402.14740",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
    )

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("rloo.unit", self.unit, ("episode", "agent"))  # counted, and left out, once

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        return self.difference(total, baselines.leave_one_out(total, pool), pool, batch)
