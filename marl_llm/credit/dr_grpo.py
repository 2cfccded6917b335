"""Dr. GRPO: an agent's return against the mean of its group, in units of reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import Resampler, baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO:
    """GRPO without the division by the standard deviation.

        A = R - mean_cell R

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N], linear in the rewards. The other half of the method, one constant denominator in
    place of each reply's length, is the loss's aggregation mode "constant".

    Source: Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Literal["turn", "token"]] = "turn"
    source: ClassVar[str] = "arXiv 2503.20783"
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]] = "code"

    by: tuple[str, ...] = ("group", "agent")  # equal values make a cell
    unit: baselines.Unit = "agent"  # counted once; "turn" lets long episodes weigh more
    singleton: baselines.Singleton = "zero"  # "raw" = baseline 0, "error" = refuse
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("dr_grpo.by", self.by))
        checks.one_of("dr_grpo.unit", self.unit, checks.UNITS)
        checks.one_of("dr_grpo.singleton", self.singleton, checks.SINGLETON_RULES)

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
        advantage = baselines.settle(
            baselines.centre(total, pool),
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
