"""LoGo-GRPO: fresh episodes against each other, and replays from one state against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome
from marl_llm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogoGRPOReading(FromOutcome):
    """GRPO over whole episodes, and λ times GRPO over episodes that start from one later state.

        A = z(R) among the fresh episodes of a cell
        A = λ · z(R) among the episodes of a cell that were replayed from one state

    The signal "suffix_of" [N] numbers the reset group of a replayed episode and is -1 for a fresh
    one; both are trained on, so replays are episodes of the batch and not calls of a resampler.
    The signal "replayed" [N] is 1 for the turns that an episode took over from the one it was
    forked from: they have weight 0. With λ = 0 or without replays this is GRPO of the fresh
    episodes; every cell sums to 0 over its agents, and equal returns give 0.

    Source: our reading of LoGo-GRPO (Memory-R2), arXiv 2605.21768, whose equation was not at hand.
    """

    card: ClassVar[Card] = Card(
        name="logo_grpo_reading",
        title="LoGo-GRPO",
        source="our reading of arXiv 2605.21768",
        evidence="reading",
        granularity="segment",
        methodology="monte carlo",
        needs=frozenset({"suffix_of", "replayed"}),
        cost="K replays from a restored state",
    )

    lam: float  # λ, at least 0: how much a replay counts beside a fresh episode
    by: tuple[str, ...] = ("group", "agent", "suffix_of")  # equal values make a cell

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("logo_grpo_reading.lam", self.lam, 0.0)
        if "suffix_of" not in self.by:
            raise ConfigError(
                f"logo_grpo_reading.by={list(self.by)} compares replays, which start from a state "
                "that somebody chose, with fresh episodes; add 'suffix_of'"
            )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        standing, stats = self.outcome(batch.reward, batch, batch.agents())
        fresh = batch.column("suffix_of") < 0
        own = batch.signal("replayed") == 0
        parts = {
            "global": np.where(fresh & own, standing, 0.0),
            "local": np.where(~fresh & own, self.lam * standing, 0.0),
        }
        sampled = batch.lengths > 0
        return turn_credit(
            batch,
            parts["global"] + parts["local"],
            components=parts,
            stats={**stats, "replayed_turns": float(np.sum(sampled & ~own))},
            weight=(sampled & own).astype(np.float64),
        )
