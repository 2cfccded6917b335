"""What a person sees while a run goes on, and the table at its end.

On a terminal: a panel that is redrawn in place. Anywhere else (a file, a CI log): one plain ASCII
line now and then. Text that a model wrote is shown with its control characters made harmless.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_llm.report import policies
from marl_llm.report.metrics import Row, Shown, shown
from marl_llm.report.summary import changes, duration, headline, with_interval
from marl_llm.types import Episode

SPARK = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 16  # characters
STYLE_OF = {"better": "green", "worse": "red"}


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What stands above the numbers."""

    experiment: str
    run_dir: Path
    seed: int
    updates: int  # planned in all


class LiveView:
    """A context manager that shows a run's progress from one `update` to the next."""

    def __init__(
        self,
        run: RunHeader,
        console: Console | None = None,
        every: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the view; nothing is drawn before it is entered.

        Args:
            run: what is being run.
            console: where to; None = standard output.
            every: updates per line where the output is not a terminal.
            clock: seconds, for the time left.
        """
        self._run = run
        self._console = console or Console()
        self._every = every
        self._clock = clock
        self._stage = "starting"
        self._game = ""
        self._latest: Row = {}
        self._taken: dict[str, int] = {}  # after which update the latest value was
        self._history: dict[str, list[float]] = {}
        self._marks: list[tuple[int, float]] = []  # (update, clock): the first and the latest
        drawable = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        if drawable and not self._console.options.ascii_only:
            # Drawn by the clock: an update that takes long does not stop it, and a thousand short
            # ones do not pay for a thousand drawings (some milliseconds each).
            self._live = Live(
                console=self._console, get_renderable=self.render, refresh_per_second=2
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            run = self._run
            self._line(f"{run.experiment}  seed {run.seed}  {run.updates} updates  {run.run_dir}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._stage = "finished" if error is None else "stopped"
            self._live.stop()

    def stage(self, name: str) -> None:
        """Say what goes on now, e.g. "cold start", "training", "evaluating"."""
        if name == self._stage:
            return
        self._stage = name
        if self._live:
            self._live.refresh()
        elif not self._marks:  # afterwards the lines of the updates say enough
            self._line(name)

    def update(self, update: int, values: Mapping[str, float], game: str = "") -> None:
        """Show the metrics of an update; earlier values stay until they are replaced.

        Args:
            update: updates finished.
            values: as `MetricsLog.log` takes them.
            game: the moves of a game just played, as `game_line` gives them; "" = keep the last.
        """
        self._latest = {**self._latest, **values, "update": update}
        self._taken |= dict.fromkeys(values, update)
        for key, value in values.items():
            if math.isfinite(value):
                self._history.setdefault(key, []).append(float(value))
        self._game = game or self._game
        if not self._marks or update > self._marks[-1][0]:
            self._marks = [*self._marks[:1], (update, self._clock())]
        if self._live is None and (update % self._every == 0 or update == self._run.updates):
            for line in (self._plain(update), *policies.lines(self._latest)):
                self._line(line)

    def seconds_left(self) -> float | None:
        """Time to the last update at the pace so far, None before two updates are known.

        What came before the first update (installation, cold start) does not count.
        """
        if len(self._marks) < 2:
            return None
        (first, began), (latest, now) = self._marks
        pace = (now - began) / (latest - first)
        return max(0.0, pace * (self._run.updates - latest) - (self._clock() - now))

    def render(self) -> RenderableType:
        """The panel as it is now."""
        run = self._run
        title = Text.assemble((run.experiment, "bold"), f"  seed {run.seed}")
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "left", "left"):
            table.add_column(justify=justify, no_wrap=True)
        judged = headline([self._latest])
        for item in shown([self._latest]):
            value = self._latest[item.key]
            if value is not None:
                for row in self._rows(item, value, is_headline=item == judged):
                    table.add_row(*row)
        parts: list[RenderableType] = [self._progress(), "", table]
        if policies.policies_of(self._latest):
            parts += ["", policies.table(self._latest)]
        if self._game:
            line = Text.assemble(("last game  ", "dim"), printable(self._game))
            line.no_wrap, line.overflow = True, "ellipsis"
            parts += ["", line]
        return Panel(
            Group(*parts),
            title=title,
            title_align="left",
            subtitle=Text(str(run.run_dir), "dim"),
            subtitle_align="left",
            box=box.ROUNDED,
            padding=(0, 1),
        )

    def _progress(self) -> Table:
        done, planned = int(self._latest.get("update") or 0), self._run.updates
        left = self.seconds_left() if done < planned else None
        grid = Table.grid(expand=True, padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_row(
            Text(self._stage, "cyan"),
            ProgressBar(total=max(planned, 1), completed=done),
            f"{done}/{planned}" + (f"  {duration(left)} left" if left is not None else ""),
        )
        return grid

    def _rows(self, item: Shown, value: float, is_headline: bool) -> list[tuple[Text, ...]]:
        """Label, value, its update and its way here; under the headline, the best so far."""
        history = self._history.get(item.key, [])
        style = "bold" if is_headline else ""
        rows: list[tuple[Text, ...]] = [
            (
                Text(item.label, style or "dim"),
                Text(with_interval(item, self._latest, value), style),
                Text(self._age(item), "dim"),
                Text(sparkline(history, SPARK_WIDTH), "cyan"),
            )
        ]
        if is_headline and len(history) > 1:
            best = (min if item.quantity.better == "lower" else max)(history)
            rows.append((Text("  best so far", "dim"), Text(item.quantity.text(best))))
        return rows

    def _age(self, item: Shown) -> str:
        """Of which update the value is, "" for the one just finished."""
        taken = self._taken[item.key]
        return f"at {taken}" if taken != self._latest["update"] else ""

    def _plain(self, update: int) -> str:
        parts = [f"update {update}/{self._run.updates}"]
        for item in shown([self._latest]):
            value = self._latest[item.key]
            if value is not None:
                age = self._age(item)
                said = f"{item.label} {item.quantity.text(value)}"
                parts.append(f"{said} ({age})" if age else said)
        left = self.seconds_left()
        if left:
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_result(rows: Sequence[Row], report: Path, console: Console | None = None) -> None:
    """Print the before/after table of a run, then where its report lies.

    Args:
        rows: as `metrics.read` gives them.
        report: the path to name.
        console: where to; None = standard output.
    """
    console = console or Console()
    table = before_after_table(rows)
    if table.row_count:
        console.print(table)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


def before_after_table(rows: Sequence[Row]) -> Table:
    """First and last values side by side; empty when nothing was measured twice."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for change in changes(rows):
        after = Text(change.after, "bold")
        if change.at is not None:
            after.append(f"\n(at {change.at})", "not bold dim")  # below, or 80 columns are too few
        verdict = Text(change.verdict, STYLE_OF.get(change.verdict, "dim"))
        table.add_row(Text(change.label), change.before, after, verdict)
    return table


def game_line(episode: Episode) -> str:
    """A game in one line: how it ended for each agent, then the moves in playing order."""
    ends = ", ".join(
        f"{agent} {outcome} {episode.returns.get(agent, 0.0):+g}"
        for agent, outcome in episode.outcomes.items()
    )
    moves = ", ".join(
        f"{turn.observation.agent} {turn.action if turn.fault is None else f'[{turn.fault}]'}"
        for turn in episode.turns
    )
    return f"{ends or 'cut short'} | {moves}"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of block characters, lowest value lowest; "" for fewer than two values.

    Longer histories are thinned to `width` values, the last one always among them.
    """
    if len(values) < 2:
        return ""
    count = min(width, len(values))
    picked = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    low, high = min(picked), max(picked)
    scale = (len(SPARK) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARK[round((value - low) * scale)] for value in picked)


def printable(text: str) -> str:
    """Text that cannot steer a terminal: every character that is not printable becomes a dot."""
    return "".join(char if char.isprintable() else "·" for char in text)
