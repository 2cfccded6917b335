"""Checks that estimators make of their own settings, once, when they are built.

Each takes the setting's name as the user wrote it (``grpo.by``), so that the error can be acted on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from marl_llm.credit.batch import KEYS
from marl_llm.errors import ConfigError, nearest

SINGLETON_RULES = ("zero", "raw", "error")
UNITS = ("episode", "agent", "turn", "token")


def within(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside [low, high], or one that is not finite."""
    if not (math.isfinite(value) and low <= value <= high):
        limits = f"in [{low:g}, {high:g}]" if math.isfinite(high) else f"finite and >= {low:g}"
        raise ConfigError(f"{name} must be {limits}, got {value}")


def whole(name: str, value: int, low: int) -> None:
    """Refuse what is no whole number, or one below `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name} must be a whole number >= {low}, got {value!r}")


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a value that is not listed."""
    options = tuple(allowed)
    if value not in options:
        hint = nearest(value, map(str, options)) if isinstance(value, str) else f"one of {options}"
        raise ConfigError(f"{name} has no option {value!r}; {hint}")


def key_names(name: str, by: Iterable[str], allowed: Iterable[str] = KEYS) -> tuple[str, ...]:
    """The columns to pool by as a tuple (a YAML gives a list), each of them known.

    Args:
        name: the setting.
        by: column names; none pools the whole batch.
        allowed: the columns that this estimator can pool by.
    """
    if isinstance(by, str):
        raise ConfigError(f"{name} is a list of columns, got the text {by!r}; write [{by}]")
    names = tuple(by)
    for column in names:
        one_of(name, column, allowed)
    return names
