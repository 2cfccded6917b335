"""The values in a text, and how well they fit those that were wanted.

A report is free text. Its values are its numbers, its codes (a letter and digits) and the words
that stand in tables; other words do not count. Where rows are wanted, a value belongs to the code
before it: "w12 210050; w31 180050" and "w12 earns 210050 and w31 earns 180050" are the same two
rows, and "w12, w31: 210050, 180050" is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from marl_llm.games.departments.world import TOWNS, TRADES

Items = frozenset[tuple[str, str]]  # (code, "") for a row; (code, value) for a value in it

NEAR = 0.01  # numbers that differ by no more are the same answer
_VALUE = re.compile(r"[a-z]+[0-9]+|-?[0-9]+(?:\.[0-9]+)?|[a-z]+")
_NULL = frozenset(("null", "none", "unknown"))
_WORDS = frozenset((*TRADES, *TOWNS))


def values(text: str) -> list[str]:
    """The values in a text, in order, each in the one form that it is compared in."""
    found = []
    for word in _VALUE.findall(text.lower()):
        if not word.isalpha():
            found.append(word if word[0].isalpha() else number(float(word)))
        elif word in _NULL:
            found.append("null")
        elif word in _WORDS:
            found.append(word)
    return found


def number(value: float) -> str:
    """A number in the form that it is compared in."""
    return f"{value:.10g}"


def written(cell: Any) -> str:
    """A cell of a table in the form that it is compared in."""
    if cell is None:
        return "null"
    return cell if isinstance(cell, str) else number(cell)


def wanted(rows: Iterable[Sequence[Any]], keyed: bool) -> Items:
    """What rows amount to; `keyed` says that each begins with its code."""
    found = set()
    for row in rows:
        cells = [written(cell) for cell in row]
        key = cells.pop(0) if keyed else ""
        found |= {(key, "")} if keyed else set()
        found |= {(key, cell) for cell in cells}
    return frozenset(found)


def reported(text: str, letter: str) -> Items:
    """What a report amounts to, where codes with this letter begin a row."""
    key, found = "", set()
    for value in values(text):
        if value[0] == letter and value[-1].isdigit():
            key = value
            found.add((key, ""))
        elif key or value != "null":  # nothing at all is reported as none
            found.add((key, value))
    return frozenset(found)


def f1(found: Items, want: Items) -> float:
    """Harmonic mean of the share of what was found that is wanted, and the other way round."""
    if not found and not want:
        return 1.0
    return 2 * len(found & want) / (len(found) + len(want))


def answers(text: str, truth: str | float) -> bool:
    """Whether a text gives the truth and no other value; numbers may differ by `NEAR`."""
    found = set(values(text))
    if len(found) != 1:
        return False
    (value,) = found
    if isinstance(truth, str):
        return value == truth
    try:
        return abs(float(value) - truth) <= NEAR + 1e-9
    except ValueError:
        return False
