"""CriticSearch: a judge's verdict on each turn beside the outcome of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSearchReading(FromOutcome):
    """Mix GRPO with the verdicts of a critic that knows the right answer.

        A_k = a · A_outcome + (1 - a) · z(v_k)

    v [N] is the signal "judge_good", 1 where the turn helped and 0 where it did not. z is taken
    over all judged turns of a cell of `by`, long episodes included with all their turns. A turn
    that was not judged has z = 0. Equal verdicts, and none at all, leave a · GRPO.

    Source: our reading of CriticSearch, arXiv 2511.12159, whose equation was not at hand.
    """

    card: ClassVar[Card] = Card(
        name="critic_search_reading",
        title="CriticSearch",
        source="our reading of arXiv 2511.12159",
        evidence="reading",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"judge_good"}),
        cost="T verdicts of a judge that sees the right answer",
    )

    outcome_share: float  # a, in [0, 1]; 1 = GRPO

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("critic_search_reading.outcome_share", self.outcome_share, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        known, missing = labelled(batch, "judge_good")
        turns = baselines.pool(batch, agents, self.by, "turn", mix_roles=self.mix_roles)
        verdict = baselines.standardise(
            label(batch, "judge_good", 0.0, 1.0),
            baselines.counting(turns, known),
            ddof=self.ddof,
            epsilon=self.epsilon,
        )
        parts = {
            "outcome": self.outcome_share * outcome,
            "verdict": (1.0 - self.outcome_share) * np.where(known, verdict, 0.0),
        }
        return turn_credit(
            batch, parts["outcome"] + parts["verdict"], components=parts, stats={**stats, **missing}
        )
