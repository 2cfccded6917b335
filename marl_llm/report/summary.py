"""The result of a run in a few numbers: ``summary.json``, and what changed from before to after."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from marl_llm.errors import CheckpointError, ConfigError
from marl_llm.report.metrics import Row, Shown, replace_text, series, shown

SUMMARY_FILE = "summary.json"
HEADLINES = ("nash_conv", "score", "success")
# Two intervals decide between the first three. Without them chance may have moved what is sampled,
# and only the direction is said; "" = neither direction is better.
Verdict = Literal["better", "worse", "no difference seen", "lower", "higher", "same", ""]
REQUIRED = ("experiment", "seed", "updates", "seconds")


class Range(TypedDict):
    """A metric over a run: its first, last and best value, and the update of the best."""

    first: float
    last: float
    best: float
    best_update: int


class Summary(TypedDict, total=False):
    """What ``summary.json`` holds; the first four are always there."""

    experiment: str
    seed: int
    updates: int  # finished
    seconds: float  # of training, installation and cold start of the interpreter not counted
    status: str  # "running", "finished" or "stopped"
    game: str
    nash_conv: Range
    score: Range
    success: Range  # on held-out episodes, as sampled
    success_greedy: Range
    forfeits: Range  # share of episodes
    tokens_per_second: float  # sampled, end to end
    peak_memory_gb: float
    alarms: list[dict[str, str | int]]  # those that hold, as `alarms.Alarm`
    references: Mapping[str, float]  # lines to compare the headline with, e.g. uniform play


def metric_range(
    rows: Sequence[Row], key: str, better: Literal["lower", "higher"] = "lower"
) -> Range | None:
    """First, last and best value of a metric, None when it was never logged.

    Args:
        rows: as `metrics.read` gives them.
        key: `part/role/quantity`.
        better: which end is best; of equal bests the earliest counts.
    """
    updates, values = series(rows, key)
    if not values:
        return None
    best = min(values) if better == "lower" else max(values)
    return Range(
        first=values[0], last=values[-1], best=best, best_update=updates[values.index(best)]
    )


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> Path:
    """Write ``summary.json`` in one step; numbers that are not finite become null.

    Args:
        run_dir: the run folder.
        summary: as `Summary`; further entries are kept.

    Raises:
        ConfigError: one of the entries that every summary has is missing.
    """
    missing = [name for name in REQUIRED if name not in summary]
    if missing:
        raise ConfigError(f"a summary needs {', '.join(REQUIRED)}; missing: {', '.join(missing)}")
    path = run_dir / SUMMARY_FILE
    replace_text(path, json.dumps(_plain(summary), indent=2, allow_nan=False) + "\n")
    return path


def read_summary(run_dir: Path) -> dict[str, Any]:
    """The summary of a run; empty while there is none yet.

    Raises:
        CheckpointError: the file is not JSON.
    """
    path = run_dir / SUMMARY_FILE
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); remove it and run again") from error


def peak_memory_gb() -> float:
    """The most resident memory that this process has had so far, in 10⁹ bytes."""
    # Linux counts ru_maxrss in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def headline(rows: Sequence[Row]) -> Shown | None:
    """The metric by which a run is judged: NashConv, else the first score, else success."""
    judged = [item for item in shown(rows) if item.quantity.name in HEADLINES]
    return judged[0] if judged else None


def references(item: Shown, given: Mapping[str, float]) -> dict[str, float]:
    """The lines to compare a headline metric with: those given, and the one that always holds."""
    always = {"nash_conv": {"Nash equilibrium": 0.0}, "score": {"even": 0.5}}
    return {**always.get(item.quantity.name, {}), **given}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the before/after table."""

    label: str
    before: str
    after: str
    verdict: Verdict
    at: int | None = None  # the update of `after`; None = the run's last


def changes(rows: Sequence[Row]) -> list[Change]:
    """First and last value of every shown evaluation and rollout metric logged at least twice.

    A last value that is not of the last update, as after an interrupt, says of which it is (`at`).
    Numbers of the machine and of the optimizer are left out: they say how, not how well.
    """
    table: list[Change] = []
    for item in shown(rows):
        if item.quantity.part not in ("evaluate", "rollout") or item.quantity.unit == "tokens/s":
            continue
        measured = [(row, value) for row in rows if (value := row.get(item.key)) is not None]
        if len(measured) < 2:
            continue
        (first_row, first), (last_row, last) = measured[0], measured[-1]
        before, after = with_interval(item, first_row, first), with_interval(item, last_row, last)
        at = None if last_row["update"] == rows[-1]["update"] else int(last_row["update"] or 0)
        table.append(Change(item.label, before, after, _verdict(item, first_row, last_row), at))
    return table


def with_interval(item: Shown, row: Row, value: float) -> str:
    """A value as text, with its interval in brackets where the row it stands in has one."""
    found = estimate(item, row)
    if found is None:
        return item.quantity.text(value)
    number = item.quantity.number
    return f"{item.quantity.text(value)} [{number(found.low)}, {number(found.high)}]"


def estimate(item: Shown, row: Row) -> Estimate | None:
    """A metric of a row with its interval, None where it has none."""
    value, low, high = (row.get(key) for key in (item.key, *item.interval))
    if value is None or low is None or high is None:
        return None
    return Estimate(value, low, high)


def difference(before: Estimate, after: Estimate) -> Estimate:
    """What changed between two independent estimates whose intervals have the same coverage.

        d = a - b
        low = d - √((a - a_low)² + (b_high - b)²),   high = d + √((a_high - a)² + (b - b_low)²)

    With intervals that reach equally far to both sides it is d ± √(h_a² + h_b²). Two measurements
    on the same deals share some of their luck; for them it is as a rule wider than needed.

    Source: Newcombe 1998 (method 10, shares); Zou and Donner 2008 (any two estimates).
    """
    change = after.value - before.value
    down = math.hypot(after.value - after.low, before.high - before.value)
    up = math.hypot(after.high - after.value, before.value - before.low)
    return Estimate(change, change - down, change + up)


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours, minutes and seconds: 1:52, 2:03:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _verdict(item: Shown, first: Row, last: Row) -> Verdict:
    if item.quantity.better == "neither":
        return ""
    then, now = first[item.key] or 0.0, last[item.key] or 0.0
    before, after = estimate(item, first), estimate(item, last)
    if before is not None and after is not None:
        change = difference(before, after)
        if change.low <= 0 <= change.high:
            return "no difference seen"
    elif item.quantity.number(then) == item.quantity.number(now):
        return "same"
    elif not item.quantity.exact:
        return "lower" if now < then else "higher"
    return "better" if (now < then) == (item.quantity.better == "lower") else "worse"


def _plain(value: Any) -> Any:
    """JSON's own types, not-finite numbers as None; anything else as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None
