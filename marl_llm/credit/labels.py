"""Labels of a judge: which are there, and whether they say something possible.

A label that could not be had is left out of every statistic and moves nothing; how many there are
is reported as ``missing_labels``.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array
from marl_llm.credit.signals import KNOWN, MISSING
from marl_llm.errors import EpisodeError


def labelled(batch: TurnBatch, *names: str) -> tuple[Array, dict[str, float]]:
    """The sampled turns that have all these labels, [N] bool; and how many have not."""
    sampled = batch.lengths > 0
    known = sampled.copy()
    for name in names:
        if name + MISSING in batch.signals:
            known &= batch.known(name)
    return known, {"missing_labels": float(np.count_nonzero(sampled & ~known))}


def label(batch: TurnBatch, name: str, low: float, high: float = np.inf) -> Array:
    """A signal over turns whose values lie in a range, [N] float64.

    Args:
        batch: N turns.
        name: the signal.
        low: smallest value that is possible.
        high: largest.

    Raises:
        EpisodeError: a sampled turn has a label outside.
    """
    x = batch.signal(name)
    if low <= x.min(initial=low) and x.max(initial=low) <= high:
        return x
    known, _ = labelled(batch, name)
    bad = np.flatnonzero(known & ((x < low) | (x > high)))
    if len(bad):
        _refuse(batch, name, bad[0], x[bad[0]], low, high)
    return x


def token_label(batch: TurnBatch, name: str, low: float, high: float) -> Array:
    """A signal over tokens whose values lie in a range, [M] float64.

    Args:
        batch: N turns, M sampled tokens.
        name: the signal.
        low: smallest value that is possible.
        high: largest.

    Raises:
        EpisodeError: a token has a label outside.
    """
    x = batch.token_signal(name)
    bad = np.flatnonzero((x < low) | (x > high))
    if len(bad):
        turn = int(np.searchsorted(batch.offsets, bad[0], side="right")) - 1
        _refuse(batch, name, turn, x[bad[0]], low, high)
    return x


def _refuse(
    batch: TurnBatch, name: str, turn: int, value: float, low: float, high: float
) -> NoReturn:
    raise EpisodeError(
        f"signal {name!r} of turn {batch.turn[turn]} of episode {batch.episode[turn]} is "
        f"{value:g}; it must lie in [{low:g}, {high:g}]: {KNOWN[name].meaning}"
    )
