"""Shapley values: what each agent adds to a team, averaged over all orders of joining it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError

LARGEST_TEAM = 8  # 256 coalitions

Worth = Callable[[Array], Array]  # members of coalitions, [C, n] bool, to their worth, [C]


def coalitions(n: int) -> Array:
    """All coalitions of n agents, [2^n, n] bool; agent i is in coalition c if bit i of c is set."""
    return (np.arange(2**n)[:, None] >> np.arange(n)) % 2 == 1


def shapley_values(worth: Array) -> Array:
    """Exact Shapley values from the worth of every coalition.

        φ_i = Σ_{S without i} |S|! (n-|S|-1)! / n! · (v(S + i) - v(S))

    Args:
        worth: v of the coalitions in the order of `coalitions`, [2^n] or [E, 2^n] for E games.

    Returns:
        φ, [n] or [E, n]; its sum is v(all) - v(nobody).

    Raises:
        ConfigError: the number of coalitions is not 2^n, or n is above 8.
    """
    n = int(worth.shape[-1]).bit_length() - 1
    if worth.shape[-1] != 2**n or n > LARGEST_TEAM:
        raise ConfigError(
            f"exact Shapley values need the worth of all 2^n coalitions of n <= {LARGEST_TEAM} "
            f"agents, got {worth.shape[-1]} values; draw orders with `sampled_shapley_values`"
        )
    member = coalitions(n)
    size = member.sum(axis=1, keepdims=True)
    orders = np.array([math.factorial(k) for k in range(n + 1)], dtype=np.float64)
    joined = orders[np.maximum(size - 1, 0)] * orders[n - size]
    missed = orders[size] * orders[np.maximum(n - size - 1, 0)]
    return np.asarray(worth @ (np.where(member, joined, -missed) / orders[n]), dtype=np.float64)


def sampled_shapley_values(
    worth: Worth, n: int, orders: int, rng: np.random.Generator, *, mirrored: bool = True
) -> Array:
    """Shapley values as a mean over drawn orders of joining.

        φ_i ≈ mean over the orders of v(those before i, and i) - v(those before i)

    Args:
        worth: v; asked once, for every coalition that occurs.
        n: agents.
        orders: how many orders are drawn.
        rng: of the orders.
        mirrored: also take each order from back to front, which costs twice as much and leaves less
            noise.

    Returns:
        φ, [n] float64, unbiased; its sum is v(all) - v(nobody) whatever is drawn.
    """
    order = rng.permuted(np.tile(np.arange(n), (orders, 1)), axis=1)
    if mirrored:
        order = np.concatenate((order, order[:, ::-1]))
    place = np.argsort(order, axis=1)
    member = place[:, None, :] < np.arange(n + 1)[None, :, None]  # [orders, n + 1, n]
    asked, which = np.unique(member.reshape(-1, n), axis=0, return_inverse=True)
    value = np.asarray(worth(asked), dtype=np.float64)[which.reshape(len(order), n + 1)]
    return np.take_along_axis(np.diff(value, axis=1), place, axis=1).mean(axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapley(Grouped):
    """An agent's Shapley share of its team's return, against the shares of its like.

        A = φ_i - mean_cell φ_i,   φ_i = Σ_S |S|! (n-|S|-1)! / n! · (v(S + i) - v(S))

    φ [N] is the signal "shapley_value", the same at all turns of an agent in an episode. It takes
    the return v(S) of replays in which only the agents of S play as they are and defaults stand in
    for the rest: 2^n - 1 replays exactly, or one per agent and drawn order. `shapley_values` and
    `sampled_shapley_values` make φ of them. The shares of an episode sum to v(all) - v(nobody), an
    agent that changes nothing gets none. An agent that is there for a part of the episode is a
    player in that part only, so a game per stretch of one roster, and sums over the stretches.

    The comparison within a group is that of Dr. GRPO. Agents without the signal get 0.

    Source: Shapley, A value for n-person games, 1953; in reinforcement learning arXiv 1907.05707.
    """

    card: ClassVar[Card] = Card(
        name="shapley",
        title="Shapley values",
        source="Shapley 1953, arXiv 1907.05707",
        evidence="notes",
        granularity="agent",
        methodology="game-theoretic",
        needs=frozenset({"shapley_value"}),
        cost="up to 2^n - 1 replays for n agents",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        known, stats = labelled(batch, "shapley_value")
        share = np.where(known, batch.signal("shapley_value"), 0.0)
        pool = self.pool(batch, batch.agents(), known)
        advantage = self.settle(baselines.centre(share, pool), share, pool, batch)
        advantage = np.where(known, advantage, 0.0)
        return turn_credit(
            batch,
            advantage,
            components=ledger(share, advantage),
            stats=baselines.pool_statistics(share, pool) | stats,
        )
