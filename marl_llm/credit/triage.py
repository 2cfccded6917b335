"""TRIAGE: a fixed bonus for the role that a judge says the turn played, added to the outcome."""

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
from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError, EpisodeError

KINDS = 4  # decisive, exploratory, neutral, regressive: the numbers of "judge_role"


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage(FromOutcome):
    """Correct GRPO by what kind of turn it was, and whiten the batch.

        x_k = A_outcome + λ · c(kind_k),   A = (x - mean x) / √(var x + ε)

    The signal "judge_role" [N] has the kind: 0 decisive, 1 exploratory, 2 neutral, 3 regressive.
    The judge never sees how the episode ended. Mean and variance are over the sampled turns of the
    batch, the variance divided by their number. The bonus is added, so it can turn the sign of a
    small advantage. A turn that was not judged gets no bonus: with none judged, or λ = 0, this is
    whitened GRPO.

    Source: TRIAGE, arXiv 2606.32017, v3, by a third party's implementation of it; the value of λ
    is not known.
    """

    card: ClassVar[Card] = Card(
        name="triage",
        title="TRIAGE",
        source="arXiv 2606.32017",
        evidence="notes",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"judge_role"}),
        cost="T judge calls",
        breaks=frozenset({"groups"}),
    )

    lam: float  # λ, in [0, 1]: how much the kinds count beside the outcome
    bonus: tuple[float, ...] = (1.0, 0.5, -0.1, -0.5)  # c, in the order of the kinds
    white_epsilon: float = 1e-8  # added to the variance

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        object.__setattr__(self, "bonus", tuple(self.bonus))
        checks.within("triage.lam", self.lam, 0.0, 1.0)
        checks.within("triage.white_epsilon", self.white_epsilon, 0.0)
        if len(self.bonus) != KINDS or not np.all(np.isfinite(self.bonus)):
            raise ConfigError(
                "triage.bonus has a finite number for each of decisive, exploratory, neutral and "
                f"regressive turns, got {list(self.bonus)}"
            )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        known, missing = labelled(batch, "judge_role")
        bonus = self.lam * np.where(known, np.asarray(self.bonus)[_kinds(batch, known)], 0.0)
        mixed = outcome + bonus
        counted = (batch.lengths > 0).astype(np.float64)
        advantage = baselines.whiten(mixed, counted, ddof=0, epsilon=self.white_epsilon)
        return turn_credit(
            batch,
            advantage,
            components={"outcome": outcome, "kind": bonus, "scaling": advantage - mixed},
            stats={**stats, **missing},
        )


def _kinds(batch: TurnBatch, known: Array) -> Array:
    """The kind of each turn, [N] int; 0 where it is not known."""
    kind = np.where(known, label(batch, "judge_role", 0.0, KINDS - 1.0), 0.0)
    bad = np.flatnonzero(kind != np.rint(kind))
    if len(bad):
        raise EpisodeError(
            f"signal 'judge_role' of turn {batch.turn[bad[0]]} of episode {batch.episode[bad[0]]} "
            f"is {kind[bad[0]]:g}; it must be one of 0, 1, 2, 3"
        )
    return kind.astype(np.int64)
