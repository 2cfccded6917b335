"""What the rules on merged rollouts share: whom to merge, and what to do where nobody else was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl_llm.credit import baselines, checks, graphs, returns
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array

Fallback = Literal["zero", "trajectory"]
FALLBACKS = ("zero", "trajectory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged(Grouped):
    """Whose episodes become one graph, and what makes a state.

    A node is a cell of `by` and `anchor`. Add the column "event", say, to `by`, and episodes of
    unlike event schedules are never merged.
    """

    by: tuple[str, ...] = ("group", "role")  # unlike values keep graphs, and returns, apart
    anchor: tuple[str, ...] = ("state_key",)  # columns that make a state
    follow: graphs.Follow = "agent"  # whose next turn an edge leads to; "episode" = anybody's
    fallback: Fallback = "zero"  # a state visited once: 0, or the return against its cell's mean

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        name = self.card.name
        object.__setattr__(self, "anchor", checks.key_names(f"{name}.anchor", self.anchor))
        checks.one_of(f"{name}.follow", self.follow, graphs.FOLLOWS)
        checks.one_of(f"{name}.fallback", self.fallback, FALLBACKS)

    def merge(self, batch: TurnBatch) -> graphs.Graph:
        """The episodes of a batch as graphs."""
        return graphs.merge(batch, self.by, self.anchor, self.follow)

    def stand_in(
        self,
        batch: TurnBatch,
        graph: graphs.Graph,
        few: Array,
        *,
        ddof: int = 1,
        epsilon: float | None = None,
    ) -> Array:
        """What edges get whose state was visited once, by the rule `fallback`; 0 elsewhere, [N].

        Args:
            batch: N turns.
            graph: its graphs.
            few: the edges in question, [E] bool.
            ddof: of the standard deviation that the return is divided by.
            epsilon: added to it; None = the return is not divided.
        """
        if self.fallback == "zero":
            return np.zeros(len(batch))
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        if epsilon is None:
            whole = self.settle(baselines.centre(total, pool), total, pool, batch)
        else:
            whole = self.standardise(total, pool, batch, ddof=ddof, epsilon=epsilon)
        return np.where(graph.spread(few, len(batch)) > 0, whole, 0.0)


def visits(graph: graphs.Graph) -> baselines.Pool:
    """The edges that leave a state as a cell, in which every visit counts."""
    count = np.bincount(graph.source, minlength=graph.states)
    return baselines.Pool(graph.source, np.ones(len(graph.rows)), count.astype(np.float64))


def statistics(graph: graphs.Graph) -> dict[str, float]:
    """How many states and visits there are, and the share of visits to a state with no other."""
    few = baselines.alone(visits(graph))
    return {
        "states": float(graph.states),
        "visits": float(len(few)),
        "singleton_share": float(np.mean(few)) if len(few) else 0.0,
    }
