"""`runtime=local`: everything in one process; the default for a first run.

It does step by step what a cluster does at the same time: rollout puts episodes into the store, the
policy's trainer claims them, its weights go through the store to the engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from marl_llm import team
from marl_llm.errors import TrainingError
from marl_llm.rollout.plans import Plan
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.store import MemoryStore
from marl_llm.trainer import Lesson, Trainer
from marl_llm.types import Episode


class LocalRuntime:
    """Engines, trainers and the store as plain objects."""

    def __init__(self, run: RunSettings, run_dir: Path) -> None:
        """Make the parts from the run folder's models; engines get the trainers' weights."""
        self._run = run
        self._makers = run.makers()
        self._seats = team.seats(run, run_dir)
        self._store = MemoryStore(time.monotonic)
        self._trainers = {name: team.trainer(run, run_dir, name) for name in run.policies}
        self.engines: Mapping[str, Engine] = {
            name: team.engine(run, run_dir, name) for name in run.policies
        }
        for policy, trainer in self._trainers.items():
            self._publish(policy, trainer)

    def _publish(self, policy: str, trainer: Trainer) -> None:
        self._store.publish(trainer.learner.weights())
        self._load(policy)

    def _load(self, policy: str) -> None:
        weights = self._store.latest(policy)
        assert weights is not None, "a policy publishes before its weights are loaded"
        self.engines[policy].load(weights)

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Play these episodes and put them into the store of every policy."""
        for policy in self._trainers:
            # Also forgets prefixes cached by an evaluation, so that a resumed run meets the same.
            self._load(policy)
        return team.collect(self._run, self._makers, self._seats, self.engines, self._store, plans)

    def learn(self, policy: str, episodes: int) -> Lesson:
        """Claim that many episodes, update the policy once, publish and load its weights."""
        trainer = self._trainers[policy]
        claim = self._store.claim(policy, episodes, trainer.learner.version, float("inf"))
        if claim is None:
            raise TrainingError(f"fewer than {episodes} fresh episodes wait for policy {policy!r}")
        lesson = trainer.learn(claim.records)
        self._store.acknowledge(policy, claim.id)
        self._store.publish(lesson.weights)
        self._load(policy)
        return lesson

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""
        self._trainers[policy].save(folder)

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""
        self._trainers[policy].restore(folder)
        self._publish(policy, self._trainers[policy])

    def close(self) -> None:
        """Nothing to end."""
