"""MT-GRPO: the first turn is also compared by its own reward, the others by the outcome alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MTGRPO(FromOutcome):
    """Multi-turn GRPO in two segments: the first turn, and all that follow.

        A_0 = z(R_O) + λ · z(R_T),   A_k = z(R_O) for k > 0,   z(x) = (x - mean) / (std + ε)

    R_T [N] is the reward of the agent's first sampled turn, R_O [N] all else that it got; z is over
    the cell. An agent with a single turn called no tool: its reward is outcome, its R_T is 0, and
    its turn gets both terms, where the code compares R_T + R_O as one. λ = 0 is GRPO on R_O, and so
    are equal first rewards.

    Only the first turn has a term of its own. Comparing the *rewards* of every turn number apart
    and summing them up afterwards would charge whoever goes on with the mean reward of those who
    went on, so that stopping pays.

    Source: arXiv 2505.11821 and its code (SiliangZeng/Multi-Turn-RL-Agent).
    """

    card: ClassVar[Card] = Card(
        name="mt_grpo",
        title="MT-GRPO",
        source="arXiv 2505.11821",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
    )

    turn_weight: float = 1.0  # λ, of the first turn's own term
    epsilon: float = 1e-4  # added to both standard deviations, in units of reward

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("mt_grpo.turn_weight", self.turn_weight, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        first = baselines.pool(batch, agents, ("episode", "agent"), "agent").weight > 0
        opening = np.where(first & (agents.after > 0), batch.reward, 0.0)
        outcome, stats = self.outcome(batch.reward - opening, batch, agents)
        compared, _ = self.outcome(opening, batch, agents)
        turn = np.where(first, self.turn_weight * compared, 0.0)
        return turn_credit(
            batch, outcome + turn, components={"outcome": outcome, "turn": turn}, stats=stats
        )
