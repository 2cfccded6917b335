"""`runtime=local`: everything in one process; the default for a first run.

It does step by step what a cluster does at the same time: rollout puts episodes into the store, the
policy's trainer claims them, its weights go through the store to the engine. With a staleness above
0 games come before lessons wherever both may be next, so that they are as old as is allowed: the
worst that a cluster can do, and the same every time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from marl_llm import team
from marl_llm.games import Game
from marl_llm.rollout.plans import Plan
from marl_llm.runtime import Collected, Learned, Reading, learning
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.store import SqliteStore
from marl_llm.store.episodes import AtHand


class LocalRuntime:
    """Engines, trainers and the store as plain objects; what is begun is done when waited for."""

    def __init__(self, run: RunSettings, run_dir: Path) -> None:
        """Make the parts from the run folder's models."""
        self._run = run
        self._makers = run.makers()
        self._idle: dict[str, list[Game]] = {}
        self._seats = team.seats(run, run_dir)
        self._store = SqliteStore(":memory:", time.time, retries=run.rollout.retries)
        self._carrier = AtHand()
        self._engines = {name: team.engine(run, run_dir, name) for name in run.policies}
        self._trainers = {
            name: team.trainer(run, run_dir, name, self._engines) for name in run.policies
        }
        self._games: deque[tuple[int, Sequence[Plan]]] = deque()  # to be played
        self._lessons: deque[tuple[str, int]] = deque()  # to be given
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

    def collect(self, update: int, plans: Sequence[Plan]) -> None:
        """Have these episodes played for the store of every policy that then learns."""
        self._games.append((update, plans))

    def learn(self, policy: str, update: int) -> None:
        """Have the policy learn from the games of an update."""
        self._lessons.append((policy, update))

    def wait(self) -> Collected | Learned:
        """Do the next thing."""
        return self._play(*self._games.popleft()) if self._games else self._teach()

    def _play(self, update: int, plans: Sequence[Plan]) -> Collected:
        engines = self.serving()
        before = self._reading()
        episodes = team.collect(
            self._run,
            self._makers,
            self._seats,
            engines,
            learning(self._run, update, engines),
            self._store,
            self._carrier,
            plans,
            self._idle,
        )
        after = self._reading()
        seconds = after.moment - before.moment
        return Collected(update, episodes, seconds, before.busy(after))

    def _teach(self) -> Learned:
        """Claim the games of an update, update the policy once, publish its weights."""
        policy, update = self._lessons.popleft()
        lesson, claim = team.learn(
            self._run, self._trainers[policy], self._store, self._carrier, update, math.inf
        )
        self._store.acknowledge(policy, claim)
        self._publish(policy)
        return Learned(lesson)

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

    def _reading(self) -> Reading:
        decoded = {policy: engine.busy_seconds for policy, engine in self._engines.items()}
        return Reading(time.monotonic(), decoded)

    def _publish(self, policy: str) -> None:
        self._store.publish(self._trainers[policy].learner.weights())
