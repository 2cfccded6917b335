"""Alarms: signs in a run's metrics that training has collapsed, a sentence each.

An alarm looks at the mean of the last ten updates that have its metric, and holds from the first
update after which that mean is out of bounds for as long as it stays so. It is a hint and stops
nothing. The bounds are our reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from marl_llm.report.metrics import Row
from marl_llm.report.summary import headline

WINDOW = 10  # updates
SOLVED = 0.95  # success or score; who is so good need not try other things


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that looks like a collapse, and still does."""

    name: str
    says: str  # a sentence with the figure
    since: int  # update


@dataclass(frozen=True, slots=True)
class Watch:
    """What is looked at."""

    name: str
    part: str
    quantity: str
    rings: Callable[[float], bool]  # for the mean of the window
    says: str  # {who} = the role or policy, {mean}, {share} = the same in %
    unless_solved: bool = False


WATCHES = (
    Watch(
        "never delegates", "rollout", "delegation_rate", lambda mean: mean < 0.01,
        "{who} calls somebody in {share} of its episodes",
    ),
    Watch(
        "always the same sub-task", "rollout", "same_task_share", lambda mean: mean > 0.95,
        "{who}: one action makes {share} of the calls, though the questions differ",
    ),
    Watch(
        "always KEEP", "rollout", "keep_share", lambda mean: mean > 0.99,
        "{who} keeps its sub-goal in {share} of the turns that could change it",
    ),
    Watch(
        "never KEEP", "rollout", "keep_share", lambda mean: mean < 0.01,
        "{who} keeps its sub-goal in {share} of the turns that could change it",
    ),
    Watch(
        "forfeits", "rollout", "forfeit_share", lambda mean: mean > 0.5,
        "{share} of the episodes have a forfeit",
    ),
    Watch(
        "no entropy", "learn", "entropy", lambda mean: mean < 0.005,
        "{who} has {mean:.4f} nats of entropy a token, and the task is not solved",
        unless_solved=True,
    ),
)  # fmt: skip


def alarms(rows: Sequence[Row]) -> list[Alarm]:
    """The alarms that hold after the last of these rows, in the order of `WATCHES`.

    Args:
        rows: as `metrics.read` gives them.
    """
    keys = dict.fromkeys(key for row in rows for key in row if key.count("/") == 2)
    solved = _solved(rows)
    found = []
    for watch in WATCHES:
        for key in keys:
            part, who, quantity = key.split("/")
            if (part, quantity) == (watch.part, watch.quantity):
                found += list(_holds(watch, key, who, rows, solved))
    return found


def _holds(
    watch: Watch, key: str, who: str, rows: Sequence[Row], solved: Sequence[bool]
) -> Iterator[Alarm]:
    """The alarm of one metric, if it holds at the end."""
    recent: deque[float] = deque(maxlen=WINDOW)
    since: int | None = None
    mean = 0.0
    for row, good in zip(rows, solved, strict=True):
        value = row.get(key)
        if value is None:
            continue
        recent.append(value)
        mean = sum(recent) / len(recent)
        holds = len(recent) == WINDOW and watch.rings(mean) and not (watch.unless_solved and good)
        since = (int(row["update"] or 0) if since is None else since) if holds else None
    if since is not None:
        says = watch.says.format(who=who, mean=mean, share=f"{100 * mean:.1f} %")
        yield Alarm(watch.name, says, since)


def _solved(rows: Sequence[Row]) -> list[bool]:
    """Of each row, whether the headline as it was last measured leaves nothing to be learned."""
    judged = headline(rows)
    found, good = [], False
    for row in rows:
        if judged is not None and (value := row.get(judged.key)) is not None:
            good = judged.quantity.better == "higher" and value >= SOLVED
        found.append(good)
    return found
