"""Timing things against each other on a machine that does other work too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

Rates = Mapping[str, list[float]]  # tokens per second, one number per round


@dataclass(slots=True)
class Stopwatch:
    """Seconds of what ran inside `running`."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


Work = Callable[[Stopwatch], int]  # runs the watch where it counts, returns its tokens


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio over the rounds."""

    median: float
    least: float
    most: float


def interleaved(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each work in each round, after one round that does not count.

    In every other round the order is reversed, so that nobody always goes first.
    """
    rates: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        names = list(works)[:: 1 if number % 2 else -1]
        for name in names:
            watch = Stopwatch()
            tokens = works[name](watch)
            if number:
                rates[name].append(tokens / watch.seconds)
    return rates


def spread(rates: Rates, over: str, under: str) -> Spread:
    """The ratio of two works: each round compares what was timed together."""
    ratios = [a / b for a, b in zip(rates[over], rates[under], strict=True)]
    return Spread(statistics.median(ratios), min(ratios), max(ratios))


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Median seconds of a call, after one that does not count."""
    took = []
    for _ in range(rounds + 1):
        watch = Stopwatch()
        with watch.running():
            work()
        took.append(watch.seconds)
    return statistics.median(took[1:])


class Took(NamedTuple):
    """Seconds of a call."""

    clock: float
    process: float  # what the processor did for us, on all threads


def took(work: Callable[[], object]) -> Took:
    """Seconds of one call."""
    clock, process = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - clock, time.process_time() - process)
