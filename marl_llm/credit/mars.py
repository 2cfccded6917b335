"""MARS: what an agent still got after a turn, against the mean of its like in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains


@dataclass(frozen=True, slots=True, kw_only=True)
class Mars:
    """Turn-level credit against an agent-specific batch mean: sum first, then normalise.

        G_k = Σ_{j≥k} r_j,   A_k = G_k - mean_cell G

    G [N] is the undiscounted return from the turn on; it is GAE(1, 1) with the cell's mean as the
    value. No group of equal starts is needed: the comparison is with everybody of the cell in the
    batch. The paper's "player" is a seat of the game, here the agent and its role.

    Our readings, all off by default: cells by information state (`MarsByState`), with `parent`
    cells for the rare ones; `leave_one_out`, which leaves the whole own episode out of the mean and
    so makes the baseline independent of the turn's action; `scale`, which divides by the cell's
    standard deviation.

    Source: MARS / MARSHAL, arXiv 2510.15414. Whether the mean counts turns or trajectories is not
    stated; a figure shows turns. What the authors' code does is `mars_shipped`.
    """

    card: ClassVar[Card] = Card(
        name="mars",
        title="MARS",
        source="arXiv 2510.15414",
        evidence="notes",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"groups"}),
    )

    by: tuple[str, ...] = ("role", "agent")  # add "game" with several games
    pool: Literal["turns", "trajectories"] = "turns"  # the latter counts first turns only
    parent: tuple[str, ...] | None = None  # cells that stand in for those below min_count
    min_count: int = 2  # turns (or trajectories) that a cell must count
    singleton: baselines.Singleton = "zero"  # cells below min_count, without or within parents
    leave_one_out: bool = False
    gamma: float = 1.0  # discount per turn of the agent
    scale: bool = False
    ddof: int = 1  # of the standard deviation, if scaled
    epsilon: float = 1e-6  # added to the standard deviation, if scaled
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        name = self.card.name
        object.__setattr__(self, "by", checks.key_names(f"{name}.by", self.by))
        if self.parent is not None:
            object.__setattr__(self, "parent", checks.key_names(f"{name}.parent", self.parent))
        checks.one_of(f"{name}.pool", self.pool, ("turns", "trajectories"))
        checks.whole(f"{name}.min_count", self.min_count, 2)
        checks.one_of(f"{name}.singleton", self.singleton, checks.SINGLETON_RULES)
        checks.within(f"{name}.gamma", self.gamma, 0.0, 1.0)
        checks.one_of(f"{name}.ddof", self.ddof, (0, 1))
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        to_go = returns.to_go(batch.reward, agents, self.gamma)
        advantage, few, stats = self._against(to_go, batch, agents, self.by)
        if self.parent is not None:
            stats["fallbacks"] = float(np.sum(few & (batch.lengths > 0)))
            substitute, none, _ = self._against(to_go, batch, agents, self.parent)
            advantage, few = np.where(few, substitute, advantage), few & none
        advantage = baselines.settle(
            advantage,
            raw=to_go / (1.0 + self.epsilon) if self.scale else to_go,
            few=few,
            rule=self.singleton,
            sampled=batch.lengths > 0,
        )
        return turn_credit(batch, advantage, components=ledger(to_go, advantage), stats=stats)

    def _against(
        self, to_go: Array, batch: TurnBatch, agents: Chains, by: Sequence[str]
    ) -> tuple[Array, Array, dict[str, float]]:
        """Advantages against the cells of `by`, who has too few others there, and counts."""
        unit: baselines.Unit = "turn" if self.pool == "turns" else "agent"
        pool = baselines.pool(batch, agents, by, unit, mix_roles=self.mix_roles)
        few = baselines.alone(pool, self.min_count)
        if self.leave_one_out:
            advantage, lonely = baselines.centre_on_others(to_go, pool, batch.episode)
            few = few | lonely
        else:
            advantage = baselines.centre(to_go, pool)
        if self.scale:
            spread = baselines.std(to_go, pool, self.ddof)[pool.cell]
            advantage = np.divide(
                advantage, spread + self.epsilon, out=np.zeros(len(batch)), where=spread > 0
            )
        return advantage, few, baselines.pool_statistics(to_go, pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarsByState(Mars):
    """MARS whose cells are information states: our reading, published by nobody.

        A_k = G_k - mean of G over all turns of the batch at the same information state

    This takes the luck of the deal out of the comparison. A rare state takes the mean of its
    `parent` cell.

    Source: our reading of MARS, arXiv 2510.15414, whose cells are agents with their roles.
    """

    card: ClassVar[Card] = Card(
        name="mars_state",
        title="MARS by information state",
        source="our reading of arXiv 2510.15414",
        evidence="reading",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"groups"}),
    )

    by: tuple[str, ...] = ("state_key",)
    parent: tuple[str, ...] | None = ("game", "role", "agent")
