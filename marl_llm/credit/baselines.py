"""Baselines: what to compare a return with.

Two questions are always answered apart: **over which keys** (`by`: rows with equal keys form a
cell) and **what is counted once** (`unit`: an episode, an agent of an episode, a turn, a token). A
`Pool` is the answer to both; the formulas below take values and a pool. Turns that sampled nothing
are counted nowhere: their reward reaches the turns before them through the returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import (
    Array,
    Chains,
    cells,
    disagreeing,
    extremes,
    first_of,
    firsts,
    sums,
)
from marl_llm.errors import ConfigError, EpisodeError

Unit = Literal["episode", "agent", "turn", "token"]
Singleton = Literal["zero", "raw", "error"]
WhiteMean = Literal["subtract", "restore", "keep"]

# Values closer than this, as a share of their size, are equal: .1 + .2 + .3 and .3 + .2 + .1 differ
# in the last bit, and that difference over itself would be a whole standard deviation.
ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows sorted into cells, and how much each counts in its cell's statistics."""

    cell: Array  # [N] int: cell of each row
    weight: Array  # [N] float: 0 = gets a baseline but is not counted
    count: Array  # [K] float: units counted in each cell, a whole number


def pool(
    batch: TurnBatch,
    agents: Chains,
    by: Sequence[str],
    unit: Unit,
    *,
    mix_roles: bool = False,
    known: Array | None = None,
) -> Pool:
    """Sort the turns of a batch into cells.

    Args:
        batch: N turns.
        agents: its chains of (episode, agent).
        by: columns whose equal values make a cell; none = the whole batch is one.
        unit: what is counted once. "agent" counts the first sampled turn of an (episode, agent) in
            a cell, "episode" lets the agents of an episode share one count in each cell.
        mix_roles: allow a cell to hold several roles.
        known: the turns that can be counted, [N] bool; all that sampled if not said.

    Raises:
        ConfigError: a cell holds several roles and `mix_roles` is off.
    """
    cell, count = cells([batch.column(name) for name in by], len(batch))
    if not mix_roles:
        refuse_mixed_roles(batch, slice(None), cell, count, by)
    counted = batch.lengths > 0 if known is None else known & (batch.lengths > 0)
    weight = _unit_weights(batch, agents, cell, unit, counted)
    # The agents of an episode count thirds or sevenths: their sum is a whole number again.
    rows = _held(weight)
    return Pool(cell, weight, np.rint(sums(weight[rows], cell[rows], count)))


def counting(counted: Pool, rows: Array) -> Pool:
    """The same cells, in which only some rows count: those whose value is known, say.

    Args:
        counted: cells, with "turn" or "token" as the unit.
        rows: which rows count, [N] bool.
    """
    weight = np.where(rows, counted.weight, 0.0)
    return Pool(counted.cell, weight, np.rint(sums(weight, counted.cell, len(counted.count))))


def refuse_mixed_roles(
    batch: TurnBatch, rows: Array | slice, cell: Array, count: int, by: Sequence[str]
) -> None:
    """Unlike roles are paid on unlike scales: their common mean is nobody's baseline.

    Args:
        batch: N turns.
        rows: some of them, [R] int.
        cell: the cell of each of these, [R] int in 0..K-1.
        count: K.
        by: the columns whose equal values make a cell.

    Raises:
        ConfigError: a cell holds several roles.
    """
    if "role" in by:
        return
    roles = batch.role[rows]
    if len(disagreeing(roles, cell, count)):
        low, high = extremes(roles, cell, count)
        mixed = np.flatnonzero(low < high)
        first, second = (batch.name("role", int(role[mixed[0]])) for role in (low, high))
        more = "'role'" if "agent" in by else "'role' or 'agent'"  # an agent may have several
        raise ConfigError(
            f"by={list(by)} pools roles {first!r} and {second!r} in one cell, whose rewards need "
            f"not be on one scale; add {more} to `by`, or set mix_roles: true"
        )


def _unit_weights(
    batch: TurnBatch, agents: Chains, cell: Array, unit: Unit, counted: Array
) -> Array:
    """How much each row counts, [N] float64; only `counted` ones do."""
    if unit == "token":
        return np.where(counted, batch.lengths, 0).astype(np.float64)
    if unit == "turn":
        return counted.astype(np.float64)
    if len(disagreeing(cell, agents.of, agents.count)):  # agents that are in several cells
        rows = agents.order[counted[agents.order]]  # in playing order
        weight = np.zeros(len(batch))
        weight[rows[firsts(*cells((cell[rows], agents.of[rows]), len(rows)))]] = 1.0
    else:
        weight = first_of(counted, agents).astype(np.float64)
    if unit == "agent":
        return weight
    shared, count = cells((cell, batch.episode), len(batch))
    return weight / np.maximum(sums(weight, shared, count), 1.0)[shared]


def mean(x: Array, counted: Pool) -> Array:
    """Mean of x in each cell, Σ w x / Σ w, [K] float64; 0 where nothing is counted."""
    rows = _held(counted.weight)
    return _mean(x, counted, rows, *_extremes(x, counted, rows))


def _mean(x: Array, counted: Pool, rows: Array | slice, low: Array, high: Array) -> Array:
    total = sums(counted.weight[rows] * x[rows], counted.cell[rows], len(counted.count))
    held = counted.count > 0
    # The mean of n equal floats can miss them by an ulp; clipped, it is that float exactly, and
    # what is centred on it is exactly 0.
    return np.where(held, np.clip(total / np.where(held, counted.count, 1.0), low, high), 0.0)


def std(x: Array, counted: Pool, ddof: int) -> Array:
    """Standard deviation in each cell, √(Σ w (x - mean)² / (Σ w - ddof)), [K] float64.

    Two passes, and exactly 0 where all counted values are equal, but for rounding, or too few to
    tell.
    """
    return _moments(x, counted, ddof)[1]


@dataclass(frozen=True, slots=True)
class Compared:
    """Values against those of their cells. Made by `compare`."""

    centred: Array  # [N]: what `centre` says
    scaled: Array  # [N]: what `standardise` says
    std: Array  # [K]: what `std` says
    statistics: dict[str, float]  # what `pool_statistics` says


def compare(x: Array, counted: Pool, *, ddof: int, epsilon: float) -> Compared:
    """All that is to be said of values in their cells, which costs less than one by one."""
    centred, deviation, low, high = _moments(x, counted, ddof)
    divisor = np.where(deviation > 0, deviation + epsilon, np.inf)
    return Compared(
        centred,
        centred / divisor[counted.cell],
        deviation,
        _pool_statistics(counted, low, high),
    )


def _moments(x: Array, counted: Pool, ddof: int) -> tuple[Array, Array, Array, Array]:
    """Distances from the mean, [N]; and std, smallest and largest of each cell, [K] each."""
    rows = _held(counted.weight)
    low, high = _extremes(x, counted, rows)
    centred = x - _mean(x, counted, rows, low, high)[counted.cell]
    squared = counted.weight[rows] * centred[rows] ** 2
    squares = sums(squared, counted.cell[rows], len(counted.count))
    free = counted.count - ddof
    told = (free > 0) & ~_alike(low, high)
    deviation = np.sqrt(np.where(told, squares / np.where(told, free, 1.0), 0.0))
    return centred, deviation, low, high


def centre(x: Array, counted: Pool) -> Array:
    """A_i = x_i - mean of the cell of i, [N]; exactly 0 if the cell counts equal values only."""
    return x - mean(x, counted)[counted.cell]


def standardise(x: Array, counted: Pool, *, ddof: int, epsilon: float) -> Array:
    """A_i = (x_i - mean) / (std + ε) in the cell of i, [N]; exactly 0 where the cell's std is 0."""
    return compare(x, counted, ddof=ddof, epsilon=epsilon).scaled


def leave_one_out(x: Array, counted: Pool) -> Array:
    """A_i = x_i - mean of the others in the cell of i = n / (n - 1) · (x_i - mean), [N].

    Exactly 0 if the cell counts equal values only, or one.
    """
    n = counted.count
    return centre(x, counted) * (n / np.maximum(n - 1.0, 1.0))[counted.cell]


def centre_on_others(x: Array, counted: Pool, episode: Array) -> tuple[Array, Array]:
    """A_i = x_i - mean over the cell of i without the whole episode of i.

    The own episode is left out as a whole, since what an agent does moves the returns of all its
    turns and of everybody else in it.

    Args:
        x: [N].
        counted: cells and what counts in them.
        episode: [N] int.

    Returns:
        A, [N]; and the rows for which nobody else is counted, [N] bool: A is 0 there.
    """
    count = len(counted.count)
    own, owns = cells((counted.cell, episode), len(x))
    weighted = counted.weight * x
    total = sums(weighted, counted.cell, count)[counted.cell] - sums(weighted, own, owns)[own]
    others = counted.count[counted.cell] - np.rint(sums(counted.weight, own, owns))[own]
    low, high = _counted_extremes(x, counted)
    held = others > 0
    rest = np.where(held, total / np.where(held, others, 1.0), 0.0)
    # As in `mean`: equal values must leave exactly themselves.
    baseline = np.clip(rest, low[counted.cell], high[counted.cell], out=x.copy(), where=held)
    return x - baseline, ~held


def alone(counted: Pool, min_count: int = 2) -> Array:
    """Rows whose cell counts fewer than `min_count` units, [N] bool."""
    return (counted.count < min_count)[counted.cell]


def settle(advantage: Array, raw: Array, few: Array, rule: Singleton, sampled: Array) -> Array:
    """Apply the rule for rows that have nobody to be compared with.

    Args:
        advantage: [N], right where `few` is False.
        raw: what rule "raw" puts there (baseline 0), [N].
        few: the rows in question, [N] bool.
        rule: "zero", "raw" or "error".
        sampled: rows with sampled tokens, [N] bool; the others are nobody's error.

    Raises:
        EpisodeError: rule "error", and there are such rows.
    """
    if rule == "error" and np.any(few & sampled):
        raise EpisodeError(
            f"{int(np.sum(few & sampled))} turns have nobody to be compared with; make groups "
            "larger, pool over fewer columns, or set singleton: zero"
        )
    if not np.any(few):
        return advantage
    return np.where(few, raw if rule == "raw" else 0.0, advantage)


def whiten(
    x: Array,
    weight: Array,
    *,
    ddof: int,
    epsilon: float,
    shift_mean: WhiteMean = "subtract",
) -> Array:
    """Divide by the standard deviation over everything, with weights.

        A = (x - m) / √(v + ε)            "subtract"
        A = (x - m) / √(v + ε) + m        "restore", the usual masked whitening without a shift
        A = x / √(v + ε)                  "keep": 0 stays 0

    Args:
        x: [N].
        weight: how often each x is counted, [N]; the token counts make it a whitening over tokens.
        ddof: 0 or 1, subtracted from the total weight in v.
        epsilon: added to the variance.
        shift_mean: which of the three.

    Returns:
        A, [N]. Exactly 0 everywhere if all counted values are equal, but for rounding.
    """
    total, held = weight.sum(), x[_held(weight)]
    if total <= ddof or _alike(held.min(), held.max()):
        return np.zeros(len(x))
    middle = np.sum(weight * x) / total
    centred = x - middle
    squares = centred**2
    squares *= weight
    variance = squares.sum() / (total - ddof)
    scaled = np.divide(x if shift_mean == "keep" else centred, np.sqrt(variance + epsilon), centred)
    return scaled + middle if shift_mean == "restore" else scaled


def _alike(low: Array, high: Array) -> Array:
    """Whether two values, or the smallest and the largest of many, are equal but for rounding."""
    return high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))


def _counted_extremes(x: Array, counted: Pool) -> tuple[Array, Array]:
    """Smallest and largest counted x of each cell, each [K]."""
    return _extremes(x, counted, _held(counted.weight))


def _held(weight: Array) -> Array | slice:
    """The rows that count."""
    some = weight > 0
    return slice(None) if np.all(some) else np.flatnonzero(some)


def _extremes(x: Array, counted: Pool, rows: Array | slice) -> tuple[Array, Array]:
    return extremes(x[rows], counted.cell[rows], len(counted.count))


def pool_statistics(x: Array, counted: Pool) -> dict[str, float]:
    """How many cells there are, and how many carry no signal: alone, or with equal values only."""
    return _pool_statistics(counted, *_counted_extremes(x, counted))


def _pool_statistics(counted: Pool, low: Array, high: Array) -> dict[str, float]:
    return {
        "groups": float(np.sum(counted.count > 0)),
        "singletons": float(np.sum(counted.count == 1)),
        "zero_std_groups": float(np.sum((counted.count > 1) & _alike(low, high))),
    }
