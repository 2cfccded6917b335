"""`runtime=local`: everything in one process; the default for a first run.

It does step by step what a cluster does at the same time: rollout puts episodes into the store, the
policy's trainer claims them, its weights go through the store to the engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from marl_llm import team
from marl_llm.errors import TrainingError
from marl_llm.games import Game
from marl_llm.rollout.plans import Plan
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.store import SqliteStore
from marl_llm.store.episodes import episodes_of
from marl_llm.trainer import Lesson
from marl_llm.types import Episode


class LocalRuntime:
    """Engines, trainers and the store as plain objects."""

    def __init__(self, run: RunSettings, run_dir: Path) -> None:
        """Make the parts from the run folder's models."""
        self._run = run
        self._makers = run.makers()
        self._idle: dict[str, list[Game]] = {}
        self._seats = team.seats(run, run_dir)
        self._store = SqliteStore(":memory:", time.time)
        self._engines = {name: team.engine(run, run_dir, name) for name in run.policies}
        self._trainers = {
            name: team.trainer(run, run_dir, name, self._engines) for name in run.policies
        }
        for policy in run.policies:
            self._publish(policy)

    def serving(self) -> Mapping[str, Engine]:
        """Engines by policy, freshly loaded with the latest weights."""
        for policy, engine in self._engines.items():
            weights = self._store.latest(policy)
            assert weights is not None, "every policy publishes from the start"
            engine.load(weights)
            self._store.served(f"the engine of {policy}", policy, engine.version)
        return self._engines

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Play these episodes and put them into the store of every policy."""
        engines = self.serving()
        versions = {policy: engine.version for policy, engine in engines.items()}
        return team.collect(
            self._run,
            self._makers,
            self._seats,
            engines,
            versions,
            self._store,
            plans,
            self._idle,
        )

    def learn(self, policy: str, episodes: int) -> Lesson:
        """Claim that many episodes, whole groups, update the policy once, publish its weights."""
        trainer = self._trainers[policy]
        groups = episodes // self._run.rollout.group_size
        claim = self._store.claim(policy, groups, trainer.learner.version, math.inf)
        if claim is None:
            raise TrainingError(f"fewer than {episodes} fresh episodes wait for policy {policy!r}")
        lesson = trainer.learn(episodes_of(claim.records))
        self._store.acknowledge(policy, claim.id)
        self._publish(policy)
        return lesson

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""
        self._trainers[policy].save(folder)

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""
        self._trainers[policy].restore(folder)
        self._publish(policy)

    def save_store(self, path: Path) -> None:
        """Write a file of the store as it is."""
        self._store.save(path)

    def restore_store(self, path: Path) -> None:
        """Go on with what `save_store` wrote."""
        self._store.restore(path)

    def close(self) -> None:
        """Let the store go; there is no process to end."""
        self._store.close()

    def _publish(self, policy: str) -> None:
        self._store.publish(self._trainers[policy].learner.weights())
