"""The settings, and the step, that most estimators share: compare an agent with others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.segments import Array, Chains


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Whom an agent is compared with, and what counts once in the comparison."""

    card: ClassVar[Card]

    by: tuple[str, ...] = ("group", "agent")  # equal values make a cell; () = the whole batch
    unit: baselines.Unit = "agent"  # counted once; "turn" lets long episodes weigh more
    singleton: baselines.Singleton = "zero"  # nobody to compare with: 0, "raw" value, or "error"
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        name = self.card.name
        object.__setattr__(self, "by", checks.key_names(f"{name}.by", self.by))
        checks.one_of(f"{name}.unit", self.unit, checks.UNITS)
        checks.one_of(f"{name}.singleton", self.singleton, checks.SINGLETON_RULES)

    def pool(self, batch: TurnBatch, agents: Chains, known: Array | None = None) -> baselines.Pool:
        """The turns of a batch sorted into the cells of `by`; only `known` ones count, if said."""
        return baselines.pool(
            batch, agents, self.by, self.unit, mix_roles=self.mix_roles, known=known
        )

    def settle(self, advantage: Array, raw: Array, pool: baselines.Pool, batch: TurnBatch) -> Array:
        """The advantage, with the rule for cells of one in place, [N].

        Args:
            advantage: right where a cell counts two or more, [N].
            raw: what the rule "raw" puts elsewhere, [N].
            pool: the cells.
            batch: N turns.
        """
        return baselines.settle(
            advantage,
            raw=raw,
            few=baselines.alone(pool),
            rule=self.singleton,
            sampled=batch.lengths > 0,
        )

    def difference(
        self,
        x: Array,
        apart: Array,
        pool: baselines.Pool,
        batch: TurnBatch,
        more: Mapping[str, float] | None = None,
    ) -> Credit:
        """Credit of values minus a baseline, with the rule for cells of one in place.

        Args:
            x: what is compared, [N].
            apart: x minus its baseline, right where a cell counts two or more, [N].
            pool: the cells.
            batch: N turns.
            more: statistics beside those of the cells.
        """
        advantage = self.settle(apart, x, pool, batch)
        return turn_credit(
            batch,
            advantage,
            components=ledger(x, advantage),
            stats=baselines.pool_statistics(x, pool) | dict(more or {}),
        )

    def standardise(
        self, x: Array, pool: baselines.Pool, batch: TurnBatch, *, ddof: int, epsilon: float
    ) -> Array:
        """A = (x - mean) / (std + ε) in the cells, with the rule for cells of one in place, [N].

        Args:
            x: [N].
            pool: the cells.
            batch: N turns.
            ddof: of the standard deviation.
            epsilon: added to it; the raw value of a cell of one is x / (1 + ε).
        """
        return self.settle(
            baselines.standardise(x, pool, ddof=ddof, epsilon=epsilon),
            raw=x / (1.0 + epsilon),
            pool=pool,
            batch=batch,
        )
