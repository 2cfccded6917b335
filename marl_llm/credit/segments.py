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
LARGEST_TABLE = 2**22  # codes that are looked up though few of them are used


def cells(columns: Sequence[Array], n: int) -> tuple[Array, int]:
    """Number the distinct combinations of some integer columns.

    Args:
        columns: integer keys, each [N]; none at all puts every row in one cell.
        n: N.

    Returns:
        The cell of each row, [N] int64 in 0..K-1, in the order of the sorted keys; and K. No rows,
        no cells: K is then 0.
    """
    code, span = np.zeros(n, dtype=np.int64), 1
    if n == 0:
        return code, 0
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        digit, width = column.astype(np.int64), high - low + 1
        if low != 0:
            digit -= low
        if span == 1:
            code, span = digit, width
            continue
        if span * width > LARGEST_CODE:
            (code, span), (digit, width) = _dense(code, span), _dense(digit, width)
        code *= width
        code += digit
        span *= width
    return _dense(code, span)


def _dense(code: Array, span: int) -> tuple[Array, int]:
    """Renumber codes in 0..span-1 without gaps, keeping their order; how many there are."""
    n = len(code)
    if span > max(4 * n, min(64 * n, LARGEST_TABLE)):
        return _dense_by_sorting(code)
    used = np.zeros(span, dtype=bool)  # looking up beats sorting
    used[code] = True
    values = np.flatnonzero(used)
    if len(values) == span:
        return code, span
    place = np.empty(span, dtype=np.int64)
    place[values] = np.arange(len(values))
    return place[code], len(values)


def _dense_by_sorting(code: Array) -> tuple[Array, int]:
    some = code[::32]
    falls = np.count_nonzero(some[1:] < some[:-1])
    # Rows often stand nearly in order, which a stable sort makes use of.
    order = np.argsort(code, kind="stable" if 4 * falls < len(some) else "quicksort")
    number = np.zeros(len(code), dtype=np.int64)
    in_order = code[order]
    np.cumsum(in_order[1:] != in_order[:-1], out=number[1:])
    dense = np.empty(len(code), dtype=np.int64)
    dense[order] = number
    return dense, int(number[-1]) + 1


def firsts(cell: Array, count: int) -> Array:
    """The first row of each cell, [K] int; N for an empty cell."""
    first = np.full(count, len(cell))
    first[cell[::-1]] = np.arange(len(cell))[::-1]  # of several rows the one written last stays
    return first


def disagreeing(x: Array, cell: Array, count: int) -> Array:
    """Rows whose x is not that of the last row of their cell, [R] int: none if all cells agree."""
    last = np.empty(count, dtype=x.dtype)
    last[cell] = x
    return np.flatnonzero(last[cell] != x)


def sums(x: Array, cell: Array, count: int) -> Array:
    """Sum of x in each cell, [K] float64; an empty cell has 0."""
    if count == 1:  # adding up in one bin is slow: each addition waits for the last
        return np.array([np.sum(x, dtype=np.float64)])
    return np.bincount(cell, x, minlength=count).astype(np.float64, copy=False)


def extremes(x: Array, cell: Array, count: int) -> tuple[Array, Array]:
    """Smallest and largest x in each cell, each [K] float64; an empty cell has +inf and -inf."""
    x = np.asarray(x, dtype=np.float64)  # of one type with the result, or `at` is slow
    if count == 1:
        return np.array([x.min(initial=np.inf)]), np.array([x.max(initial=-np.inf)])
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
    of, count = cells(keys, len(rank))
    return _linked(of, count, _ordered(of, count, rank))


def chains_as_they_stand(cell: Array, count: int) -> Chains:
    """The rows of each cell as a chain, in the order of the batch.

    Args:
        cell: [N] int in 0..K-1.
        count: K.
    """
    # Numbers of 16 bits are sorted by counting.
    small = cell.astype(np.uint16) if count <= 2**16 else cell
    return _linked(cell, count, np.argsort(small, kind="stable"))


def turned(links: Chains) -> Chains:
    """The same chains from their ends to their starts."""
    return Chains(links.of, links.count, links.order[::-1], links.before, links.after)


def _linked(of: Array, count: int, order: Array) -> Chains:
    """Chains from the chain of each row, and all rows in order."""
    length = np.bincount(of, minlength=count)
    starts = np.cumsum(length) - length
    before = np.empty(len(of), dtype=np.int64)
    before[order] = np.arange(len(of)) - np.repeat(starts, length)
    return Chains(of, count, order, (length - 1)[of] - before, before)


def _ordered(of: Array, count: int, rank: Array) -> Array:
    """Rows by chain, in a chain by rank, equal ranks in the order of the batch, [N] int."""
    n = len(rank)
    if n and rank.dtype.kind in "iu":
        low, high = int(rank.min()), int(rank.max())
        if count * (high - low + 1) <= LARGEST_CODE:
            # Rows mostly stand in order already, and a stable sort of one key makes use of that.
            return np.argsort(of * (high - low + 1) + (rank - low), kind="stable")
    return np.lexsort((rank, of))


def following(x: Array, links: Chains, end: Array | float) -> Array:
    """The x of the next row of the same chain, [N] float64.

    Args:
        x: [N].
        links: the chains of the N rows.
        end: what follows the last row of a chain, [N] (read at those rows only) or one number.
    """
    ahead = np.empty(len(x))
    ahead[links.order[:-1]] = x[links.order[1:]]
    return np.where(links.after > 0, ahead, end)


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
    # What a row's y decays by on its way over all that y covers: 0 behind the end of a chain.
    reached = np.where(links.after > 0, decay, 0.0)[order]
    reach, longest = 1, int(links.after.max(initial=0))
    while reach <= longest:
        y[:-reach] += reached[: len(y) - reach] * y[reach:]
        reached = reached[:-reach] * reached[reach:]
        reach *= 2
    out = np.empty_like(y)
    out[order] = y
    return out


def first_of(rows: Array, links: Chains) -> Array:
    """The first of the chosen rows of every chain, [N] bool.

    Args:
        rows: which are chosen, [N] bool.
        links: the chains of the N rows.
    """
    if np.all(rows):
        return links.before == 0
    first = np.full(links.count, len(rows))
    np.minimum.at(first, links.of[rows], links.before[rows])
    return rows & (links.before == first[links.of])


def last_of(rows: Array, links: Chains) -> Array:
    """The last of the chosen rows of every chain, [N] bool.

    Args:
        rows: which are chosen, [N] bool.
        links: the chains of the N rows.
    """
    last = np.full(links.count, -1)
    np.maximum.at(last, links.of[rows], links.before[rows])
    return rows & (links.before == last[links.of])
