"""A run from its first word to its report: folder, lock, models, runtime, loop, interrupt, result."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from marl_llm import config, team
from marl_llm.errors import CheckpointError, ConfigError
from marl_llm.journal import Journal
from marl_llm.learn import checkpoints
from marl_llm.local import LocalRuntime
from marl_llm.measure import Measurer
from marl_llm.report.live import LiveView, RunHeader, print_result
from marl_llm.report.metrics import read
from marl_llm.settings import RunSettings
from marl_llm.train import Runtime, train

CONFIG = "config.yaml"
LOCK = "run.lock"


def start(words: Sequence[str]) -> int:
    """`marl-llm train experiment=NAME ...`: a new run."""
    composed = config.compose(words)
    run = RunSettings.of(composed)
    if run.dry_run:
        from marl_llm.plan import print_plan

        return print_plan(run)
    run_dir = new_folder(run)
    with locked(run_dir):
        config.write(composed, run_dir / CONFIG)
        return _go(run, run_dir, resumed=False)


def resume(folder: str, updates: str | None) -> int:
    """`marl-llm train resume=RUNDIR`: go on after the last intact checkpoint."""
    run_dir = Path(folder)
    if not (run_dir / CONFIG).exists():
        raise CheckpointError(f"{folder!r} is no run folder: it has no {CONFIG}")
    composed = config.read(run_dir / CONFIG)
    if updates is not None:
        if not updates.isdigit():
            raise ConfigError(f"updates must be a number, got {updates!r}")
        composed["updates"] = int(updates)
    run = RunSettings.of(composed)
    with locked(run_dir):
        config.write(composed, run_dir / CONFIG)
        return _go(run, run_dir, resumed=True)


def new_folder(run: RunSettings) -> Path:
    """A folder for a new run: the one asked for, or the next free one under runs/.

    Raises:
        CheckpointError: the folder asked for holds a run already.
    """
    if run.run.dir is not None:
        run_dir = Path(run.run.dir)
        if (run_dir / CONFIG).exists():
            raise CheckpointError(
                f"{run_dir} holds a run already; choose another run.dir, or go on with it: "
                f"marl-llm train resume={run_dir}"
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        return run_dir
    for number in range(1, 10_000):
        suffix = "" if number == 1 else f"-{number}"
        run_dir = Path("runs") / f"{run.experiment}-seed{run.seed}{suffix}"
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            continue
        return run_dir
    raise CheckpointError("runs/ holds 10,000 runs of this experiment and seed; tidy it up")


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold a run folder for this process; the lock goes with the process, however it ends.

    Raises:
        CheckpointError: another process holds it.
    """
    with (run_dir / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "another process"
            raise CheckpointError(
                f"{run_dir} is in use by {owner}; wait for it, or choose another run.dir"
            ) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after this update."""
    asked: list[int] = []

    def ask(number: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("\nstopping after this update; once more to stop at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_runtime(run: RunSettings, run_dir: Path) -> Runtime:
    """The runtime that the settings ask for."""
    if run.runtime.name == "ray":
        from marl_llm.cluster.runtime import RayRuntime

        return RayRuntime(run, run_dir)
    return LocalRuntime(run, run_dir)


def _go(run: RunSettings, run_dir: Path, *, resumed: bool) -> int:
    if run.runtime.threads is not None:
        torch.set_num_threads(run.runtime.threads)
    kept = checkpoints.latest(run_dir) if resumed else None
    header = RunHeader(run.experiment, run_dir, run.seed, run.updates)
    with interruptible() as stopped, LiveView(header) as view:
        if not (run_dir / team.MODELS / ".ready").exists():
            team.prepare(run, run_dir, view.stage)
            (run_dir / team.MODELS / ".ready").touch()
        view.stage("starting engines and learners")
        runtime = make_runtime(run, run_dir)
        try:
            done, seconds = 0, 0.0
            if kept is not None:
                done, seconds = kept.update, float(kept.scalars["seconds"])
                for policy in run.policies:
                    runtime.restore(policy, kept.folder(policy))
            decode = {policy: team.token_texts(run_dir, policy) for policy in run.policies}
            journal = Journal(run, run_dir, view, decode, done, seconds)
            try:
                measurer = Measurer(run, team.seats(run, run_dir))
                done = train(run, runtime, measurer, journal, done, stopped)
                status = "finished" if done == run.updates else "stopped"
                report = journal.finish(done, status)
            finally:
                journal.close()
        finally:
            runtime.close()
    print_result(read(run_dir), report)
    if status == "stopped":
        print(f"stopped after update {done}; go on with: marl-llm train resume={run_dir}")
        return 130
    return 0
