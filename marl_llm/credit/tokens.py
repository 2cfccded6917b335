"""Operations on the sampled tokens inside each turn: flat columns [M] with `offsets` [N+1].

A turn without tokens is a span of length 0 everywhere. Nothing here sees past the end of a turn but
`scan_tokens_back`, the recursion that runs on along a chain of turns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from marl_llm.credit.segments import Array, Chains, chains, following, scan_back

PIECE = 128  # tokens that `scan_tokens_back` walks through one by one, in all turns at once


def turn_of(offsets: Array) -> Array:
    """The turn of each token, [M] int."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def places(offsets: Array) -> Array:
    """The place of each token in its turn, from 0, [M] int."""
    place = np.arange(offsets[-1])
    place -= np.repeat(offsets[:-1], np.diff(offsets))
    return place


def spans(start: Array, count: Array) -> Array:
    """The numbers start, start + 1, ..., `count` of them, for each pair, one behind another."""
    number = np.arange(count.sum())
    number += np.repeat(start - (np.cumsum(count) - count), count)
    return number


def blocks(offsets: Array, size: int) -> Iterator[tuple[int, int]]:
    """Cut the turns into blocks of about so many tokens, for what needs many columns at once.

    Yields:
        The first turn of a block, and the one behind its last.
    """
    turns = len(offsets) - 1
    first = 0
    while first < turns:
        behind = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        behind = min(max(behind, first + 1), turns)
        yield first, behind
        first = behind


def sum_turns(x: Array, offsets: Array) -> Array:
    """Sum over each turn's tokens, [N] float64; 0 for a turn without tokens.

    Each turn is summed by itself, so that none sees the rounding of another.
    """
    return _reduce(np.add, x, offsets, 0.0)


def mean_turns(x: Array, offsets: Array) -> Array:
    """Mean over each turn's tokens, [N] float64; 0 for a turn without tokens."""
    return sum_turns(x, offsets) / np.maximum(np.diff(offsets), 1)


def max_turns(x: Array, offsets: Array) -> Array:
    """Largest of each turn's tokens, [N] float64; -inf for a turn without tokens."""
    return _reduce(np.maximum, x, offsets, -np.inf)


def min_turns(x: Array, offsets: Array) -> Array:
    """Smallest of each turn's tokens, [N] float64; +inf for a turn without tokens."""
    return _reduce(np.minimum, x, offsets, np.inf)


def _reduce(operation: np.ufunc, x: Array, offsets: Array, empty: float) -> Array:
    out = np.full(len(offsets) - 1, empty)
    held = np.flatnonzero(np.diff(offsets) > 0)
    if len(held):
        out[held] = operation.reduceat(np.asarray(x, dtype=np.float64), offsets[held])
    return out


def spread(x: Array, offsets: Array) -> Array:
    """The value of each token's turn, [M].

    Args:
        x: one value per turn, [N].
        offsets: [N+1].
    """
    return np.repeat(x, np.diff(offsets))


def sum_ahead(x: Array, offsets: Array, decay: float = 1.0) -> Array:
    """Discounted sum from each token to the end of its turn, itself included.

        y_t = x_t + decay · y_{t+1},   y = x at a turn's last token

    Args:
        x: [M].
        offsets: [N+1].
        decay: per sampled token.

    Returns:
        y, [M] float64.
    """
    turns = np.arange(len(offsets) - 1)
    alone = Chains(turns, len(turns), turns, np.zeros_like(turns), np.zeros_like(turns))
    return scan_tokens_back(x, decay, offsets, alone)


def scan_tokens_back(
    x: Array, decay: Array | float, offsets: Array, links: Chains, *, out: Array | None = None
) -> Array:
    """A first-order linear recursion over the tokens of every chain of turns, from its end on.

        y_t = x_t + decay_t · y_{t+1},   y = x at the chain's last token

    The token after a turn's last one is the first of the chain's next turn that has any. Turns are
    cut into pieces of at most `PIECE` tokens. Walking through all pieces at once gives what each is
    worth at its first token; a recursion over pieces gives what lies behind each; a second walk
    starts there. So one long turn costs what many short ones do, and only y is as long as x.

    Args:
        x: [M].
        decay: per sampled token, one number or one per turn, [N]; that of a chain's last token is
            not used.
        offsets: tokens of turn i are offsets[i]:offsets[i+1], [N+1].
        links: the chains of the N turns.
        out: where y is put, [M] float64; it may be x.

    Returns:
        y, [M] float64.
    """
    x = np.asarray(x, dtype=np.float64)
    turn, size, last = _pieces(offsets, links)
    rate = np.broadcast_to(np.asarray(decay, dtype=np.float64), (len(offsets) - 1,))[turn]
    # Longest first, so that those that have a d-th token from their end are the first few.
    order = np.argsort(-size, kind="stable")
    longer = np.cumsum(np.bincount(size)[::-1])[::-1][1:]
    walk = rate[order], last[order], longer
    worth = np.empty(len(size))
    worth[order] = _walk_back(x, *walk, carry=np.zeros(len(size)))
    pieces = chains((links.of[turn],), np.arange(len(size)))
    behind = following(scan_back(worth, rate**size, pieces), pieces, 0.0)
    y = np.empty_like(x) if out is None else out
    _walk_back(x, *walk, carry=behind[order], out=y)
    return y


def _pieces(offsets: Array, links: Chains) -> tuple[Array, Array, Array]:
    """The pieces of all turns, chain after chain: their turn, their size, their last token."""
    lengths = np.diff(offsets)[links.order]
    count = -(-lengths // PIECE)
    turn = np.repeat(links.order, count)
    nth = np.arange(len(turn)) - np.repeat(np.cumsum(count) - count, count)
    start = offsets[turn] + PIECE * nth
    stop = np.minimum(start + PIECE, offsets[turn + 1])
    return turn, stop - start, stop - 1


def _walk_back(
    x: Array, rate: Array, last: Array, longer: Array, carry: Array, out: Array | None = None
) -> Array:
    """Walk through all pieces at once, each from its end to its start; the last y of each, [P].

    Args:
        x: [M].
        rate: decay in each piece, [P].
        last: the last token of each piece, the longest pieces first, [P].
        longer: how many pieces have more than d tokens, d = 0, 1, ...
        carry: the y behind each piece, [P]; overwritten.
        out: where every y is put, [M].
    """
    for back, held in enumerate(longer.tolist()):
        at = last[:held] - back
        carry[:held] *= rate[:held]
        carry[:held] += x[at]
        if out is not None:
            out[at] = carry[:held]
    return carry
