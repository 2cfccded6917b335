"""Tries: sequences that share their first symbols, and what each symbol changed in their mean.

The sequences lie one behind another in columns of integers; equal integers in all columns are one
symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marl_llm.credit import baselines
from marl_llm.credit.segments import Array, Chains, cells, firsts
from marl_llm.credit.tokens import spans

BLOCK = 32  # symbols that two sequences are compared over at first, then 4 times as many, and so on


def alike_first(symbols: Sequence[Array], start: Array, root: Array | None = None) -> Array:
    """The first symbol, in the order of the columns, that ends the same prefix as this one.

    Sequences that begin alike are a family, and are compared with its eldest, to where each parts
    from it. Those that part at one place with one symbol are a family in the next pass, without the
    eldest. So a symbol is looked at about once if it is shared, and not at all if it is not.

    Args:
        symbols: integer columns that make a symbol, each [S].
        start: the first symbol of each sequence, ascending, [Q] int.
        root: sequences of unlike roots share nothing, [Q] int; all may if not said.

    Returns:
        [S] int.
    """
    size = len(symbols[0])
    alike = np.arange(size)
    stop = np.append(start[1:], size)
    roots = () if root is None else (root,)
    family, families = cells((*roots, *(column[start] for column in symbols)), len(start))
    live, known = np.arange(len(start)), np.ones(len(start), dtype=np.int64)
    while True:
        eldest = live[firsts(family, families)][family]
        alike[start[live] + known - 1] = start[eldest] + known - 1
        younger = live != eldest
        live, eldest, known = live[younger], eldest[younger], known[younger]
        if not live.size:
            return alike
        here, there = start[live] + known, start[eldest] + known
        known += _run(symbols, here, there, np.minimum(stop[live] - here, stop[eldest] - there),
                      alike)  # fmt: skip
        longer = start[live] + known < stop[live]
        live, eldest, known = live[longer], eldest[longer], known[longer]
        parting = (column[start[live] + known] for column in symbols)
        family, families = cells((eldest, known, *parting), len(live))
        known += 1


def _run(symbols: Sequence[Array], here: Array, there: Array, most: Array, alike: Array) -> Array:
    """How many symbols are equal from two places on, and note in `alike` which.

    Args:
        symbols: integer columns that make a symbol, each [S].
        here: where the younger ones are, [R] int.
        there: where their eldest is, [R] int.
        most: symbols that can be equal, [R] int.
        alike: written to, [S] int.
    """
    found = np.zeros(len(here), dtype=np.int64)
    pairs, block = np.flatnonzero(most > 0), BLOCK
    while pairs.size:
        count = np.minimum(most[pairs] - found[pairs], block)
        mine = spans(here[pairs] + found[pairs], count)
        theirs = mine + np.repeat((there - here)[pairs], count)
        equal = symbols[0][mine] == symbols[0][theirs]
        for column in symbols[1:]:
            equal &= column[mine] == column[theirs]
        begin = np.cumsum(count) - count
        unlike = np.append(np.flatnonzero(~equal), len(equal))
        equals = np.minimum(unlike[np.searchsorted(unlike, begin)] - begin, count)
        held = spans(begin, equals)
        alike[mine[held]] = theirs[held]
        found[pairs] += equals
        pairs = pairs[(equals == count) & (found[pairs] < most[pairs])]
        block *= 4
    return found


@dataclass(frozen=True, slots=True)
class Steps:
    """What each symbol changed in the mean of the sequences that share its prefix."""

    symbol: Array  # [M] float: V with the symbol minus V without it
    end: Array  # [N] float: the same of the end of a sequence, at its last turn; 0 elsewhere
    sharing: Array  # [M] int: sequences with this prefix


def trie_steps(
    total: Array, root: Array, state: Array, content: Array, offsets: Array, agents: Chains
) -> Steps:
    """Temporal differences on a tree of prefixes.

        V(prefix) = mean of R over the sequences that begin with it
        step = V(prefix with the symbol) - V(prefix without it)

    The sequence of an agent in an episode is, turn after turn, the state it saw and the content of
    its turn, and then an end. What a state says is not the agent's doing, and no step. Where
    nobody branches off, a step is exactly 0.

    Args:
        total: R of the row's agent, [N].
        root: sequences of unlike roots share nothing, [N] int.
        state: what the agent saw before the turn, [N] int.
        content: symbols of the turns, [M] int.
        offsets: symbols of turn i are offsets[i]:offsets[i+1], [N+1]; turns without are left out.
        agents: chains of (episode, agent).
    """
    lengths = np.diff(offsets)
    out = Steps(np.zeros(len(content)), np.zeros(len(lengths)), np.zeros(len(content), np.int64))
    rows = agents.order[lengths[agents.order] > 0]  # [T]: the turns
    if not len(rows):
        return out
    chain = agents.of[rows]
    starts = np.append(True, chain[1:] != chain[:-1])
    ends = np.append(starts[1:], True)
    size = 1 + lengths[rows] + ends
    close = np.cumsum(size)
    open_ = close - size

    kind = np.ones(close[-1], dtype=np.int8)  # content; 0 = a state, 2 = an end
    kind[open_], kind[close[ends] - 1] = 0, 2
    origin, spelled = spans(offsets[rows], lengths[rows]), kind == 1
    value = np.zeros(len(kind), dtype=np.int64)
    value[open_], value[spelled] = state[rows], content[origin]
    alike = alike_first((value, kind), open_[starts], root[rows[starts]])
    through = np.bincount(alike)[alike]
    out.sharing[origin] = through[spelled]

    # V moves only where sequences part, which is where fewer have this prefix than the one before.
    moves = np.append(True, through[1:] != through[:-1])
    moves[open_[starts]] = True
    at = np.flatnonzero(moves)
    turn = np.searchsorted(close, at, side="right")
    prefix, count = cells((alike[at],), len(at))
    pool = baselines.Pool(prefix, np.ones(len(at)), through[at[firsts(prefix, count)]] * 1.0)
    v = baselines.mean(total[rows[turn]], pool)[prefix]
    step = v - np.append(0.0, v[:-1])
    said, over = kind[at] == 1, kind[at] == 2
    out.symbol[(offsets[rows[turn]] + at - open_[turn] - 1)[said]] = step[said]
    out.end[rows[turn[over]]] = step[over]
    return out
