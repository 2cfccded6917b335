"""Graphs of merged rollouts: equal states are one node, each sampled turn is an edge.

An edge leads from the state that a turn saw to the one that the next turn saw, or to the end. Who
comes next is a choice: the same agent (`follow: agent`), so that whatever the others did lies on
the edge and every agent has its own returns; or whoever moves next (`follow: episode`), so that an
edge is one agent's doing only, which takes a team that is paid alike and states that say all that
matters of the past. Turns that sampled nothing are no edges: their reward is that of the edge
before, and they get no credit.

Nodes are integers 0..S-1; the end of an episode is -1. All functions are sweeps over flat edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array, Chains, cells, chains, extremes, sums
from marl_llm.errors import EpisodeError

Follow = Literal["agent", "episode"]
FOLLOWS = ("agent", "episode")
END = -1


@dataclass(frozen=True, slots=True)
class Graph:
    """The sampled turns of a batch as edges. Made by `merge`."""

    rows: Array  # [E] int: the turn of each edge
    source: Array  # [E] int: state that it left
    target: Array  # [E] int: state that it led to, or END
    reward: Array  # [E] float: earned on the way
    region: Array  # [E] int: edges of unlike regions never meet
    links: Chains  # the edges of each walk
    states: int

    def spread(self, x: Array, n: int) -> Array:
        """A value of each edge as one of each of the N turns, 0 where nothing was sampled."""
        out = np.zeros(n)
        out[self.rows] = x
        return out


def merge(batch: TurnBatch, by: Sequence[str], anchor: Sequence[str], follow: Follow) -> Graph:
    """Merge the episodes of a batch into graphs.

    Args:
        batch: N turns.
        by: columns whose unlike values keep graphs apart.
        anchor: columns that make a state within them.
        follow: whose next turn an edge leads to. With "episode" the return of the team counts at
            the end of the episode, since everybody's rewards are copies of it.

    Raises:
        EpisodeError: "episode", and agents are paid unlike, or two of them move at once.
    """
    team = follow == "episode"
    walks = chains((batch.episode,), batch.turn) if team else batch.agents()
    in_order = walks.order
    sampled = batch.lengths[in_order] > 0
    rows = in_order[sampled]
    state, states = cells([batch.column(name)[rows] for name in (*by, *anchor)], len(rows))
    apart = [name for name in by if not (team and name in ("role", "agent"))]
    region, _ = cells([batch.column(name)[rows] for name in apart], len(rows))
    links = chains((walks.of[rows],), np.arange(len(rows)))
    target = np.where(links.after > 0, np.append(state, END)[1:], END)
    if team:
        _check_team(batch, walks)
        reward = np.where(links.after > 0, 0.0, _team_return(batch, walks)[rows])
    else:
        reward = _earned(batch.reward[in_order], walks.of[in_order], sampled)
    return Graph(rows, state, target, reward, region, links, states)


def _earned(reward: Array, walk: Array, sampled: Array) -> Array:
    """Rewards from each sampled turn to the next one of its walk, [E]; rows in walking order.

    What came before a walk's first sampled turn is nobody's doing, and left out.
    """
    edge = np.cumsum(sampled) - 1
    own = edge >= 0
    own[own] = walk[np.flatnonzero(sampled)[edge[own]]] == walk[own]
    return sums(reward[own], edge[own], int(sampled.sum()))


def _team_return(batch: TurnBatch, walks: Chains) -> Array:
    """The return that all agents of the row's episode share, [N]."""
    agents = batch.agents()
    total = sums(batch.reward, agents.of, agents.count)[agents.of]
    low, high = extremes(total, walks.of, walks.count)
    bad = np.flatnonzero((high - low > 1e-9 * np.maximum(np.abs(low), np.abs(high)))[walks.of])
    if len(bad):
        row = bad[0]
        raise EpisodeError(
            f"agents of episode {batch.episode[row]} have returns from {low[walks.of[row]]:g} to "
            f"{high[walks.of[row]]:g}; follow: episode needs a team that is paid alike, use "
            "follow: agent"
        )
    return low[walks.of]


def _check_team(batch: TurnBatch, walks: Chains) -> None:
    turn = batch.turn[walks.order]
    same = (np.diff(turn) == 0) & (np.diff(walks.of[walks.order]) == 0)
    if np.any(same):
        row = walks.order[np.flatnonzero(same)[0]]
        raise EpisodeError(
            f"several agents move at turn {batch.turn[row]} of episode {batch.episode[row]}; what "
            "follows what is then not said, use follow: agent"
        )


def after(value: Array, target: Array, end: Array | float = 0.0) -> Array:
    """The value of the state that each edge leads to, [E].

    Args:
        value: of the states, [S].
        target: of the edges, [E] int.
        end: what the end of an episode is worth, [E] or one number.
    """
    return np.where(target == END, end, np.append(value, 0.0)[target])


def bellman(
    source: Array,
    target: Array,
    reward: Array,
    region: Array,
    states: int,
    *,
    gamma: float,
    tolerance: float,
    sweeps: int = 10_000,
) -> tuple[Array, Array]:
    """State values at which every state is worth the mean of its edges.

        V(u) = mean over the edges (u → v) of r + γ · V(v),   V(end) = 0

    Sweeps over all edges, in which an edge back to its own state is solved for, so that standing
    still takes no time. A region stops for itself, so that what it holds hangs on nothing else.

    Args:
        source: where the edges start, [E] int.
        target: where they lead, [E] int, or END.
        reward: r, [E].
        region: edges of unlike regions never meet, [E] int.
        states: S.
        gamma: γ, per edge.
        tolerance: a region stops when no value moves in a sweep by more than this share of the
            region's largest reward in size; every eighth sweep is looked at.
        sweeps: at most so many.

    Returns:
        V, [S] float64, 0 where no end can be reached; and the regions that had not stopped, [R]
        bool.
    """
    size = int(region.max(initial=-1)) + 1
    where = np.zeros(states, dtype=np.int64)
    where[source] = region
    stay = source == target
    weight = np.bincount(source, minlength=states) - gamma * np.bincount(
        source[stay], minlength=states
    )
    share = np.divide(1.0, weight, out=np.zeros(states), where=weight > 0)
    earned = sums(reward, source, states) * share
    source, target = source[~stay], target[~stay]
    _, largest = extremes(np.abs(reward), region, size)
    value = np.zeros(states + 1)  # value[END] stays 0
    moving = np.ones(size, dtype=bool)
    for sweep in range(1, sweeps + 1):
        better = earned + gamma * share * sums(value[target], source, states)
        last, value[:-1] = value[:-1].copy(), np.where(moving[where], better, value[:-1])
        if sweep % 8 == 0:
            _, moved = extremes(np.abs(value[:-1] - last), where, size)
            moving &= moved > tolerance * largest
            if not np.any(moving):
                break
    return value[:-1], moving


def distances(source: Array, target: Array, success: Array, states: int) -> Array:
    """Edges from each state to the nearest success, on the shortest way that anybody took.

        d(u) = min over the edges (u → v) of 1 + d(v),   d = 0 at the end of a success

    Args:
        source: where the edges start, [E] int.
        target: where they lead, [E] int, or END.
        success: does the edge's episode succeed? [E] bool, read where it ends.
        states: S.

    Returns:
        d, [S] float64; +inf where no success can be reached.
    """
    d = np.full(states, np.inf)
    goal = np.where(success, 0.0, np.inf)
    while True:
        nearer = d.copy()
        np.minimum.at(nearer, source, 1.0 + after(d, target, goal))
        if np.array_equal(nearer, d):
            return d
        d = nearer
