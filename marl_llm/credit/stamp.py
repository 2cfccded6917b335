"""STAMP: evidence that held up makes a win count more and a loss count less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp(FromOutcome):
    """Scale GRPO by the credit of the evidence that a turn brought up first.

        A_k = A · (1 + sign(A) · c_k) = A + |A| · c_k

    c [N] is the signal "judge_credit", from 0 to below 1: how much evidence that the answer later
    cites, and that was verified, was first seen in this turn. No sign changes, so the order of
    episodes by reward stays; the mean over an agent's tokens does not. A turn without a label has
    c = 0, as one that brought up nothing.

    Source: STAMP, arXiv 2607.11172.
    """

    card: ClassVar[Card] = Card(
        name="stamp",
        title="STAMP",
        source="arXiv 2607.11172",
        evidence="notes",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"judge_credit"}),
        cost="up to T checks of a citation",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        outcome, stats = self.outcome(batch.reward, batch, batch.agents())
        known, missing = labelled(batch, "judge_credit")
        # Below 1: a loss whose evidence counted in full would be no loss.
        credit = np.where(known, label(batch, "judge_credit", 0.0, np.nextafter(1.0, 0.0)), 0.0)
        evidence = np.abs(outcome) * credit
        return turn_credit(
            batch,
            outcome + evidence,
            components={"outcome": outcome, "evidence": evidence},
            stats={**stats, **missing},
        )
