"""Self-Credit: an agent's advantage moved to the turns that its own answer cites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome, budgets, spend


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCreditReading(FromOutcome):
    """Weigh GRPO's advantage by what the policy itself says mattered.

        w_k = 1 + κ · cited_k, divided by its mean over the agent's sampled tokens
        A_k = A · w_k

    The signal "cited" [N] is 1 where the agent's own final answer cites the turn. No citation, or
    all turns cited, leaves A as it is; so does a turn whose label is missing. The sum over tokens
    stays, and no sign changes. A policy can learn to cite for the credit's sake: watch what it
    cites.

    Source: our reading of the abstract of Self-Credit, which gives no formula.
    """

    card: ClassVar[Card] = Card(
        name="self_credit_reading",
        title="Self-Credit",
        source="our reading of the abstract of Self-Credit",
        evidence="reading",
        granularity="turn",
        methodology="redistribution",
        needs=frozenset({"cited"}),
        cost="citations in the final answer",
    )

    kappa: float  # κ, how much more a cited turn's tokens count, in units of an uncited turn's

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("self_credit_reading.kappa", self.kappa, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        known, missing = labelled(batch, "cited")
        share = 1.0 + self.kappa * np.where(known, label(batch, "cited", 0.0, 1.0), 0.0)
        factor = spend(share, budgets(batch, agents, known))
        return turn_credit(
            batch,
            outcome * factor,
            components={"outcome": outcome, "citation": outcome * (factor - 1.0)},
            stats={**stats, **missing},
        )
