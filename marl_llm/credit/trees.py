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
from marl_llm.credit.segments import Array, Chains, cells, chains, extremes, firsts, scan_back, sums
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
    sampled: Array  # [N] bool
    front: Array  # [S] int: state in front of each step of an episode, one episode after the other
    behind: Array  # [S] int: state behind it
    links: Chains  # of the steps of each episode
    several: Array  # [J] int: the rows that moved with others,
    at: Array  # [J] int: in these steps
    walker: Array  # [S] int: the episode of each step, numbered in its order


def grow(batch: TurnBatch) -> Tree:
    """Read the trees off the signal "node".

    Args:
        batch: N turns.

    Raises:
        EpisodeError: a decision belongs to two agents, comes twice in one episode, or has unlike
            decisions in front of it.
    """
    n = len(batch)
    episode, _ = cells((batch.episode,), n)
    group, _ = cells((batch.group,), n)
    node, nodes = cells((group, batch.column("node")), n)
    sampled = batch.lengths > 0
    _check_nodes(batch, node, nodes, sampled)

    rows = np.flatnonzero(sampled)
    # What agents do at once is one step: its rows have the same state in front of them.
    moves = chains((episode[rows], batch.turn[rows]), node[rows])
    rows, step = rows[moves.order], moves.of[moves.order]
    first = np.zeros(n, dtype=bool)
    one_each = firsts(node[rows], nodes)
    first[rows[one_each[one_each < len(rows)]]] = True

    opens, closes = _borders(step)
    starts, _ = _borders(episode[rows])
    behind = nodes + alike_first((node[rows],), np.flatnonzero(starts))[closes]
    root = behind.max(initial=nodes) + 1 + group[rows[opens]]
    links = _in_order(episode[rows[opens]])
    front = np.where(links.before == 0, root, np.append(0, behind)[:-1])

    before = np.zeros(n, dtype=np.int64)
    before[rows] = front[step]
    _check_histories(batch, rows, node, before)
    # Of several decisions at once each is a state of its own, beside the joint one behind them.
    joint = ~(opens & closes)
    node[rows] = np.where(joint, node[rows], behind[step])
    return Tree(
        node=node,
        before=before,
        first=first,
        sampled=sampled,
        front=front,
        behind=behind,
        links=links,
        several=rows[joint],
        at=step[joint],
        walker=episode[rows[opens]],
    )


def _borders(chain: Array) -> tuple[Array, Array]:
    """First and last rows of runs of equal numbers, each [S] bool."""
    starts, ends = np.ones(len(chain), dtype=bool), np.ones(len(chain), dtype=bool)
    starts[1:] = ends[:-1] = chain[1:] != chain[:-1]
    return starts, ends


def _in_order(chain: Array) -> Chains:
    """Chains whose rows stand one chain behind another, from the start of each to its end."""
    starts, _ = _borders(chain)
    of, before = np.cumsum(starts) - 1, _since(starts)
    length = np.bincount(of)
    return Chains(of, len(length), np.arange(len(chain)), (length - 1)[of] - before, before)


def _since(starts: Array) -> Array:
    """Rows since the last start, which has 0 itself, [S] int; the first row is a start."""
    place = np.arange(len(starts))
    return place - np.maximum.accumulate(np.where(starts, place, 0))


def _check_nodes(batch: TurnBatch, node: Array, nodes: int, sampled: Array) -> None:
    low, high = extremes(batch.agent[sampled], node[sampled], nodes)
    mixed = np.flatnonzero(sampled & (low < high)[node])
    if len(mixed):
        first, second = (batch.name("agent", int(a[node[mixed[0]]])) for a in (low, high))
        raise EpisodeError(
            f"node {batch.column('node')[mixed[0]]} of group {batch.group[mixed[0]]} is a decision "
            f"of {first!r} and of {second!r}; only copies of one decision carry the same node"
        )


def _check_histories(batch: TurnBatch, rows: Array, node: Array, before: Array) -> None:
    low, _ = extremes(before[rows], node[rows], int(node.max(initial=-1)) + 1)
    torn = rows[before[rows] > low[node[rows]]]
    if len(torn):
        row = torn[0]
        own = rows[(node[rows] == node[row]) & (batch.episode[rows] == batch.episode[row])]
        if len(own) > 1:
            raise EpisodeError(
                f"node {batch.column('node')[row]} comes twice in episode {batch.episode[row]}; "
                "every decision of an episode has a node of its own"
            )
        same = rows[(node[rows] == node[row]) & (before[rows] == low[node[row]])]
        here, there = (batch.episode[i] for i in (same[0], row))
        raise EpisodeError(
            f"node {batch.column('node')[row]} of group {batch.group[row]} has other nodes before "
            f"it in episode {here} than in episode {there}; the copies of a decision share all "
            "that came before"
        )


def _shares(front: Array, behind: Array, links: Chains) -> tuple[Array, Array]:
    """What an episode weighs in the mean over children, in the states behind and before each step.

        weight = Π 1 / children   over the states from this one to the leaf

    An episode that ends in a state is a child of it, too.

    Args:
        front: state before each step, [S] int.
        behind: state after it, [S] int.
        links: chains of each episode's steps, one episode after the other.
    """
    size = int(max(front.max(initial=0), behind.max(initial=0))) + 1
    one = firsts(behind, size)  # there is one way to every state
    children = np.bincount(front[one[one < len(front)]], minlength=size)
    children += np.bincount(behind[links.after == 0], minlength=size)
    part = 1.0 / np.maximum(children, 1)
    share = scan_back(np.where(links.after == 0, part[behind], 0.0), part[behind], links)
    return share, part[front] * share


def values(
    tree: Tree, batch: TurnBatch, total: Array, average: Average = "episodes"
) -> tuple[Array, Array]:
    """What the row's agent gets on average behind its decision, and in front of it.

        V(s) = Σ_e w_e · R_e / Σ_e w_e   over the episodes e through state s

    Args:
        tree: the decisions.
        batch: its N turns.
        total: R of the row's agent in its episode, the same at all its turns there, [N].
        average: "episodes", w = 1; or "children", the mean of the means of the children of s, each
            child counting once whatever has grown below it. Equal in a tree of even growth.

    Returns:
        V behind and V in front, each [N] float64, meaningless where nothing was sampled. A decision
        that has no alternative, or only equally good ones, has exactly the same in both.
    """
    rows = np.flatnonzero(tree.sampled)
    episode, episodes = cells((batch.episode,), len(batch))
    # One row per agent, episode by episode.
    paid = rows[firsts(*cells((episode[rows], batch.agent[rows]), len(rows)))]
    team = np.bincount(episode[paid], minlength=episodes)
    # Every visit of a state by an episode counts for each agent of that episode.
    at_root = tree.links.before == 0
    visited = np.concatenate((tree.node[tree.several], tree.behind, tree.front[at_root]))
    visitor = np.concatenate((tree.walker[tree.at], tree.walker, tree.walker[at_root]))
    each = team[visitor]
    payee = paid[spans((np.cumsum(team) - team)[visitor], each)]
    weight = np.ones(len(payee))
    if average == "children":
        share, root_share = _shares(tree.front, tree.behind, tree.links)
        weight = np.repeat(np.concatenate((share[tree.at], share, root_share[at_root])), each)

    cell, count = cells(
        (
            np.concatenate((np.repeat(visited, each), tree.node[rows], tree.before[rows])),
            np.concatenate((batch.agent[payee], batch.agent[rows], batch.agent[rows])),
        ),
        len(payee) + 2 * len(rows),
    )
    visit, asked = cell[: len(payee)], cell[len(payee) :]
    pool = baselines.Pool(visit, weight, sums(weight, visit, count))
    answer = baselines.mean(total[payee], pool)[asked]
    behind, front = np.zeros(len(batch)), np.zeros(len(batch))
    behind[rows], front[rows] = answer[: len(rows)], answer[len(rows) :]
    return behind, front


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
