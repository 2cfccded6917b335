"""Dr. GRPO: an agent's return against the mean of its group, in units of reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, returns
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO(Grouped):
    """GRPO without the division by the standard deviation.

        A = R - mean_cell R

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N], linear in the rewards. The other half of the method, one constant denominator in
    place of each reply's length, is the loss's aggregation mode "constant".

    Source: Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783.
    """

    card: ClassVar[Card] = Card(
        name="dr_grpo",
        title="Dr. GRPO",
        source="arXiv 2503.20783",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        return self.difference(total, baselines.centre(total, pool), pool, batch)
