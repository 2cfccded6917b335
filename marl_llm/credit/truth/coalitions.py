"""What agents are worth: coalitions of a team, and the Shapley value by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from marl_llm.credit.segments import Array


def tail(chances: Sequence[float], least: int) -> float:
    """P(at least `least` of independent agents succeed): the Poisson-binomial tail.

    Args:
        chances: probability of each agent's success, [n].
        least: how many are needed.
    """
    counts = np.ones(1)
    for chance in chances:
        counts = np.convolve(counts, (1 - chance, chance))
    return float(counts[max(0, least) :].sum())


def threshold_game(trained: Sequence[float], default: float, least: int) -> Array:
    """What each coalition is worth when at least `least` agents must succeed.

        v(S) = P(at least m succeed),   agent g with p_g if g ∈ S, with b otherwise

    Args:
        trained: p_g of each agent, [n].
        default: b, of what stands in for an agent.
        least: m.

    Returns:
        v, [2^n]; bit g of the index says whether agent g is in S.
    """
    n = len(trained)
    return np.array([
        tail([p if s >> g & 1 else default for g, p in enumerate(trained)], least)
        for s in range(2**n)
    ])  # fmt: skip


def shapley(worth: Array) -> Array:
    """The Shapley value of a game, by its definition.

        φ_g = Σ_{S ∌ g} |S|! (n-|S|-1)! / n! · [v(S ∪ g) - v(S)],   Σ_g φ_g = v(N) - v(∅)

    Args:
        worth: v, [2^n], or [2^n, E] for E games; bit g of the index says whether agent g is in S.

    Returns:
        φ, [n] or [n, E].
    """
    n = len(worth).bit_length() - 1
    coalition = np.arange(len(worth))
    size = np.array([int(s).bit_count() for s in coalition])
    value = np.zeros((n, *worth.shape[1:]))
    for g in range(n):
        without = coalition[coalition >> g & 1 == 0]
        weight = np.array([1 / (n * comb(n - 1, int(k))) for k in size[without]])
        value[g] = weight @ (worth[without | 1 << g] - worth[without])
    return value
