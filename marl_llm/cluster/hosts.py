"""What lives inside the actors: plain classes, made in the actor's process from a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from marl_llm import team
from marl_llm.errors import TrainingError
from marl_llm.rollout.plans import Plan
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.store import Store
from marl_llm.trainer import Lesson
from marl_llm.types import Completion, Episode, Request, Weights


class EngineHost:
    """A policy's server."""

    def __init__(self, run: RunSettings, run_dir: Path, policy: str) -> None:
        """Load the engine."""
        _set_threads(run)
        self._engine = team.engine(run, run_dir, policy)

    def exchange(
        self, requests: Sequence[Request], timeout: float
    ) -> tuple[list[Completion], int, int]:
        """Take requests, give what is finished, the version, and the context."""
        self._engine.submit(requests)
        return self._engine.poll(timeout), self._engine.version, self._engine.context

    def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[list[float]]:
        """As `Engine.score`."""
        return self._engine.score(sequences, temperature)

    def load(self, weights: Weights) -> int:
        """Take new weights and say which version is served now."""
        self._engine.load(weights)
        return self._engine.version

    def facts(self) -> tuple[int, int]:
        """Version and context."""
        return self._engine.version, self._engine.context


class TrainerHost:
    """A policy's trainer."""

    def __init__(self, run: RunSettings, run_dir: Path, policy: str, store: Store) -> None:
        """Load the learner; its weights become the store's latest."""
        _set_threads(run)
        self._policy, self._store = policy, store
        self._staleness = run.runtime.max_staleness
        self._trainer = team.trainer(run, run_dir, policy)
        self._store.publish(self._trainer.learner.weights())

    def ready(self) -> int:
        """Its version, once it is loaded."""
        return self._trainer.learner.version

    def learn(self, episodes: int) -> Lesson:
        """Claim that many fresh episodes, update once, publish.

        Raises:
            TrainingError: fewer episodes of a fresh enough version wait in the store.
        """
        version = self._trainer.learner.version
        claim = self._store.claim(self._policy, episodes, version - self._staleness, 3600.0)
        if claim is None:
            raise TrainingError(
                f"fewer than {episodes} fresh episodes wait for policy {self._policy!r} at "
                f"version {version}"
            )
        lesson = self._trainer.learn(claim.records)
        self._store.acknowledge(self._policy, claim.id)
        self._store.publish(lesson.weights)
        return lesson

    def save(self, folder: Path) -> None:
        """Write the whole state into an empty folder."""
        self._trainer.save(folder)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote and publish it."""
        self._trainer.restore(folder)
        self._store.publish(self._trainer.learner.weights())


class RolloutHost:
    """A rollout worker: plays its share of the games against the policies' servers."""

    def __init__(
        self, run: RunSettings, run_dir: Path, engines: Mapping[str, Engine], store: Store
    ) -> None:
        """Make the games and seats."""
        _set_threads(run)
        self._run, self._engines, self._store = run, engines, store
        self._makers, self._seats = run.makers(), team.seats(run, run_dir)

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Play these episodes and put them into the store of every policy."""
        return team.collect(self._run, self._makers, self._seats, self._engines, self._store, plans)


def _set_threads(run: RunSettings) -> None:
    if run.runtime.threads is not None:
        torch.set_num_threads(run.runtime.threads)
