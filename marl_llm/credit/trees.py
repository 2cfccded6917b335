"""Trees: episodes that share their first decisions.

Every episode of a tree is a whole path of rows, from the root to a leaf. Rows that several episodes
share because they were forked behind them carry the same signal "node"; all copies but one carry
"replayed", so that a shared decision is trained once. Turns that sampled nothing are no decisions
and have no place here. A state has a value for every agent, the mean of what that agent got in the
episodes through it, since agents need not be paid alike; the root is the start of the group.

What the turns of players outside the batch did is chance that lies between two rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl_llm.credit import baselines
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import (
    Array,
    Chains,
    cells,
    chains_as_they_stand,
    disagreeing,
    extremes,
    firsts,
    scan_back,
    sums,
)
from marl_llm.credit.tokens import spans
from marl_llm.credit.tries import alike_first
from marl_llm.errors import EpisodeError

Average = Literal["children", "episodes"]
AVERAGES = ("children", "episodes")


@dataclass(frozen=True, slots=True)
class Tree:
    """The decisions of a batch, and the states in front of and behind them. Made by `grow`.

    The state in front of a decision is the one behind the decision before it, the joint one if
    several agents moved at once, or the root.
    """

    node: Array  # [N] int: state behind the row's decision; meaningless where nothing was sampled
    before: Array  # [N] int: state in front of it; likewise
    first: Array  # [N] bool: one row of each decision, to count it once
    rows: Array  # [R] int: rows that sampled, one episode after the other, in playing order
    step: Array  # [R] int: their step; what agents did at once is one
    front: Array  # [S] int: state in front of each step
    behind: Array  # [S] int: state behind it
    links: Chains  # of the steps of each episode; episodes are numbered in their order
    states: int  # how many numbers of states there are


def grow(batch: TurnBatch) -> Tree:
    """Read the trees off the signal "node".

    Args:
        batch: N turns.

    Raises:
        EpisodeError: a decision belongs to two agents, comes twice in one episode, or has unlike
            decisions in front of it.
    """
    n = len(batch)
    rows = np.flatnonzero(batch.lengths > 0)
    node, nodes = _decisions(batch, rows)
    step, steps = cells((batch.episode[rows], batch.turn[rows]), len(rows))
    order = np.argsort(step * nodes + node, kind="stable")
    rows, node, step = rows[order], node[order], step[order]
    first = np.zeros(n, dtype=bool)
    first[rows[firsts(node, nodes)]] = True

    opens, closes = _borders(step)
    opening = rows[opens]
    behind = _states(node, opens, closes, nodes)
    links = chains_as_they_stand(*cells((batch.episode[opening],), steps))
    root, roots = cells((batch.group[opening],), steps)
    top = int(behind.max(initial=-1)) + 1
    front = np.where(links.before == 0, top + root, np.append(0, behind)[:-1])
    _check_histories(batch, rows, node, front[step])

    state, before = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    # Of several decisions at once each is a state of its own, beside the joint one behind them.
    state[rows] = np.where(opens & closes, behind[step], node)
    before[rows] = front[step]
    return Tree(state, before, first, rows, step, front, behind, links, top + roots)


def _decisions(batch: TurnBatch, rows: Array) -> tuple[Array, int]:
    """The decision of each of some rows, [R] int in 0..K-1; and K."""
    node, nodes = cells((batch.column("node")[rows],), len(rows))
    group = batch.group[rows]
    if len(disagreeing(group, node, nodes)):  # equal numbers in unlike groups are unlike decisions
        node, nodes = cells((group, node), len(rows))
    agent = batch.agent[rows]
    if len(disagreeing(agent, node, nodes)):
        low, high = extremes(agent, node, nodes)
        mixed = np.flatnonzero((low < high)[node])[0]
        row = rows[mixed]
        first, second = (batch.name("agent", int(a[node[mixed]])) for a in (low, high))
        raise EpisodeError(
            f"node {batch.column('node')[row]} of group {batch.group[row]} is a decision "
            f"of {first!r} and of {second!r}; only copies of one decision carry the same node"
        )
    return node, nodes


def _states(node: Array, opens: Array, closes: Array, nodes: int) -> Array:
    """The state behind each step, [S] int.

    Args:
        node: of the rows, step after step, ascending in a step, [R] int.
        opens: first row of each step, [R] bool.
        closes: last row of each step, [R] bool.
        nodes: how many there are.
    """
    # There is one way to a decision, as `_check_histories` makes sure: what was decided last says
    # what was decided before.
    behind = node[closes]
    joint = ~(opens & closes)
    if np.any(joint):
        together = alike_first((node[joint],), np.flatnonzero(opens[joint]))
        behind += nodes  # what was decided alone is another state than the same beside others
        behind[~opens[closes]] = 2 * nodes + together[closes[joint]]
    return behind


def _borders(chain: Array) -> tuple[Array, Array]:
    """First and last rows of runs of equal numbers, each [S] bool."""
    starts, ends = np.ones(len(chain), dtype=bool), np.ones(len(chain), dtype=bool)
    starts[1:] = ends[:-1] = chain[1:] != chain[:-1]
    return starts, ends


def _check_histories(batch: TurnBatch, rows: Array, node: Array, before: Array) -> None:
    """All copies of a decision have the same state in front of them.

    Args:
        batch: N turns.
        rows: that sampled, [R] int.
        node: their decision, [R] int.
        before: the state in front of it, [R] int.
    """
    nodes = int(node.max(initial=-1)) + 1
    if not len(disagreeing(before, node, nodes)):
        return
    low = extremes(before, node, nodes)[0][node]
    torn = np.flatnonzero(before > low)[0]
    row, copies = rows[torn], node == node[torn]
    if np.sum(copies & (batch.episode[rows] == batch.episode[row])) > 1:
        raise EpisodeError(
            f"node {batch.column('node')[row]} comes twice in episode {batch.episode[row]}; "
            "every decision of an episode has a node of its own"
        )
    other = rows[np.flatnonzero(copies & (before == low[torn]))[0]]
    raise EpisodeError(
        f"node {batch.column('node')[row]} of group {batch.group[row]} has other nodes before "
        f"it in episode {batch.episode[other]} than in episode {batch.episode[row]}; the copies of "
        "a decision share all that came before"
    )


def worth(tree: Tree, total: Array, average: Average = "episodes") -> Array:
    """What the row's agent gets on average behind its decision.

        V(d) = Σ_e w_e · R_e / Σ_e w_e   over the episodes e that share decision d

    Args:
        tree: the decisions.
        total: R of the row's agent in its episode, the same at all its turns there, [N].
        average: "episodes", w = 1; or "children", the mean of the means of what comes next, each
            child counting once whatever has grown below it. Equal in a tree of even growth.

    Returns:
        V, [N] float64, 0 where nothing was sampled.
    """
    # The rows of a decision are all of one agent, and one of each episode that shares it.
    return _mean_behind(tree, total, _shares(tree, average)[0])


def _mean_behind(tree: Tree, total: Array, share: Array) -> Array:
    """V behind each decision, where its episodes have these weights at its step, [N]."""
    cell, weight = tree.node[tree.rows], share[tree.step]
    pool = baselines.Pool(cell, weight, sums(weight, cell, tree.states))
    out = np.zeros(len(total))
    out[tree.rows] = baselines.mean(total[tree.rows], pool)[cell]
    return out


def values(
    tree: Tree, batch: TurnBatch, total: Array, average: Average = "episodes"
) -> tuple[Array, Array]:
    """What the row's agent gets on average behind its decision, and in front of it.

    Args:
        tree: the decisions.
        batch: its N turns.
        total: R of the row's agent in its episode, the same at all its turns there, [N].
        average: as in `worth`; in front of a decision, over the episodes through the state there.

    Returns:
        V behind and V in front, each [N] float64, 0 where nothing was sampled. A decision that has
        no alternative, or only equally good ones, has exactly the same in both.
    """
    agents, walker = batch.agents(), tree.links.of
    # One row per agent, episode by episode.
    place = np.full(agents.count, -1)
    place[agents.of[tree.rows]] = np.arange(len(tree.rows))
    place = place[place >= 0]
    team = np.bincount(walker[tree.step[place]])
    # Every visit of a state by an episode counts for each agent of that episode.
    at_root = tree.links.before == 0
    visitor = np.concatenate((walker, walker[at_root]))
    each = team[visitor]
    payee = tree.rows[place[spans((np.cumsum(team) - team)[visitor], each)]]
    visited = np.repeat(np.concatenate((tree.behind, tree.front[at_root])), each)
    share, root_share = _shares(tree, average)
    weight = np.repeat(np.concatenate((share, root_share[at_root])), each)

    cell, count = cells(
        (
            np.concatenate((visited, tree.before[tree.rows])),
            np.concatenate((batch.agent[payee], batch.agent[tree.rows])),
        ),
        len(payee) + len(tree.rows),
    )
    visit, asked = cell[: len(payee)], cell[len(payee) :]
    pool = baselines.Pool(visit, weight, sums(weight, visit, count))
    front = np.zeros(len(batch))
    front[tree.rows] = baselines.mean(total[payee], pool)[asked]
    return _mean_behind(tree, total, share), front


def _shares(tree: Tree, average: Average) -> tuple[Array, Array]:
    """What an episode weighs in a mean, in the states behind and in front of each step, [S] each.

        weight = 1                        "episodes"
        weight = Π 1 / children           "children", over the states from this one to the leaf

    An episode that ends in a state is a child of it, too.
    """
    if average == "episodes":
        return np.ones(len(tree.behind)), np.ones(len(tree.front))
    front, behind, ends = tree.front, tree.behind, tree.links.after == 0
    origin = np.full(tree.states, -1)
    origin[behind] = front  # there is one way to every state
    children = np.bincount(origin[origin >= 0], minlength=tree.states)
    children += np.bincount(behind[ends], minlength=tree.states)
    part = 1.0 / np.maximum(children, 1)
    last = part[behind]
    share = scan_back(np.where(ends, last, 0.0), last, tree.links)
    return share, part[front] * share


def siblings(tree: Tree, batch: TurnBatch) -> baselines.Pool:
    """The decisions that an agent took in the same state, as cells that count each of them once."""
    cell, count = cells((tree.before, batch.agent), len(batch))
    weight = tree.first.astype(np.float64)
    return baselines.Pool(cell, weight, sums(weight, cell, count))


def once(batch: TurnBatch) -> Array:
    """Weights that train a shared decision once: 0 for its copies, [N] float64.

    The signal "replayed" says which rows are copies; without it every row is trained.
    """
    copied = batch.signal("replayed") > 0 if "replayed" in batch.signals else False
    return ((batch.lengths > 0) & ~np.asarray(copied)).astype(np.float64)


def statistics(tree: Tree, counted: baselines.Pool) -> dict[str, float]:
    """How many decisions there are, and how many of them had no alternative in the batch.

    Args:
        tree: the decisions.
        counted: their `siblings`.
    """
    return {
        "decisions": float(tree.first.sum()),
        "only_children": float(np.sum(tree.first & baselines.alone(counted))),
    }
