"""RAE: an agent's return against a moving average that remembers earlier batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given, State
from marl_llm.credit.segments import (
    Array,
    cells,
    chains_as_they_stand,
    first_of,
    firsts,
    following,
    scan_back,
    turned,
)
from marl_llm.errors import CheckpointError

PLAYER_COLUMNS = ("game", "role", "agent", "policy")  # the same at all turns of an agent


def moving_averages(x: Array, cell: Array, start: Array, decay: float) -> tuple[Array, Array]:
    """An exponential moving average in each cell, before and after each of its values.

        b_j = α · b_{j-1} + (1 - α) · x_j

    Args:
        x: values in the order in which they are seen, [E].
        cell: whose average each belongs to, [E] int in 0..K-1.
        start: the average of each cell before its first value, [K].
        decay: α per value.

    Returns:
        b_{j-1} and b_j for each value, [E] each.
    """
    newest_first = turned(chains_as_they_stand(cell, len(start)))
    # What is left of the start after so many values, of which no cell has more than the longest.
    left = decay ** np.arange(newest_first.after.max(initial=0) + 2)
    begun = start[cell]
    after = scan_back((1.0 - decay) * x, decay, newest_first)
    after += left[newest_first.after + 1] * begun
    return following(after, newest_first, begun), after


@dataclass(frozen=True, slots=True, kw_only=True)
class RAE:
    """Role-conditioned advantage estimation.

        A = γ^(turns to the end) · (R - b),   b ← α · b + (1 - α) · R   after each episode

    R [N] is the whole return of the turn's agent in its episode; b is kept for each game and player
    (role and agent), starts at 0 and lasts from batch to batch. Episodes are taken in the order in
    which their first sampled turns stand in the batch: give batches a fixed order. b is subtracted
    before it is updated, as the code does, so that it does not depend on R; the paper's text
    updates first, which scales R - b by α.

    The state is ``{"by": [...], "averages": {game: {role: {agent: b}}}}``, as deep as `by` is long.

    Source: Liu et al., SPIRAL, arXiv 2506.24119, and spiral-rl/spiral.
    """

    card: ClassVar[Card] = Card(
        name="rae",
        title="RAE",
        source="arXiv 2506.24119",
        evidence="code",
        granularity="agent",
        methodology="monte carlo",
        remembers=True,
        breaks=frozenset({"groups", "shift", "order"}),
    )

    by: tuple[str, ...] = ("game", "role", "agent")  # who shares an average
    decay: float = 0.95  # per episode
    order: Literal["subtract_first", "update_first"] = "subtract_first"
    gamma: float = 1.0  # discount per turn of the agent, counted from its last
    mix_roles: bool = False  # may several roles share an average?

    def __post_init__(self) -> None:
        names = checks.key_names("rae.by", self.by, PLAYER_COLUMNS)
        checks.within("the number of columns in rae.by", len(names), 1)
        object.__setattr__(self, "by", names)
        checks.within("rae.decay", self.decay, 0.0, 1.0)
        checks.one_of("rae.order", self.order, ("subtract_first", "update_first"))
        checks.within("rae.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch; the averages after it are in `Credit.state`."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        # The first sampled turn of every (episode, agent) speaks for it.
        rows = np.flatnonzero(first_of(batch.lengths > 0, agents))
        columns = [batch.column(name)[rows] for name in self.by]
        cell, count = cells(columns, len(rows))
        if not self.mix_roles:
            baselines.refuse_mixed_roles(batch, rows, cell, count, self.by)
        keys = [
            tuple(map(batch.name, self.by, (int(column[i]) for column in columns)))
            for i in firsts(cell, count)
        ]
        averages = self._averages(given.state)
        start = np.array([averages.get(key, 0.0) for key in keys])
        before, after = moving_averages(total[rows], cell, start, self.decay)
        baseline = np.zeros(agents.count)
        baseline[agents.of[rows]] = before if self.order == "subtract_first" else after
        centred = advantage = total - baseline[agents.of]
        if self.gamma < 1.0:
            advantage = self.gamma ** agents.after.astype(np.float64) * centred
        start[cell] = after  # the last one of each cell stays
        averages |= zip(keys, start.tolist(), strict=True)
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, centred, advantage),
            stats={"/".join(("average", *key)): averages[key] for key in keys},
            state={"by": list(self.by), "averages": _nested(averages)},
        )

    def _averages(self, state: State | None) -> dict[tuple[str, ...], float]:
        """The averages of a state by their names; none at the start."""
        if state is None:
            return {}
        if not {"by", "averages"} <= state.keys():
            raise CheckpointError(
                f"a state of rae has the keys 'by' and 'averages', got {sorted(state)}; "
                "start without a state"
            )
        if list(state["by"]) != list(self.by):
            raise CheckpointError(
                f"the saved averages are by {list(state['by'])}, rae.by asks for {list(self.by)}; "
                "set it back, or start without a state"
            )
        return dict(_flat(state["averages"], len(self.by)))


def _flat(tree: Mapping[str, Any], depth: int) -> list[tuple[tuple[str, ...], float]]:
    """Leaves of a nested mapping with their paths."""
    if depth == 1:
        return [((name,), float(leaf)) for name, leaf in tree.items()]
    return [
        ((name, *path), leaf)
        for name, branch in tree.items()
        for path, leaf in _flat(branch, depth - 1)
    ]


def _nested(leaves: Mapping[tuple[str, ...], float]) -> dict[str, Any]:
    """The nested mapping with these leaves, names in order."""
    tree: dict[str, Any] = {}
    for path in sorted(leaves):
        branch = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
        branch[path[-1]] = leaves[path]
    return tree
