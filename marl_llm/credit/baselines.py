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
from marl_llm.credit.segments import Array, Chains, cells, extremes, sums
from marl_llm.errors import ConfigError, EpisodeError

Unit = Literal["episode", "agent", "turn", "token"]
Singleton = Literal["zero", "raw", "error"]
WhiteMean = Literal["subtract", "restore", "keep"]


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
) -> Pool:
    """Sort the turns of a batch into cells.

    Args:
        batch: N turns.
        agents: its chains of (episode, agent).
        by: columns whose equal values make a cell; none = the whole batch is one.
        unit: what is counted once. "agent" counts the first sampled turn of an (episode, agent) in
            a cell, "episode" lets the agents of an episode share one count in each cell.
        mix_roles: allow a cell to hold several roles.

    Raises:
        ConfigError: a cell holds several roles and `mix_roles` is off.
    """
    cell, count = cells([batch.column(name) for name in by], len(batch))
    if not mix_roles:
        _refuse_mixed_roles(batch, cell, count, by)
    weight = _unit_weights(batch, agents, cell, unit)
    # The agents of an episode count thirds or sevenths: their sum is a whole number again.
    return Pool(cell, weight, np.rint(sums(weight, cell, count)))


def _refuse_mixed_roles(batch: TurnBatch, cell: Array, count: int, by: Sequence[str]) -> None:
    """Unlike roles are paid on unlike scales: their common mean is nobody's baseline."""
    low, high = extremes(batch.role, cell, count)
    mixed = np.flatnonzero(low < high)
    if len(mixed):
        first, second = (batch.name("role", int(role[mixed[0]])) for role in (low, high))
        raise ConfigError(
            f"by={list(by)} pools roles {first!r} and {second!r} in one cell, whose rewards need "
            "not be on one scale; add 'role' or 'agent' to `by`, or set mix_roles: true"
        )


def _unit_weights(batch: TurnBatch, agents: Chains, cell: Array, unit: Unit) -> Array:
    """How much each row counts, [N] float64."""
    if unit == "token":
        return batch.lengths.astype(np.float64)
    sampled = batch.lengths > 0
    if unit == "turn":
        return sampled.astype(np.float64)
    rows = agents.order[sampled[agents.order]]  # in playing order, so that the first is the first
    pair, _ = cells((cell, agents.of), len(batch))
    weight = np.zeros(len(batch))
    weight[rows[np.unique(pair[rows], return_index=True)[1]]] = 1.0
    if unit == "agent":
        return weight
    shared, count = cells((cell, batch.episode), len(batch))
    return weight / np.maximum(sums(weight, shared, count), 1.0)[shared]


def mean(x: Array, counted: Pool) -> Array:
    """Mean of x in each cell, Σ w x / Σ w, [K] float64; 0 where nothing is counted."""
    count = len(counted.count)
    low, high = _counted_extremes(x, counted)
    total = sums(counted.weight * x, counted.cell, count)
    held = counted.count > 0
    # The mean of n equal floats can miss them by an ulp; clipped, it is that float exactly, and
    # what is centred on it is exactly 0.
    return np.where(held, np.clip(total / np.where(held, counted.count, 1.0), low, high), 0.0)


def std(x: Array, counted: Pool, ddof: int) -> Array:
    """Standard deviation in each cell, √(Σ w (x - mean)² / (Σ w - ddof)), [K] float64.

    Two passes, and exactly 0 where all counted values are equal or too few to tell.
    """
    centred = x - mean(x, counted)[counted.cell]
    squares = sums(counted.weight * centred**2, counted.cell, len(counted.count))
    free = counted.count - ddof
    return np.sqrt(np.where(free > 0, squares / np.where(free > 0, free, 1.0), 0.0))


def centre(x: Array, counted: Pool) -> Array:
    """A_i = x_i - mean of the cell of i, [N]; exactly 0 if the cell counts equal values only."""
    return x - mean(x, counted)[counted.cell]


def standardise(x: Array, counted: Pool, *, ddof: int, epsilon: float) -> Array:
    """A_i = (x_i - mean) / (std + ε) in the cell of i, [N]; exactly 0 where the cell's std is 0."""
    spread = std(x, counted, ddof)[counted.cell]
    out = np.zeros(len(x))
    return np.divide(centre(x, counted), spread + epsilon, out=out, where=spread > 0)


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
    return counted.count[counted.cell] < min_count


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
        A, [N]. Exactly 0 everywhere if all counted values are equal.
    """
    counted = x[weight > 0]
    total = weight.sum()
    if total <= ddof or np.ptp(counted) == 0:  # the std of equal floats can be 1e-17
        return np.zeros(len(x))
    middle = np.sum(weight * x) / total
    variance = np.sum(weight * (x - middle) ** 2) / (total - ddof)
    scaled = (x if shift_mean == "keep" else x - middle) / np.sqrt(variance + epsilon)
    return scaled + middle if shift_mean == "restore" else scaled


def _counted_extremes(x: Array, counted: Pool) -> tuple[Array, Array]:
    """Smallest and largest counted x of each cell, each [K]."""
    rows = counted.weight > 0
    return extremes(x[rows], counted.cell[rows], len(counted.count))


def pool_statistics(x: Array, counted: Pool) -> dict[str, float]:
    """How many cells there are, and how many carry no signal: alone, or with equal values only."""
    low, high = _counted_extremes(x, counted)
    return {
        "groups": float(np.sum(counted.count > 0)),
        "singletons": float(np.sum(counted.count == 1)),
        "zero_std_groups": float(np.sum((counted.count > 1) & (low == high))),
    }
