"""MAGRPO: a joint reply's return against its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, cells, extremes, scan_back, sums

Mode = Literal["mean", "raw", "max", "rloo"]


def against(x: Array, counted: baselines.Pool, mode: Mode) -> Array:
    """A return against those of its cell.

        x - mean   x   x - max   n/(n-1) · (x - mean)       for mean, raw, max, rloo

    Args:
        x: [N].
        counted: cells, and what counts once in them.
        mode: which of the four.

    Returns:
        [N] float64; 0 in a cell of one, but for "raw".
    """
    if mode == "raw":
        return x
    if mode == "max":
        held = counted.weight > 0
        top = extremes(x[held], counted.cell[held], len(counted.count))[1][counted.cell]
        return np.where(np.isfinite(top), x - np.where(np.isfinite(top), top, 0.0), 0.0)
    if mode == "rloo":
        return baselines.leave_one_out(x, counted)
    return baselines.centre(x, counted)


def path_weights(node: Array, siblings: Array, agents: Chains) -> Array:
    """How much each path behind a turn counts, if every node shares alike among its branches.

        w_k = 1/siblings_k · w_{k+1},   w = 1/siblings/(paths that end here) at the last turn

    Args:
        node: equal = the same decision, [N] int.
        siblings: decisions that branch off where this one does, itself included, [N].
        agents: chains of (episode, agent): the paths.

    Returns:
        w, [N] float64. Over the rows of a node it sums to 1/siblings.
    """
    last = agents.after == 0
    of, count = cells((node,), len(node))
    ends = np.maximum(sums(last, of, count), 1.0)[of]
    share = np.log(1.0 / siblings) - np.where(last, np.log(ends), 0.0)
    return np.exp(scan_back(share, 1.0, agents))


def previous(x: Array, agents: Chains) -> Array:
    """The key of the agent's turn before, [N] int; -1 at its first.

    Args:
        x: keys, [N] int.
        agents: chains of (episode, agent).
    """
    out = np.full(len(x), -1, dtype=np.int64)
    out[agents.order[1:]] = x[agents.order[:-1]]
    out[agents.before == 0] = -1
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class MAGRPO:
    """Multi-agent group-relative policy optimisation.

        x_j = r_j + mean over the branches of x,   A_j = x_j - mean over the siblings of x,
        then (A - mean A) / max(std A, ε)

    r [N] is the team's reward, so all agents of a joint reply get the same A [N]. With
    `siblings: turn` every episode is a path of its own: x is the return from the turn on, and its
    siblings are the same agent's turns of the same number in the group. With `siblings: node` the
    signal "node" says which turns are one decision: those that follow the same decision are
    siblings, each counts once, and its copies in several episodes share the weight of one.

    The code's modes for the first difference are mean, raw (x itself), max (x - max) and rloo
    (n/(n-1) times mean); with the z-scoring on, which is its default, all give the same numbers.
    There is no discount. The code's cross mode, which adds up all joint returns that a reply took
    part in, is not here.

    Source: MAGRPO, arXiv 2508.04652, and CoMLRL 1.4.3.
    """

    card: ClassVar[Card] = Card(
        name="magrpo",
        title="MAGRPO",
        source="arXiv 2508.04652",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
    )

    by: tuple[str, ...] = ("group", "agent")  # whose turns are compared
    siblings: Literal["turn", "node"] = "turn"  # turns of one number, or branches of one node
    mode: Mode = "mean"  # or "raw", "max", "rloo"; they differ without the z-scoring
    normalise: bool = True  # the z-scoring
    epsilon: float = 1e-6  # smallest standard deviation to divide by, in units of reward
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("magrpo.by", self.by))
        checks.one_of("magrpo.siblings", self.siblings, ("turn", "node"))
        checks.one_of("magrpo.mode", self.mode, ("mean", "raw", "max", "rloo"))
        checks.within("magrpo.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        x = returns.to_go(batch.reward, agents)
        pool = baselines.pool(
            batch, agents, (*self.by, "agent_turn"), "turn", mix_roles=self.mix_roles
        )
        share = np.ones(len(batch))
        if self.siblings == "node":
            x, share, pool = self._merged(x, batch.column("node"), pool, agents)
        centred = advantage = against(x, pool, self.mode)
        if self.normalise:
            again = baselines.compare(centred, pool, ddof=0, epsilon=0.0)
            divisor = np.where(again.std > 0, np.maximum(again.std, self.epsilon), np.inf)
            advantage = again.centred / divisor[pool.cell]
        return turn_credit(
            batch,
            advantage,
            components=ledger(x, centred, advantage),
            stats=baselines.pool_statistics(x, pool),
            weight=share * (batch.lengths > 0),
        )

    def _merged(
        self, to_go: Array, node: Array, pool: baselines.Pool, agents: Chains
    ) -> tuple[Array, Array, baselines.Pool]:
        """The returns of nodes, the weight of each of their rows, and the cells of siblings."""
        of, nodes = cells((node,), len(node))
        rows = np.bincount(of, minlength=nodes)[of]
        cell, count = cells((pool.cell, previous(node, agents)), len(node))
        siblings = np.rint(sums(1.0 / rows, cell, count))[cell]
        weight = path_weights(node, siblings, agents)
        paths = baselines.Pool(of, weight, sums(weight, of, nodes))
        once = pool.weight / rows
        return (
            baselines.mean(to_go, paths)[of],
            1.0 / rows,
            baselines.Pool(cell, once, np.rint(sums(once, cell, count))),
        )
