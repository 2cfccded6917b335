"""RLOO: an agent's return against the mean of the *others* of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import Resampler, baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO:
    """REINFORCE with a leave-one-out baseline.

        A_i = R_i - 1/(n-1) Σ_{j≠i} R_j = n/(n-1) · (R_i - mean_cell R)

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N]. The baseline of i does not depend on R_i, so it adds no bias. What is left out is
    what is counted once: an agent of an episode, or (`unit: episode`) the mean of the episode's
    agents in the cell, whose own deviations from it are scaled alike.

    Source: Kool et al., Buy 4 REINFORCE samples, get a baseline for free, 2019; Ahmadian et al.,
    Back to basics, arXiv 2402.14740.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Literal["turn", "token"]] = "turn"
    source: ClassVar[str] = "arXiv 2402.14740"
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]] = "code"

    by: tuple[str, ...] = ("group", "agent")  # equal values make a cell
    unit: Literal["episode", "agent"] = "agent"  # counted, and left out, once
    singleton: baselines.Singleton = "zero"  # "raw" = baseline 0, "error" = refuse
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("rloo.by", self.by))
        checks.one_of("rloo.unit", self.unit, ("episode", "agent"))
        checks.one_of("rloo.singleton", self.singleton, checks.SINGLETON_RULES)

    def estimate(
        self,
        batch: TurnBatch,
        *,
        rng: np.random.Generator | None = None,
        resample: Resampler | None = None,
    ) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = baselines.pool(batch, agents, self.by, self.unit, mix_roles=self.mix_roles)
        n = pool.count[pool.cell]
        advantage = baselines.settle(
            baselines.centre(total, pool) * n / np.maximum(n - 1.0, 1.0),
            raw=total,
            few=baselines.alone(pool),
            rule=self.singleton,
            sampled=batch.lengths > 0,
        )
        return turn_credit(
            batch,
            advantage,
            components={"returns": total},
            stats=baselines.pool_statistics(total, pool),
        )
