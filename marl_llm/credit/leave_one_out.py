"""Leave one out: what a team got, against what it gets when this agent is replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """Difference rewards.

        A_i = R - R_{-i}

    R [N] is the whole return of the turn's agent in its episode, which a team shares; the signal
    "return_without" [N] is R_{-i}, the return of a replay in which a default plays for the agent,
    or of the same transcript scored with the agent's words masked, which is cheaper and cannot say
    what the others would have done instead. R_{-i} does not depend on what the agent did, so it is
    a baseline without bias. Two agents that do the same work get nothing each, two that are both
    needed get all of it each: the credits of a team do not sum to R, as `shapley` values do. Agents
    without the signal get 0.

    Source: Wolpert and Tumer, Optimal payoff functions for members of collectives, 2001.
    """

    card: ClassVar[Card] = Card(
        name="leave_one_out",
        title="Leave one agent out",
        source="Wolpert and Tumer 2001",
        evidence="notes",
        granularity="agent",
        methodology="counterfactual",
        needs=frozenset({"return_without"}),
        cost="one replay per agent",
        breaks=frozenset({"shift"}),
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        known, stats = labelled(batch, "return_without")
        total = np.where(known, returns.totals(batch.reward, batch.agents()), 0.0)
        without = np.where(known, batch.signal("return_without"), 0.0)
        return turn_credit(
            batch,
            total - without,
            components={"return": total, "without": -without},
            stats=stats,
        )
