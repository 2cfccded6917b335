"""GRPO: an agent's return against the others of its group, in units of their spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import Resampler, baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """Group-relative policy optimisation over the agents of comparable episodes.

        A = (R - mean_cell R) / (std_cell R + ε)

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N]. Cells are the agents of one name in one group by default, so that seats and roles
    with unlike prospects are never compared; `by: []` pools the whole batch, which is the
    multi-turn GRPO that the MARS paper compares itself with. A cell alone, or with equal returns,
    gives exactly 0.

    Source: Shao et al., DeepSeekMath, arXiv 2402.03300; ddof, ε and unit as in public code, where
    they differ: verl has ε = 1e-6 and singletons raw, TRL ε = 1e-4.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Literal["turn", "token"]] = "turn"
    source: ClassVar[str] = "arXiv 2402.03300"
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]] = "code"

    by: tuple[str, ...] = ("group", "agent")  # equal values make a cell
    unit: baselines.Unit = "agent"  # counted once; "turn" lets long episodes weigh more
    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward
    singleton: baselines.Singleton = "zero"  # "raw" = baseline 0 and std 1, "error" = refuse
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("grpo.by", self.by))
        checks.one_of("grpo.unit", self.unit, checks.UNITS)
        checks.one_of("grpo.ddof", self.ddof, (0, 1))
        checks.within("grpo.epsilon", self.epsilon, 0.0)
        checks.one_of("grpo.singleton", self.singleton, checks.SINGLETON_RULES)

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
            baselines.standardise(total, pool, ddof=self.ddof, epsilon=self.epsilon),
            raw=total / (1.0 + self.epsilon),
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
