"""`marl-llm bench chaos`: a run whose processes are killed at random, against one left in peace.

Both are ordinary runs of `marl-llm train`, each in a process of its own, with the same words. In
the second, at points drawn beforehand, `kill -9` ends one of its processes (`kills.py`). It is
drawn among the kinds that were hit least often so far: store, engine, trainer, rollout worker, tool
process where the game has tools, and, once there is a checkpoint, the driver. When the driver is
hit the others end with it, and `marl-llm train resume=RUNDIR` goes on from the last checkpoint.

Afterwards the run's own records say what became of it. An update that was done, forgotten and done
again stands there once.

    lost                episodes that a policy did not learn from, or that the store still waits for
    doubled             episodes that it learned from, or that the store handed out, twice
    staleness_exceeded  lessons with an episode further behind than `max_staleness`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from marl_llm import config
from marl_llm.bench.kills import DRIVER, KINDS, strike, victims
from marl_llm.cluster import incidents
from marl_llm.commands.words import read
from marl_llm.errors import ConfigError, TrainingError
from marl_llm.report.metrics import METRICS_FILE, Row
from marl_llm.report.metrics import read as read_metrics
from marl_llm.report.summary import read_summary
from marl_llm.seeds import generator
from marl_llm.settings import RunSettings
from marl_llm.store import FILE as STORE_FILE
from marl_llm.store import Counts, SqliteStore

SHORT = ("experiment=planner_executor", "runtime=ray", "runtime.max_staleness=1")
HURRY = 0.9  # kills fall into this first part of a run's updates
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    kills: int = 30
    draws: int = 0  # seed of the kills
    folder: Path | None = None  # keep both runs there; None = they are removed
    json: Path | None = None
    words: tuple[str, ...] = field(default=())  # of both runs

    @classmethod
    def of(cls, words: Sequence[str]) -> Options:
        """Our own words taken out; what is left goes to the runs."""
        ours = ("kills", "draws", "folder", "json")
        own, rest = [], []
        waiting = list(words)
        while waiting:
            word = waiting.pop(0)
            if word.lstrip("-").partition("=")[0] in ours:
                own.append(word)
                if word.startswith("--") and "=" not in word and waiting:
                    own.append(waiting.pop(0))
            else:
                rest.append(word)
        given = read(own, "bench chaos", keys=ours)
        folder, file = given.values.get("folder"), given.values.get("json")
        return cls(
            kills=given.number("kills", 30, 1),
            draws=given.number("draws", 0),
            folder=None if folder is None else Path(folder),
            json=None if file is None else Path(file),
            words=tuple(rest),
        )


def main(words: Sequence[str]) -> int:
    """`marl-llm bench chaos [--json FILE] [kills=30] [draws=0] [folder=DIR] [key=value ...]`."""
    options, console = Options.of(words), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="marl_llm_chaos_") as made:
        result = measure(options, options.folder or Path(made), console.print)
    show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(options: Options, folder: Path, stage: Any = print) -> dict[str, Any]:
    """Both runs and what became of them.

    Args:
        options: of the command line.
        folder: where the runs go.
        stage: told what goes on now.

    Raises:
        ConfigError: the run is in one process.
        TrainingError: one of the runs did not end as it should.
    """
    words = [*SHORT, *options.words]
    run = RunSettings.of(config.compose(words))
    if run.runtime.name != "ray":
        raise ConfigError(
            "bench chaos kills processes of a run over Ray; leave runtime=ray as it is"
        )
    calm, wild = folder / "calm", folder / "wild"
    stage("a run in peace")
    finish(begin([*words, f"run.dir={calm}"], calm), calm)
    seconds = float(read_summary(calm)["seconds"])
    stage(f"it took {seconds:.0f} s; the same with {options.kills} kills")
    killed, taken = harass(
        [*words, f"run.dir={wild}"],
        wild,
        options,
        int(HURRY * run.updates),
        seconds / max(run.updates, 1),
        stage,
    )
    rows, counts = read_metrics(wild), store_counts(run, wild)
    return {
        "kills": len(killed),
        "killed": {who: killed.count(who) for who in sorted(set(killed))},
        "restarts_noted": len(incidents.noted(wild)),
        **accounts(run, rows, counts),
        "updates": int(rows[-1]["update"] or 0),
        "seconds": {"calm": seconds, "wild": taken},
        "success": {name: last(read_metrics(folder / name)) for name in ("calm", "wild")},
        "store": {policy: asdict(found) for policy, found in counts.items()},
        "settings": {"words": words, "draws": options.draws},
    }


def begin(words: Sequence[str], run_dir: Path) -> subprocess.Popen[bytes]:
    """Start a run, or go on with it: `marl-llm train` with these words."""
    output = run_dir.parent / f"{run_dir.name}.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "marl_llm.cli", "train", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def finish(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Wait for the end of a run.

    Raises:
        TrainingError: it failed.
    """
    if process.wait():
        output = run_dir.parent / f"{run_dir.name}.log"
        text = output.read_text(errors="replace").strip().splitlines()
        raise TrainingError(
            f"the run {run_dir.name} ended with code {process.returncode}: {' '.join(text[-3:])}"
        )


def harass(
    words: Sequence[str],
    run_dir: Path,
    options: Options,
    updates: int,
    pace: float,
    stage: Any = print,
) -> tuple[list[str], float]:
    """Start a run and kill its processes at random points of it, until it ends.

    Args:
        words: of the run.
        run_dir: its folder.
        options: how many kills, and their seed.
        updates: within which they fall.
        pace: seconds of an update in peace.
        stage: told of every kill.

    Returns:
        The kinds that were hit, in order, and how long the run took from its first measurement on.
    """
    rng, killed = generator(options.draws, "chaos"), list[str]()
    points = np.sort(rng.random(options.kills)) * updates
    orders = [rng.permutation(KINDS).tolist() for _ in range(options.kills)]
    process = begin(words, run_dir)
    await_update(process, run_dir, 0)
    began = time.monotonic()
    for point in points:
        await_update(process, run_dir, int(point))
        time.sleep(pace * (point % 1))
        kind = None
        while kind is None and process.poll() is None:
            kind = hit(run_dir, process.pid, least_hit(killed, orders), rng, stage)
            time.sleep(LOOK_SECONDS)
        killed += [] if kind is None else [kind]
        if kind == DRIVER:
            struck = time.time()
            process.wait()
            process = begin([f"resume={run_dir}"], run_dir)
            await_update(process, run_dir, 0, struck)
    finish(process, run_dir)
    return killed, time.monotonic() - began


def await_update(
    process: subprocess.Popen[bytes], run_dir: Path, update: int, since: float = 0.0
) -> None:
    """Wait until a run has written down this update, since that time of day, or has ended."""
    metrics, seen = run_dir / METRICS_FILE, since
    while process.poll() is None:
        written = metrics.stat().st_mtime if metrics.exists() else 0.0
        if written > seen:
            seen, rows = written, read_metrics(run_dir)
            if rows and int(rows[-1]["update"] or 0) >= update:
                return
        time.sleep(LOOK_SECONDS)


def least_hit(killed: Sequence[str], orders: Sequence[Sequence[str]]) -> list[str]:
    """The kinds, those hit least often first.

    Args:
        killed: kinds hit so far.
        orders: of kinds that were hit as often: for those never hit, for those hit once, ...
    """
    times = {kind: killed.count(kind) for kind in KINDS}
    return sorted(KINDS, key=lambda kind: (times[kind], orders[times[kind]].index(kind)))


def hit(
    run_dir: Path, driver: int, kinds: Sequence[str], rng: np.random.Generator, stage: Any
) -> str | None:
    """Kill a process of the first kind that is there; which kind, None = nobody was.

    Args:
        run_dir: the run folder.
        driver: the run's first process.
        kinds: in order.
        rng: draws among the processes of the kind.
        stage: told who was killed.
    """
    found = victims(run_dir, driver)
    for kind in kinds:
        if kind in found:
            who = str(rng.choice(sorted(found[kind])))
            if strike(found[kind][who]):
                stage(f"killed {who}")
                return kind
    return None


def store_counts(run: RunSettings, run_dir: Path) -> dict[str, Counts]:
    """What the store of a run that has ended says of each trained policy's episodes."""
    trained = [name for name, policy in run.policies.items() if policy.trained]
    with closing(SqliteStore(run_dir / STORE_FILE, time.time)) as store:
        return {policy: store.counts(policy) for policy in trained}


def accounts(run: RunSettings, rows: Sequence[Row], counts: Mapping[str, Counts]) -> dict[str, int]:
    """Episodes lost and doubled, and lessons that were too far behind, over all policies.

    An episode that failed at every attempt is lost.

    Args:
        run: the settings.
        rows: its metrics, each update once.
        counts: of the store at the end, by policy.
    """
    lost = doubled = exceeded = 0
    for name, found in counts.items():
        due = run.rollout.episodes * sum(map(run.policies[name].learns, range(run.updates)))
        lessons = [int(row.get(f"store/{name}/episodes") or 0) for row in rows if row["update"]]
        more = sum(max(learned - run.rollout.episodes, 0) for learned in lessons)
        doubled += max(more, found.acknowledged - due)
        lost += max(due - sum(lessons) + more, due - found.acknowledged)
        exceeded += sum(
            (row.get(f"store/{name}/staleness_of_{name}") or 0) > run.staleness(name)
            for row in rows
        )
    return {"lost": lost, "doubled": doubled, "staleness_exceeded": exceeded}


def last(rows: Sequence[Row]) -> dict[str, float]:
    """Success at the last measurement, with its interval."""
    for row in reversed(rows):
        for key, value in row.items():
            if key.startswith("evaluate/") and key.endswith("/success") and value is not None:
                bounds = {side: row[f"{key}_{side}"] or 0.0 for side in ("low", "high")}
                return {"value": value, **bounds}
    return {}


def show(result: dict[str, Any]) -> None:
    """The figures as a table."""
    table = Table(title="processes killed at random")
    table.add_column("")
    table.add_column("", justify="right")
    for name in ("kills", "restarts_noted", "lost", "doubled", "staleness_exceeded", "updates"):
        table.add_row(name.replace("_", " "), str(result[name]))
    for name, found in result["success"].items():
        if found:
            said = f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
            table.add_row(f"success, {name}", said)
    for name, seconds in result["seconds"].items():
        table.add_row(f"seconds, {name}", f"{seconds:.0f}")
    Console().print(table)
