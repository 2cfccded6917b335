"""What each of several calls is worth: its Shapley value and what is lost without it.

Both come from the worth of every set of calls, so they are exact, and cost 2^n evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np

from marl_llm.errors import GameError

MOST_CALLS = 16  # 65,536 sets

Worth = Callable[[frozenset[int]], float]  # numbers of the calls that are kept -> their worth


@dataclass(frozen=True, slots=True)
class CallValue:
    """The exact credit of one call."""

    shapley: float  # what it adds, averaged over all orders of joining
    left_out: float  # what all calls are worth, less what they are worth without it


def call_values(worth: Worth, calls: int) -> list[CallValue]:
    """The exact credit of every call.

        φ_i = Σ_{S ∌ i} |S|! (n-|S|-1)! / n! · (v(S + i) - v(S))
        d_i = v(all) - v(all - i)

    The Shapley values φ sum to v(all) - v(none). A call that never changes v gets 0 of both.

    Args:
        worth: v, asked once for every set of calls.
        calls: n, how many there are; they are numbered from 0.

    Returns:
        One value per call.

    Raises:
        GameError: there are too many calls to enumerate.

    Source: Shapley, A value for n-person games, 1953.
    """
    if calls > MOST_CALLS:
        raise GameError(
            f"exact values of {calls} calls need 2^{calls} evaluations; {MOST_CALLS} calls are the "
            "most, so let the game make fewer"
        )
    sets = np.arange(2**calls)
    value = np.array([
        worth(frozenset(i for i in range(calls) if each >> i & 1)) for each in sets.tolist()
    ])  # fmt: skip
    size = sum((sets >> i & 1 for i in range(calls)), start=np.zeros_like(sets))
    found = []
    for i in range(calls):
        without = sets[sets >> i & 1 == 0]
        adds = value[without | 1 << i] - value[without]
        orders = np.array([1 / (calls * comb(calls - 1, int(k))) for k in size[without]])
        found.append(CallValue(float(orders @ adds), float(adds[-1])))
    return found
