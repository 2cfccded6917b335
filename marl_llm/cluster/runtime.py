"""`runtime=ray`: a local Ray cluster with one engine and one trainer per policy, workers and a store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray

from marl_llm.cluster.clients import RemoteEngine, RemoteStore, answer, call
from marl_llm.cluster.hosts import EngineHost, RolloutHost, TrainerHost
from marl_llm.rollout.plans import Plan
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.store import MemoryStore
from marl_llm.trainer import Lesson
from marl_llm.types import Episode


class RayRuntime:
    """The same steps as `local.LocalRuntime`, each in the process that it belongs to."""

    def __init__(self, run: RunSettings, run_dir: Path) -> None:
        """Start a cluster of this run's own, and the actors in it."""
        run_dir = run_dir.resolve()
        processes = 2 * len(run.policies) + run.runtime.workers + 1
        ray.init(
            address="local",
            num_cpus=max(processes, os.cpu_count() or 1),  # actors are many and mostly wait
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.1",
        )
        try:
            self._store_actor = ray.remote(num_cpus=1)(MemoryStore).remote(time.monotonic)
            self._store = RemoteStore(self._store_actor)
            self._engine_actors = {
                name: _actor(EngineHost, run).remote(run, run_dir, name) for name in run.policies
            }
            self._trainers = {
                name: _actor(TrainerHost, run).remote(run, run_dir, name, self._store)
                for name in run.policies
            }
            self.engines: Mapping[str, Engine] = {
                name: RemoteEngine(actor) for name, actor in self._engine_actors.items()
            }
            self._workers = [
                ray.remote(num_cpus=1)(RolloutHost).remote(run, run_dir, self.engines, self._store)
                for _ in range(run.runtime.workers)
            ]
            for name in run.policies:
                call(self._trainers[name].ready)
                self._load(name)
        except BaseException:
            self.close()
            raise

    def _load(self, policy: str) -> None:
        weights = self._store.latest(policy)
        assert weights is not None, "a policy publishes before its weights are loaded"
        self.engines[policy].load(weights)

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Share these episodes among the workers, whole groups each; they put them into the store."""
        for policy in self.engines:
            self._load(policy)
        count = len(self._workers)
        shares = [[plan for plan in plans if plan.group % count == n] for n in range(count)]
        pending = [
            worker.collect.remote(share)
            for worker, share in zip(self._workers, shares, strict=True)
        ]
        played = [e for p in pending for e in answer(p, "rollout.collect", 24 * 3600.0)]
        order = {plan.id: place for place, plan in enumerate(plans)}
        return sorted(played, key=lambda episode: order[episode.id])

    def learn(self, policy: str, episodes: int) -> Lesson:
        """Let the policy's trainer learn from that many episodes; its engine gets the weights."""
        lesson = answer(
            self._trainers[policy].learn.remote(episodes), f"trainer {policy}", 24 * 3600.0
        )
        self._load(policy)
        return lesson

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""
        call(self._trainers[policy].save, folder.resolve())

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""
        call(self._trainers[policy].restore, folder.resolve())
        self._load(policy)

    def close(self) -> None:
        """End the cluster that this runtime started."""
        ray.shutdown()


def _actor(cls: type, run: RunSettings) -> ray.actor.ActorClass:
    on_gpu = any(policy.engine.device.startswith("cuda") for policy in run.policies.values())
    return ray.remote(num_cpus=1, num_gpus=0.5 if on_gpu else 0)(cls)
