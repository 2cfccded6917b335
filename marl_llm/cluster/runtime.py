"""`runtime=ray`: a local Ray cluster with a store, workers, an engine and a trainer per policy."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from marl_llm import team
from marl_llm.cluster import processes, recovery
from marl_llm.cluster.clients import (
    STORE,
    WORK_SECONDS,
    EndedError,
    RemoteEngine,
    RemoteStore,
    answer,
    engine_of,
    insist,
)
from marl_llm.cluster.hosts import WEIGHTS, EngineHost, RolloutHost, StoreHost, TrainerHost
from marl_llm.cluster.incidents import ToolWatch, note
from marl_llm.errors import DeadlineError, ModelError
from marl_llm.rollout.plans import Plan
from marl_llm.runtime import Collected, Learned, Reading, learning
from marl_llm.serve import Engine
from marl_llm.serve.sources import EngineSettings
from marl_llm.settings import RunSettings
from marl_llm.store import CAPACITY, FILE, RETRIES, Counts, SqliteStore, discard
from marl_llm.types import Episode

RESTARTS = 10  # of a process during one piece of work; more, and the run is given up
WATCH_SECONDS = 120.0  # nothing done for so long is worth a line in the log


@dataclass(frozen=True, slots=True)
class _Task:
    """Work that an actor does."""

    what: str  # in words
    actor: Any
    begin: Callable[[], ray.ObjectRef]
    update: int | None  # whose games; None = a policy's lesson
    since: float  # seconds
    restarts: int = 0  # of its process so far, while it did this


class RayRuntime:
    """The same steps as `local.LocalRuntime`, each in the process that it belongs to.

    With one worker and no staleness the requests reach the engine in the same batches as in one
    process, and every number is the same. With several, who shares a batch with whom hangs on the
    clock, and log-probs differ by rounding.

    Any process but this one may be killed at any moment. It is started anew and goes on from what
    lies in the run folder: the store's file, the weights to be served, the trainers' states. What
    it was doing is done again, and counts once; ``incidents.log`` says so.
    """

    def __init__(self, run: RunSettings, run_dir: Path) -> None:
        """Start a cluster of this run's own, and the actors in it; they load at the same time.

        Raises:
            DeadlineError: processes of this run, which was killed before, do not end.
            ModelError: a policy wants a GPU, and there is none.
        """
        run_dir, threads = run_dir.resolve(), team.use_threads(run.runtime.threads)
        processes.clear(run_dir)  # before anything of theirs is taken away
        self._stale = any(run.staleness(name) for name in run.policies)
        self._run, self._run_dir = run, run_dir
        self._tasks: dict[ray.ObjectRef, _Task] = {}
        self._played: dict[int, list[Episode]] = {}  # of updates that are not all played
        self._plans: dict[int, tuple[Sequence[Plan], float]] = {}  # their plans, and since when
        self._lessons = dict.fromkeys(run.policies, 0)
        self._tools = ToolWatch(run_dir, "the run itself")  # its measurements play games too
        self._done: deque[Collected | Learned] = deque()
        if run.packages:  # the actors unpickle, and make, what is written in them
            path = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *([path] if path else [])])
        start_cluster(processes=2 * len(run.policies) + run.runtime.workers + 1)
        try:
            share = gpu_share(run, int(ray.cluster_resources().get("GPU", 0)))
            run = on_visible_gpu(run)
            discard(run_dir / FILE)  # a checkpoint says what is to be in it
            for left in (recovery.FOLDER, WEIGHTS):
                shutil.rmtree(run_dir / left, ignore_errors=True)
            self._keeper = _actor(StoreHost, STORE).remote(run_dir, run.rollout.retries)
            self._store = RemoteStore()
            self._servers = {
                name: _actor(EngineHost, engine_of(name), share[name]).remote(
                    run, run_dir, name, threads
                )
                for name in run.policies
            }
            self._trainers = {
                name: _actor(TrainerHost, f"the trainer of {name}", share[name]).remote(
                    run, run_dir, name, threads
                )
                for name in run.policies
            }
            self._workers = [
                _actor(RolloutHost, f"rollout worker {number}").remote(
                    run, run_dir, number, threads
                )
                for number in range(run.runtime.workers)
            ]
            self._engines = {name: RemoteEngine(name) for name in run.policies}
            self._read = self._reading()  # when games were begun, or ended, last
            for name, actor in self.actors().items():
                if actor is not self._keeper:
                    insist(actor.ready.remote, name)
        except BaseException:
            self.close()
            raise

    def actors(self) -> dict[str, Any]:
        """All actors, by what they are."""
        return {
            STORE: self._keeper,
            **{engine_of(name): actor for name, actor in self._servers.items()},
            **{f"the trainer of {name}": actor for name, actor in self._trainers.items()},
            **{f"rollout worker {number}": actor for number, actor in enumerate(self._workers)},
        }

    def serving(self) -> Mapping[str, Engine]:
        """Engines by policy, freshly loaded with the latest weights."""
        for engine in self._engines.values():
            engine.load_latest()
        return self._engines

    def collect(self, update: int, plans: Sequence[Plan], lock_step: bool = False) -> None:
        """Share these episodes among the workers, whole groups each; they put them in the store.

        Args:
            update: whose games.
            plans: of the episodes.
            lock_step: as in `rollout.play`.
        """
        self._tools.look()
        versions = learning(self._run, update, self.serving())
        count = len(self._workers)
        if not self._plans:  # else games are going on, and are read when they end
            self._read = self._reading()
        self._plans[update] = plans, time.monotonic()
        self._played[update] = []
        for number, worker in enumerate(self._workers):
            share = [plan for plan in plans if plan.group % count == number]
            self._begin(
                f"rollout worker {number}",
                worker,
                partial(worker.collect.remote, share, versions, lock_step),
                update,
            )

    def learn(self, policy: str, update: int) -> None:
        """Let the policy's trainer learn from the games of an update and publish its weights."""
        trainer, lessons = self._trainers[policy], self._lessons[policy]
        self._begin(
            f"the trainer of {policy}",
            trainer,
            partial(trainer.learn.remote, lessons, update),
            None,
        )
        self._lessons[policy] += 1

    def wait(self) -> Collected | Learned:
        """The next thing that is done."""
        while not self._done:
            ready, _ = ray.wait(list(self._tasks), timeout=WATCH_SECONDS)
            if not ready:
                self._watch()
            for pending in ready:
                self._finish(pending)
        return self._done.popleft()

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""
        trainer = self._trainers[policy]
        insist(partial(trainer.save.remote, folder.resolve()), f"the trainer of {policy}")

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""
        trainer = self._trainers[policy]
        insist(partial(trainer.restore.remote, folder.resolve()), f"the trainer of {policy}")

    def save_store(self, path: Path) -> None:
        """Write a file of the store as it is."""
        self._store.save(path)

    def restore_store(self, path: Path) -> None:
        """Go on with what `save_store` wrote."""
        self._store.restore(path)

    def counts(self, policy: str) -> Counts:
        """What became of all episodes that were put into a policy's topic."""
        return self._store.counts(policy)

    def close(self) -> None:
        """End the cluster that this runtime started."""
        self._tools.look()
        stop_cluster()
        processes.close(self._run_dir)

    def _begin(
        self, what: str, actor: Any, begin: Callable[[], ray.ObjectRef], update: int | None
    ) -> None:
        self._tasks[begin()] = _Task(what, actor, begin, update, time.monotonic())

    def _begin_again(self, task: _Task) -> None:
        """Once its process is there again."""
        insist(task.actor.ready.remote, task.what)
        self._tasks[task.begin()] = replace(task, restarts=task.restarts + 1)

    def _finish(self, pending: ray.ObjectRef) -> None:
        """Take what a task brought; begin it again if its process has ended."""
        task = self._tasks.pop(pending)
        try:
            brought = answer(pending, task.what)
        except EndedError:
            if task.restarts == RESTARTS:  # this work itself ends it, for want of memory perhaps
                raise
            self._begin_again(task)
            return
        if task.update is None:
            self._done.append(Learned(brought))
            if self._stale:  # games are going on: what they sample next is of the new weights
                self._engines[brought.policy].load_latest()
            return
        played, (plans, since) = self._played[task.update], self._plans[task.update]
        played += brought
        if len(played) == len(plans):
            order = {plan.id: place for place, plan in enumerate(plans)}
            played.sort(key=lambda episode: order[episode.id])
            before, self._read = self._read, self._reading()
            busy, seconds = before.busy(self._read), self._read.moment - since
            self._done.append(Collected(task.update, played, seconds, busy))
            del self._played[task.update], self._plans[task.update]

    def _reading(self) -> Reading:
        decoded = {policy: engine.busy_seconds() for policy, engine in self._engines.items()}
        return Reading(time.monotonic(), decoded)

    def _watch(self) -> None:
        """Say what is stuck.

        Raises:
            DeadlineError: it has been for longer than any work takes.
        """
        for task in self._tasks.values():
            taken = time.monotonic() - task.since
            doing = "a lesson" if task.update is None else f"the games of update {task.update}"
            note(self._run_dir, f"{task.what} has been at {doing} for {taken:.0f} s")
            if taken > WORK_SECONDS:
                raise DeadlineError(f"{task.what} has been at {doing} for {taken:.0f} s")


def start_cluster(processes: int) -> None:
    """A cluster of this process's own, which ends with it, with room for so many actors."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of it
    # A future Ray will hide GPUs from actors that ask for none. None of ours needs the warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)  # what else it says is for its own operators
    ray.init(
        address="local",
        num_cpus=processes,  # actors mostly wait for one another, so not the machine's number
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
    )


def stop_cluster() -> None:
    """End this process's cluster, if there is one, and all actors in it."""
    ray.shutdown()


def start_store(
    path: str | Path,
    clock: Callable[[], float] = time.time,
    capacity: int = CAPACITY,
    retries: int = RETRIES,
) -> Any:
    """The actor of a store that belongs to no run; the arguments are those of `SqliteStore`."""
    return _actor(SqliteStore, None).remote(path, clock, capacity, retries)


def gpu_share(run: RunSettings, gpus: int) -> dict[str, float]:
    """What part of a GPU each actor of a policy gets, by policy: 0, or 1/⌈actors / gpus⌉.

    The engines and trainers of all policies on GPUs share them evenly; one part each, since an
    actor cannot span two.

    Args:
        run: the settings.
        gpus: in the cluster.

    Raises:
        ModelError: a policy wants a GPU, and there is none.
    """
    devices = {
        name: [policy.engine.device, *([policy.judge.engine.device] if policy.judge else [])]
        for name, policy in run.policies.items()
    }
    wanting = [name for name, wanted in devices.items() if set(wanted) != {"cpu"}]
    if wanting and not gpus:
        device = next(device for device in devices[wanting[0]] if device != "cpu")
        raise ModelError(
            f"policy {wanting[0]!r} wants device {device!r}, but Ray sees no GPU on this machine; "
            "use engine.device=cpu"
        )
    parts = -(-2 * len(wanting) // gpus) if wanting else 1
    return {name: 1 / parts if name in wanting else 0.0 for name in run.policies}


def on_visible_gpu(run: RunSettings) -> RunSettings:
    """The settings as an actor needs them: it sees its own GPU only, so `cuda:1` means `cuda`."""
    policies = {
        name: replace(
            policy,
            engine=_on_visible(policy.engine),
            judge=policy.judge and replace(policy.judge, engine=_on_visible(policy.judge.engine)),
        )
        for name, policy in run.policies.items()
    }
    return replace(run, policies=policies)


def _on_visible(engine: EngineSettings) -> EngineSettings:
    return replace(engine, device=engine.device.partition(":")[0])


def _actor(host: type, name: str | None, gpu: float = 0.0) -> Any:
    """The class of an actor by this name, if any; one that has ended is started anew.

    Its arguments hold no handles of others, which would not outlive a restart.
    """
    made: Any = ray.remote(host)
    return made.options(name=name, num_cpus=1, num_gpus=gpu, max_restarts=-1, max_task_retries=0)
