"""Dr. MAS: GRPO whose statistics are each agent's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DrMAS(FromOutcome):
    """Agent-wise normalised advantages of a team.

        A = (R - mean_{q,a} R) / (std_{q,a} R + ε)

    R [N] is the whole return of the turn's agent in its episode, which a team shares. Mean and std
    are over the turns of one agent a at one query q, so an agent that is not called in every
    episode is compared with itself only. With the statistics of the whole team, the mean square of
    agent a's A is (σ_a² + (mean_a - mean)²) / σ², and gradients are as unequal.

    Every turn counts once, as shipped, so that the mean leans to episodes in which the agent spoke
    often; `unit: agent` counts each episode once and is GRPO. An agent with a single turn at a
    query gets exactly 0; as shipped it gets its raw return (`singleton: raw`), which pushes rarely
    called agents always upwards.

    Source: Dr. MAS, arXiv 2602.08847, and langfengQ/DrMAS.
    """

    card: ClassVar[Card] = Card(
        name="dr_mas",
        title="Dr. MAS",
        source="arXiv 2602.08847",
        evidence="code",
        granularity="agent",
        methodology="monte carlo",
    )

    unit: baselines.Unit = "turn"  # counted once

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        advantage, stats = self.outcome(batch.reward, batch, agents)
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, baselines.centre(total, pool), advantage),
            stats=stats,
        )
