"""The numbers of a run: written once per update, read back as rows, named for people.

A metric's key is `part/role/quantity`, e.g. ``learn/player/kl_nats``; the unit stands at the end of
the quantity where it has one, role is ``all`` where roles are pooled, and a quantity counted
per agent or group may name it in further parts.

`MetricsLog` writes ``metrics.jsonl`` (one line per call) and ``tensorboard/``; `read` gives one row
per update. What a person is shown, under which label and in which order, is the table `QUANTITIES`;
any other key is kept and can be looked up, but stays out of the summary views.

An interval travels as two more keys with ``_low`` and ``_high`` at the end.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from marl_llm.errors import CheckpointError, ConfigError

METRICS_FILE = "metrics.jsonl"
BOARD_FOLDER = "tensorboard"

Row = dict[str, float | None]  # "update" and the metrics of that update; None = was not finite

_KEY = re.compile(r"[a-z0-9_]+(/[\w.-]+){2,}")


class MetricsLog:
    """Appends to the metrics of one run folder; the only writer of them.

    A line left half-written by a killed process is dropped when the log is opened. Updates may
    repeat (an evaluation after the update it judges) but never go back: to go on from an earlier
    checkpoint, call `truncate_after` first.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the log of `run_dir`, which is created if missing.

        Args:
            run_dir: the run folder.
            clock: wall-clock seconds, for TensorBoard's time axis only.
        """
        run_dir.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._path = run_dir / METRICS_FILE
        _drop_cut_line(self._path)
        lines = _lines(self._path) if self._path.exists() else []
        self._last = max((update for update, _ in lines), default=-1)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = EventFileWriter(str(run_dir / BOARD_FOLDER), flush_secs=10)

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Write the metrics of an update; they are on their way to the disk when this returns.

        Args:
            update: updates finished so far; 0 = before the first.
            values: `part/role/quantity` to number. A number that is not finite becomes null.

        Raises:
            ConfigError: a key has fewer than three parts, or a character that no part may have.
            CheckpointError: an update lower than one already written.
        """
        for key in values:
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    f"metric {key!r} must be named part/role/quantity, such as learn/player/loss; "
                    "letters, digits and _ . - are allowed in each part"
                )
        if update < self._last:
            raise CheckpointError(
                f"{self._path} already goes to update {self._last}, got update {update}; "
                f"a run that goes on from a checkpoint drops the later ones first"
            )
        self._last = update
        row: Row = {"update": update}
        row.update((key, _finite(value)) for key, value in values.items())
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        self._board.add_event(
            Event(
                wall_time=self._clock(),
                step=update,
                summary=Summary(
                    value=[
                        Summary.Value(tag=key, simple_value=float(value))
                        for key, value in values.items()
                    ]
                ),
            )
        )

    def truncate_after(self, update: int) -> None:
        """Forget every line of a later update, here and in TensorBoard, before a run goes on."""
        self._file.close()
        kept = [(at, line) for at, line in _lines(self._path) if at <= update]
        replace_text(self._path, "".join(f"{line}\n" for _, line in kept))
        self._last = max((at for at, _ in kept), default=-1)
        self._file = self._path.open("a", encoding="utf-8")
        # TensorBoard hides what an earlier session logged from the step of a START event on.
        start = SessionLog(status=SessionLog.START)
        self._board.add_event(Event(wall_time=self._clock(), step=update + 1, session_log=start))

    def close(self) -> None:
        """Flush both files and let them go."""
        self._file.close()
        self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(run_dir: Path) -> list[Row]:
    """The metrics of a run, one row per update, ascending; a half-written last line is ignored.

    Several lines of one update are joined; where they name the same metric, the later line counts.

    Raises:
        CheckpointError: there are none, or a line in the middle is not what `MetricsLog` writes.
    """
    path = run_dir / METRICS_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{run_dir} has no {METRICS_FILE}; expected the folder of a run that has started"
        )
    rows: dict[int, Row] = {}
    for update, line in _lines(path):
        rows.setdefault(update, {}).update(json.loads(line))
    return [rows[update] for update in sorted(rows)]


def series(rows: Sequence[Row], key: str) -> tuple[list[int], list[float]]:
    """The updates at which a metric was logged and finite, and its values there."""
    pairs = [
        (int(row["update"] or 0), value) for row in rows if (value := row.get(key)) is not None
    ]
    return [update for update, _ in pairs], [value for _, value in pairs]


def short(value: float | None) -> float | None:
    """Six significant digits: what a curve can show."""
    return None if value is None else float(f"{value:.6g}")


def replace_text(path: Path, text: str) -> None:
    """Write a whole file so that a reader, or a crash, meets the old text or the new, never a part.

    Lone surrogates, which a decoded reply may hold, are written as question marks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _drop_cut_line(path: Path) -> None:
    """Cut a file back to its last line end, so that the next line starts on its own."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Update and text of every whole line."""
    found: list[tuple[int, str]] = []
    *whole, _cut = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(whole, start=1):
        try:
            found.append((int(json.loads(line)["update"]), line))
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{path} line {number} is not a line of metrics: {line[:60]!r}; "
                "remove that line to read the others"
            ) from error
    return found


@dataclass(frozen=True, slots=True)
class Quantity:
    """How one quantity is shown."""

    part: str
    name: str  # the key's last part
    label: str
    unit: str = ""  # "%" shows a share times 100
    digits: int = 3
    better: Literal["lower", "higher", "neither"] = "neither"
    exact: bool = False  # computed from the policy; else from a sample of games

    def number(self, value: float) -> str:
        """The value without its unit."""
        return f"{100 * value if self.unit == '%' else value:,.{self.digits}f}"

    def text(self, value: float) -> str:
        """The value with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()


QUANTITIES = (
    Quantity("evaluate", "nash_conv", "NashConv", better="lower", exact=True),
    Quantity("evaluate", "score", "score", better="higher"),
    Quantity("evaluate", "success", "success", better="higher"),
    Quantity("evaluate", "success_greedy", "success, greedy", better="higher"),
    Quantity("evaluate", "reports_right", "reports right, evaluated", "%", 1, "higher"),
    Quantity("evaluate", "useful_calls", "useful calls, evaluated", "%", 1, "higher"),
    Quantity("evaluate", "constraint_preservation", "constraint preservation", "%", 1, "higher"),
    Quantity("evaluate", "calls", "calls, evaluated", digits=2),
    Quantity("evaluate", "forfeit_share", "forfeits, evaluated", "%", 1, "lower"),
    Quantity("rollout", "forfeit_share", "forfeits", "%", 1, "lower"),
    Quantity("rollout", "delegation_rate", "delegation rate", "%", 1),
    Quantity("rollout", "calls", "calls", digits=2),
    Quantity("rollout", "reports_right", "reports right", "%", 1, "higher"),
    Quantity("rollout", "same_task_share", "most frequent sub-task", "%", 1),
    Quantity("rollout", "keep_share", "sub-goal kept", "%", 1),
    Quantity("rollout", "reply_tokens", "reply length", "tokens", 1),
    Quantity("rollout", "game_turns", "game length", "turns", 1),
    Quantity("rollout", "tokens_per_second", "rollout", "tokens/s", 0),
    Quantity("learn", "tokens_per_second", "learning", "tokens/s", 0),
    Quantity("learn", "loss", "loss", digits=4),
    Quantity("learn", "kl_nats", "KL to the reference", "nats", 4),
    Quantity("learn", "entropy", "entropy", "nats"),
    Quantity("learn", "grad_norm", "gradient norm"),
    Quantity("learn", "clip_fraction", "ratios clipped", "%", 1),
    Quantity("run", "update_seconds", "update", "s", 2),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One metric of a run that people are shown."""

    key: str
    label: str  # names the role too where several roles have this quantity
    role: str
    quantity: Quantity

    @property
    def interval(self) -> tuple[str, str]:
        """The keys of its interval, which may or may not have been logged."""
        return f"{self.key}_low", f"{self.key}_high"


def shown(rows: Sequence[Row]) -> list[Shown]:
    """The metrics of these rows that people are shown, in the order of `QUANTITIES`.

    ``evaluate/player/score_random`` counts as a score, labelled "score against random".
    """
    keys = dict.fromkeys(key for row in rows for key in row if key.count("/") == 2)
    found: list[Shown] = []
    for quantity in QUANTITIES:
        of_this: list[tuple[str, str, str]] = []
        for key in keys:
            part, role, name = key.split("/")
            bound = name.endswith(("_low", "_high"))
            if part != quantity.part or bound:
                continue
            if name == quantity.name:
                of_this.append((key, role, quantity.label))
            elif quantity.name == "score" and name.startswith("score_"):
                opponent = name.removeprefix("score_").replace("_", " ")
                of_this.append((key, role, f"score against {opponent}"))
        several = len({role for _, role, _ in of_this}) > 1
        found += [
            Shown(key, f"{label}, {role}" if several else label, role, quantity)
            for key, role, label in of_this
        ]
    return found
