"""Segment operations: sums over cells of equal keys, and recursions along chains of turns.

Everything here is arrays in, arrays out, and knows nothing of rewards or roles. A **cell** is the
set of rows with equal keys. A **chain** is a cell whose rows have an order, such as the turns of
one agent in one episode. Rows may stand in any order in the batch, chains may be interleaved, and
no function loops over rows in Python. Nothing leaks from one cell or chain into another, not even a
rounding error: equal chains give bitwise equal results wherever they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

LARGEST_CODE = 2**62  # codes stay below it, so that int64 never overflows


def cells(columns: Sequence[Array], n: int) -> tuple[Array, int]:
    """Number the distinct combinations of some integer columns.

    Args:
        columns: integer keys, each [N]; none at all puts every row in one cell.
        n: N.

    Returns:
        The cell of each row, [N] int64 in 0..K-1, in the order of the sorted keys; and K. No rows,
        no cells: K is then 0.
    """
    code = np.zeros(n, dtype=np.int64)
    if n == 0:
        return code, 0
    span = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        digit, width = column.astype(np.int64) - low, high - low + 1
        if span * width > LARGEST_CODE:
            (code, span), (digit, width) = _dense(code, span), _dense(digit, width)
        code = code * width + digit
        span *= width
    return _dense(code, span)


def _dense(code: Array, span: int) -> tuple[Array, int]:
    """Renumber codes in 0..span-1 without gaps, keeping their order; how many there are."""
    if span <= 4 * len(code):  # counting beats sorting
        used = np.bincount(code, minlength=span) > 0
        return (np.cumsum(used) - 1)[code], int(used.sum())
    values, dense = np.unique(code, return_inverse=True)
    return dense, len(values)


def sums(x: Array, cell: Array, count: int) -> Array:
    """Sum of x in each cell, [K] float64; an empty cell has 0."""
    return np.bincount(cell, x, minlength=count).astype(np.float64)


def extremes(x: Array, cell: Array, count: int) -> tuple[Array, Array]:
    """Smallest and largest x in each cell, each [K] float64; an empty cell has +inf and -inf."""
    x = np.asarray(x, dtype=np.float64)  # of one type with the result, or `at` is slow
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, cell, x)
    np.maximum.at(high, cell, x)
    return low, high


@dataclass(frozen=True, slots=True)
class Chains:
    """Which rows follow which. Made by `chains`."""

    of: Array  # [N] int: the chain of each row
    count: int  # how many chains there are
    order: Array  # [N] int: all rows, chain after chain, each from its start to its end
    after: Array  # [N] int: how many rows follow this one in its chain; 0 = the last
    before: Array  # [N] int: how many rows precede this one in its chain; 0 = the first


def chains(keys: Sequence[Array], rank: Array) -> Chains:
    """Rows with equal keys, ordered by rank, equal ranks in the order of the batch.

    Args:
        keys: integer columns, each [N].
        rank: what orders the rows of a chain, [N].
    """
    n = len(rank)
    of, count = cells(keys, n)
    order = np.lexsort((rank, of))
    ends = np.cumsum(np.bincount(of, minlength=count))
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    starts = np.concatenate(([0], ends[:-1])) if count else ends
    return Chains(of, count, order, ends[of] - 1 - place, place - starts[of])


def following(x: Array, links: Chains, end: Array | float) -> Array:
    """The x of the next row of the same chain, [N] float64.

    Args:
        x: [N].
        links: the chains of the N rows.
        end: what follows the last row of a chain, [N] (read at those rows only) or one number.
    """
    x = np.asarray(x, dtype=np.float64)
    out = np.empty(len(x))
    out[links.order] = np.append(x[links.order][1:], 0.0) if len(x) else x
    return np.where(links.after > 0, out, end)


def scan_back(x: Array, decay: Array | float, links: Chains) -> Array:
    """A first-order linear recursion along every chain, from its end to its start.

        y_k = x_k + decay_k · y_{k+1},   y = x at the last row

    By doubling: after the pass with reach d, y_k covers the 2d rows from k on. That takes log2 of
    the longest chain passes over the rows, and, unlike differences of one long cumulative sum, no
    chain sees the rounding of another.

    Args:
        x: [N].
        decay: [N] or one number; that of a chain's last row is not used.
        links: the chains of the N rows.

    Returns:
        y, [N] float64.
    """
    order = links.order
    y = np.asarray(x, dtype=np.float64)[order]
    reached = np.array(np.broadcast_to(np.asarray(decay, dtype=np.float64), y.shape)[order])
    after = links.after[order]
    reach = 1
    while (rows := np.flatnonzero(after >= reach)).size:
        y[rows] += reached[rows] * y[rows + reach]
        reached[rows] *= reached[rows + reach]
        reach *= 2
    out = np.empty_like(y)
    out[order] = y
    return out
