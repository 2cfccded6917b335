"""A run from its first word to its report: folder, lock, models, runtime, loop, result."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from marl_llm import config, team
from marl_llm.errors import CheckpointError, ConfigError
from marl_llm.evaluate.nash_conv import scorable
from marl_llm.evaluate.text_tree import text_tree
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.journal import Journal, Progress, record_end
from marl_llm.learn import checkpoints
from marl_llm.learn.checkpoints import Checkpoint
from marl_llm.local import LocalRuntime
from marl_llm.measure import Measurer
from marl_llm.report.live import LiveView, RunHeader, print_result
from marl_llm.report.metrics import read
from marl_llm.settings import RunSettings
from marl_llm.store import FILE as STORE_FILE
from marl_llm.train import Runtime, train

CONFIG = "config.yaml"
LOCK = "run.lock"
INTERRUPTED = 130  # exit code


def start(words: Sequence[str]) -> int:
    """`marl-llm train experiment=NAME ...`: a new run."""
    composed = config.compose(words)
    run = RunSettings.of(composed)
    team.check_models(run)
    if run.dry_run:
        from marl_llm.plan import print_plan

        return print_plan(run)
    check(run)  # before there is a folder, so that the same command can be given again
    run_dir = new_folder(run)
    with locked(run_dir):
        # One that was refused, or killed, before its models were made has nothing to lose.
        if (run_dir / CONFIG).exists() and (run_dir / team.MODELS).exists():
            raise CheckpointError(
                f"{run_dir} holds a run already; choose another run.dir, or go on with it: "
                f"{resume_command(run_dir)}"
            )
        keep_config(composed, run_dir)
        return go(run, run_dir, None)


def resume(folder: str, updates: int | None) -> int:
    """`marl-llm train resume=RUNDIR`: go on after the newest checkpoint, or from the start."""
    run_dir = Path(folder)
    if not (run_dir / CONFIG).exists():
        raise CheckpointError(f"{folder!r} is no run folder: it has no {CONFIG}")
    with locked(run_dir):
        composed = config.read(run_dir / CONFIG)
        if updates is not None:
            composed["updates"] = updates
        run = RunSettings.of(composed)
        check(run)
        kept = newest(run_dir)
        if kept is not None and kept.update > run.updates:
            raise ConfigError(
                f"{run_dir} has {kept.update} updates behind it; updates={run.updates} would go "
                f"back, give at least {kept.update}"
            )
        keep_config(composed, run_dir)
        return go(run, run_dir, kept)


def resume_command(run_dir: Path) -> str:
    """What to type in order to go on with a run."""
    return f"marl-llm train resume={shlex.quote(str(run_dir))}"


def new_folder(run: RunSettings) -> Path:
    """A folder for a new run: the one asked for, or the next free one under runs/.

    Raises:
        CheckpointError: it cannot be made.
    """
    if run.run.dir is not None:
        run_dir = Path(run.run.dir)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"run.dir {str(run_dir)!r} cannot be made ({error.strerror}); choose another"
            ) from error
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


def keep_config(composed: Mapping[str, Any], run_dir: Path) -> None:
    """Keep the configuration; a run killed meanwhile has the old one or the new."""
    half = run_dir / f".{CONFIG}.half"
    config.write(composed, half)
    half.replace(run_dir / CONFIG)


def newest(run_dir: Path) -> Checkpoint | None:
    """The newest checkpoint of a run; None = killed before its first, so that it starts again.

    Raises:
        CheckpointError: it was cut short or altered; the message offers the one before.
    """
    found = checkpoints.all_of(run_dir)
    if not found:
        return None
    broken: list[Path] = []
    for path in reversed(found):
        fault = checkpoints.fault_of(path)
        if fault is None:
            break
        broken.insert(0, path)
    if not broken:
        return checkpoints.load(found[-1])
    whole = found[: -len(broken)]
    where = f"{whole[-1].name}, which is intact" if whole else "the start, as none is intact"
    remove = " ".join(shlex.quote(str(path)) for path in broken)
    raise CheckpointError(
        f"{checkpoints.fault_of(found[-1])}; to go on from {where}: rm -r {remove} && "
        f"{resume_command(run_dir)}"
    )


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


def go(run: RunSettings, run_dir: Path, kept: Checkpoint | None) -> int:
    """Run, say how it ended, and return the exit code."""
    try:
        with terminable(), recorded(run, run_dir):
            done, report = carry_out(run, run_dir, kept)
    except KeyboardInterrupt:
        print(f"interrupted; go on with: {resume_command(run_dir)}", file=sys.stderr)
        return INTERRUPTED
    print_result(read(run_dir), report)
    if done < run.updates:
        print(f"stopped after update {done}; go on with: {resume_command(run_dir)}")
        return INTERRUPTED
    return 0


def carry_out(run: RunSettings, run_dir: Path, kept: Checkpoint | None) -> tuple[int, Path]:
    """Everything between the lock and the result: the updates done in all, and the report."""
    team.use_threads(run.runtime.threads)
    progress = Progress.of(kept)
    with LiveView(RunHeader(run.experiment, run_dir, run.seed, run.updates)) as view:
        make_models(run, run_dir, view.stage)
        view.stage("starting engines and learners")
        with closing(make_runtime(run, run_dir)) as runtime:
            team.settle()
            if kept is not None:
                # The updates after the checkpoint are played and learned again, so the store must
                # know nothing of them. Checkpoints of old have none, and nothing waited in it.
                if (kept.path / STORE_FILE).exists():
                    runtime.restore_store(kept.path / STORE_FILE)
                for policy in run.policies:
                    runtime.restore(policy, kept.folder(policy))
            measurer = Measurer(run, team.seats(run, run_dir))
            decoders = {policy: team.token_texts(run_dir, policy) for policy in run.policies}
            with closing(Journal(run, run_dir, view, decoders, progress)) as journal:
                with patient() as stopped:
                    done = train(run, runtime, measurer, journal, progress.updates, stopped)
                status = "finished" if done == run.updates else "stopped"
                return done, journal.finish(done, status)


def check(run: RunSettings) -> None:
    """Refuse what would otherwise come to light after the cold start, or after the first games.

    Raises:
        ModelError: a device is not there.
        ConfigError: a credit rule needs what nobody attaches, or there is no NashConv of this game
            or this role.
        GameError: a credit rule or an annotator plays on, and a game cannot be restored.
    """
    team.check_devices(run)
    if run.rollout.episodes % run.rollout.group_size:
        raise ConfigError(
            "rollout.episodes must be a multiple of rollout.group_size, got "
            f"{run.rollout.episodes} and {run.rollout.group_size}"
        )
    for name, policy in run.policies.items():
        if not run.cast(name):
            raise ConfigError(
                f"no line-up seats policy {name!r}, so it would never play; name one of its seats "
                "in rollout.lineups"
            )
        if policy.coldstart is None and policy.model.needs_corpus:
            raise ConfigError(
                f"policies.{name}.model is made from the texts of a cold start, and "
                f"policies.{name}.coldstart is missing"
            )
        if sentences := policy.lacks(name):
            rule = type(policy.credit).__name__
            raise ConfigError(f"policies.{name}.credit is {rule}, and {'; and '.join(sentences)}")
    if any(policy.reaches for policy in run.policies.values()):
        team.check_replays(run)
    makers = run.makers()
    for game in run.evaluation.nash_conv:
        scorable(run.seats[run.evaluation.seat].role)
        made = makers[game]()
        if not isinstance(made, OpenSpielGame):
            raise ConfigError(
                f"evaluation.nash_conv names {game}, whose rules are not OpenSpiel's, so it cannot "
                "be walked; measure it by matches, evaluation.panel"
            )
        text_tree(made)


def make_models(run: RunSettings, run_dir: Path, stage: Callable[[str], None]) -> None:
    """The policies' starting models, once per run; a run killed meanwhile has none and starts over.

    Args:
        run: the settings.
        run_dir: its folder.
        stage: told what goes on now.
    """
    models = run_dir / team.MODELS
    if models.exists():
        return
    half = run_dir / f".{team.MODELS}.half"
    shutil.rmtree(half, ignore_errors=True)
    team.prepare(run, half, stage)
    for path in (*half.rglob("*"), half):
        checkpoints.flush(path)
    half.rename(models)
    checkpoints.flush(run_dir)


def make_runtime(run: RunSettings, run_dir: Path) -> Runtime:
    """The runtime that the settings ask for."""
    if run.runtime.name == "ray":
        from marl_llm.cluster.runtime import RayRuntime

        return RayRuntime(run, run_dir)
    return LocalRuntime(run, run_dir)


@contextmanager
def recorded(run: RunSettings, run_dir: Path) -> Iterator[None]:
    """Have the summary say so when the run ends early, by an error or at once by an interrupt."""
    try:
        yield
    except BaseException as error:
        status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        record_end(run, run_dir, status, str(error) or type(error).__name__)
        raise


@contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handling({signal.SIGTERM: interrupt}):
        yield


@contextmanager
def patient() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after this update."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("\nstopping after this update; once more to stop at once", file=sys.stderr)

    with handling({signal.SIGINT: ask, signal.SIGTERM: ask}):
        yield lambda: bool(asked)


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]],
) -> Iterator[None]:
    """Handle signals in another way for a while."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
