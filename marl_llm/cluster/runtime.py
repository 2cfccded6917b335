"""`runtime=ray`: a local Ray cluster with a store, workers, an engine and a trainer per policy."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from marl_llm import team
from marl_llm.cluster.clients import WORK_SECONDS, RemoteEngine, RemoteStore, answer
from marl_llm.cluster.hosts import EngineHost, RolloutHost, TrainerHost
from marl_llm.errors import ModelError
from marl_llm.rollout.plans import Plan
from marl_llm.serve import Engine
from marl_llm.serve.sources import EngineSettings
from marl_llm.settings import RunSettings
from marl_llm.store import CAPACITY, FILE, RETRIES, SqliteStore, discard
from marl_llm.trainer import Lesson
from marl_llm.types import Episode


class RayRuntime:
    """The same steps as `local.LocalRuntime`, each in the process that it belongs to.

    With one worker the requests reach the engine in the same batches as in one process, and every
    number is the same. With several, who shares a batch with whom hangs on the clock, and log-probs
    differ by rounding.
    """

    def __init__(self, run: RunSettings, run_dir: Path) -> None:
        """Start a cluster of this run's own, and the actors in it; they load at the same time.

        Raises:
            ModelError: a policy wants a GPU, and there is none.
        """
        run_dir, threads = run_dir.resolve(), team.use_threads(run.runtime.threads)
        if run.packages:  # the actors unpickle, and make, what is written in them
            path = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *([path] if path else [])])
        start_cluster(processes=2 * len(run.policies) + run.runtime.workers + 1)
        try:
            share = gpu_share(run, int(ray.cluster_resources().get("GPU", 0)))
            run = on_visible_gpu(run)
            discard(run_dir / FILE)  # a checkpoint says what is to be in it
            self._store = RemoteStore(start_store(run_dir / FILE))
            engines = {
                name: _actor(EngineHost, share[name]).remote(
                    run, run_dir, name, threads, self._store
                )
                for name in run.policies
            }
            self._trainers = {
                name: _actor(TrainerHost, share[name]).remote(
                    run, run_dir, name, threads, self._store, engines
                )
                for name in run.policies
            }
            self._workers = [
                _actor(RolloutHost).remote(run, run_dir, threads, engines, self._store)
                for _ in range(run.runtime.workers)
            ]
            self._engines = {name: RemoteEngine(actor, name) for name, actor in engines.items()}
            for name, trainer in self._trainers.items():
                answer(trainer.ready.remote(), f"the trainer of {name}")
            for worker in self._workers:
                answer(worker.ready.remote(), "a rollout worker")
        except BaseException:
            self.close()
            raise

    def serving(self) -> Mapping[str, Engine]:
        """Engines by policy, freshly loaded with the latest weights."""
        for engine in self._engines.values():
            engine.load_latest()
        return self._engines

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Share these episodes among the workers, whole groups each; they put them in the store."""
        versions = {policy: engine.version for policy, engine in self.serving().items()}
        count = len(self._workers)
        pending = [
            worker.collect.remote([plan for plan in plans if plan.group % count == n], versions)
            for n, worker in enumerate(self._workers)
        ]
        played = [e for p in pending for e in answer(p, "a rollout worker", WORK_SECONDS)]
        order = {plan.id: place for place, plan in enumerate(plans)}
        return sorted(played, key=lambda episode: order[episode.id])

    def learn(self, policy: str, episodes: int) -> Lesson:
        """Let the policy's trainer learn from that many episodes and publish its weights."""
        pending = self._trainers[policy].learn.remote(episodes)
        return answer(pending, f"the trainer of {policy}", WORK_SECONDS)

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""
        pending = self._trainers[policy].save.remote(folder.resolve())
        answer(pending, f"the trainer of {policy}")

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""
        pending = self._trainers[policy].restore.remote(folder.resolve())
        answer(pending, f"the trainer of {policy}")

    def save_store(self, path: Path) -> None:
        """Write a file of the store as it is."""
        self._store.save(path)

    def restore_store(self, path: Path) -> None:
        """Go on with what `save_store` wrote."""
        self._store.restore(path)

    def close(self) -> None:
        """End the cluster that this runtime started."""
        stop_cluster()


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
    """The actor of a store, on this machine; the arguments are those of `SqliteStore`."""
    return _actor(SqliteStore).remote(path, clock, capacity, retries)


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


def _actor(host: type, gpu: float = 0.0) -> Any:
    return ray.remote(num_cpus=1, num_gpus=gpu)(host)
