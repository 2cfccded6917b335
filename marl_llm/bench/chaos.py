"""`marl-llm bench chaos`: a run whose processes are killed at random, against one left in peace.

Both are ordinary runs of `marl-llm train`, each in a process of its own, with the same words. In
the second, at moments drawn beforehand, `kill -9` ends one of its processes, drawn among those that
the run folder names (store, engines, trainers, rollout workers). Afterwards the run's own records
say what became of it:

    lost                episodes of finished updates that a policy did not learn from
    doubled             episodes that it learned from more than once
    staleness_exceeded  lessons with an episode further behind than `max_staleness`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from marl_llm import config
from marl_llm.cluster import incidents
from marl_llm.cluster.hosts import PROCESSES
from marl_llm.commands.words import read
from marl_llm.errors import ConfigError, TrainingError
from marl_llm.report.metrics import Row
from marl_llm.report.metrics import read as read_metrics
from marl_llm.report.summary import read_summary
from marl_llm.seeds import generator
from marl_llm.settings import RunSettings

SHORT = ("experiment=planner_executor", "runtime=ray", "runtime.max_staleness=1")
HURRY = 0.9  # kills fall into this first part of the peaceful run's time


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
    finish(begin(words, calm), calm)
    seconds = float(read_summary(calm)["seconds"])
    stage(f"it took {seconds:.0f} s; the same with {options.kills} kills")
    killed = harass(begin(words, wild), wild, options, HURRY * seconds)
    rows = read_metrics(wild)
    return {
        "kills": len(killed),
        "killed": {who: killed.count(who) for who in sorted(set(killed))},
        "restarts_noted": len(incidents.noted(wild)),
        **accounts(run, rows),
        "updates": int(rows[-1]["update"] or 0),
        "seconds": {"calm": seconds, "wild": float(read_summary(wild)["seconds"])},
        "success": {name: last(read_metrics(folder / name)) for name in ("calm", "wild")},
        "settings": {"words": words, "draws": options.draws},
    }


def begin(words: Sequence[str], run_dir: Path) -> subprocess.Popen[bytes]:
    """Start a run."""
    command = [sys.executable, "-m", "marl_llm.cli", "train", *words, f"run.dir={run_dir}"]
    output = run_dir.parent / f"{run_dir.name}.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


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
    process: subprocess.Popen[bytes], run_dir: Path, options: Options, seconds: float
) -> list[str]:
    """Kill processes of a run at random moments until it ends; which, in order.

    Args:
        process: the run.
        run_dir: its folder.
        options: how many kills, and their seed.
        seconds: within which they fall, from the first sight of all processes.
    """
    rng = generator(options.draws, "chaos")
    while process.poll() is None and not (run_dir / "metrics.jsonl").exists():
        time.sleep(0.1)
    began, killed = time.monotonic(), []
    for moment in np.sort(rng.random(options.kills)) * seconds:
        while process.poll() is None and time.monotonic() - began < moment:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        places = sorted((run_dir / PROCESSES).iterdir())
        who = places[int(rng.integers(len(places)))]
        if strike(int(who.read_text() or 0)):
            killed.append(who.name)
    finish(process, run_dir)
    return killed


def strike(process: int) -> bool:
    """Kill a process of Ray's at once; whether it was there."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        if not command.startswith(b"ray::"):
            return False
        os.kill(process, signal.SIGKILL)
    except OSError:  # it has ended by itself, or is just being started anew
        return False
    return True


def accounts(run: RunSettings, rows: Sequence[Row]) -> dict[str, int]:
    """Episodes lost and doubled, and lessons that were too far behind, over all policies."""
    lost = doubled = exceeded = 0
    for name, policy in run.policies.items():
        if not policy.trained:
            continue
        for row in rows:
            learned = row.get(f"store/{name}/episodes")
            if learned is None:
                continue
            lost += max(run.rollout.episodes - int(learned), 0)
            doubled += max(int(learned) - run.rollout.episodes, 0)
            exceeded += (row.get(f"store/{name}/staleness_of_{name}") or 0) > run.staleness(name)
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
