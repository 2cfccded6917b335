"""What lives inside the actors: plain classes, made in the actor's process from a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from marl_llm import team
from marl_llm import weights as files
from marl_llm.cluster import recovery
from marl_llm.cluster.clients import STORE, RemoteEngine, RemoteStore, StrangerError, engine_of
from marl_llm.cluster.incidents import ToolWatch
from marl_llm.cluster.processes import here
from marl_llm.errors import EpisodeError
from marl_llm.games import Game
from marl_llm.rollout.plans import Plan
from marl_llm.settings import RunSettings
from marl_llm.store import FILE, SqliteStore
from marl_llm.store.episodes import Written
from marl_llm.trainer import Lesson
from marl_llm.types import Completion, Episode, Request, Weights

WEIGHTS = "weights"  # folder of a run, what the engines are to serve
SERVED = 3  # versions kept there
LEASE_SECONDS = 24 * 3600.0  # no other learner takes over a policy's records


class StoreHost(SqliteStore):
    """The run's store."""

    def __init__(self, run_dir: Path, retries: int) -> None:
        """Open its file, or make it."""
        here(run_dir, STORE)
        super().__init__(run_dir / FILE, time.time, retries=retries)


class EngineHost:
    """A policy's server, shared by clients whose requests are decoded together."""

    def __init__(self, run: RunSettings, run_dir: Path, policy: str, threads: int) -> None:
        """Load the engine.

        Args:
            run: the settings.
            run_dir: the run folder.
            policy: whose weights are served.
            threads: for torch.
        """
        here(run_dir, engine_of(policy))
        team.use_threads(threads)
        self._policy, self._store = policy, RemoteStore()
        self._engine = team.engine(run, run_dir, policy)
        self._life = os.urandom(8).hex()  # no client of one life is known in another
        self._clients, self._numbers = count(), count()
        self._asked: dict[int, tuple[str, int]] = {}  # our number -> client, the client's id
        self._finished: dict[str, list[Completion]] = {}  # by client
        if self._store.latest(policy) is not None:
            self.load_latest()  # it takes the place of one that has ended
        team.settle()

    def ready(self) -> None:
        """Once everything is loaded."""

    def busy_seconds(self) -> float:
        """Spent decoding, in the life of this process."""
        return self._engine.busy_seconds

    def join(self) -> tuple[str, int, int]:
        """Take on a client: its name, the version now served, and the context."""
        client = f"{self._life} {next(self._clients)}"
        self._finished[client] = []
        return client, self._engine.version, self._engine.context

    def exchange(
        self, client: str, requests: Sequence[Request], timeout: float
    ) -> tuple[list[Completion], int]:
        """Take a client's requests, whose deadlines are seconds from now; give what is finished.

        Returns:
            The client's replies, which may be none if others' were finished first, and the version.

        Raises:
            StrangerError: the client joined an engine that has ended since.
        """
        if client not in self._finished:
            raise StrangerError(f"the engine of {self._policy} was started anew; join it again")
        now = time.monotonic()
        numbered = []
        for request in requests:
            number = next(self._numbers)
            deadline = None if request.deadline is None else now + request.deadline
            numbered.append(replace(request, id=number, deadline=deadline))
            self._asked[number] = client, request.id
        self._engine.submit(numbered)
        if not self._finished[client]:
            for completion in self._engine.poll(timeout):
                owner, number = self._asked.pop(completion.id)
                self._finished[owner].append(replace(completion, id=number))
        done, self._finished[client] = self._finished[client], []
        return done, self._engine.version

    def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[list[float]]:
        """As `Engine.score`."""
        return self._engine.score(sequences, temperature)

    def load(self, weights: Weights) -> int:
        """Take new weights and say which version is served now."""
        self._engine.load(weights)
        self._store.served(f"the engine of {self._policy}", self._policy, self._engine.version)
        return self._engine.version

    def load_latest(self) -> int:
        """Take the store's latest weights and say which version is served now."""
        weights = self._store.latest(self._policy)
        assert weights is not None, "a trainer publishes before its engine is asked for anything"
        return self.load(weights)


class TrainerHost:
    """A policy's trainer, which learns when it is told to and loses nothing when it is killed."""

    def __init__(self, run: RunSettings, run_dir: Path, policy: str, threads: int) -> None:
        """Load the learner, as far as it had come; its weights become the store's latest.

        It becomes a client of all engines if its annotators or its credit rule ask for anything.

        Args:
            run: the settings.
            run_dir: the run folder.
            policy: what is trained.
            threads: for torch.
        """
        here(run_dir, f"the trainer of {policy}")
        team.use_threads(threads)
        self._run, self._policy, self._store = run, policy, RemoteStore()
        self._kept, self._served = run_dir / recovery.FOLDER / policy, run_dir / WEIGHTS / policy
        asked = run.policies if run.policies[policy].reaches else {}
        clients = {name: RemoteEngine(name) for name in asked}
        self._trainer = team.trainer(run, run_dir, policy, clients)
        self._tools = ToolWatch(run_dir, f"the trainer of {policy}")
        self._lessons, self._last = 0, Lesson(policy, {}, np.zeros(0))
        if (note := recovery.latest(self._kept)) is not None:
            self._trainer.restore(note.folder)
            self._lessons, self._last = note.lessons, note.lesson
            with suppress(EpisodeError):  # it was done with, or there was none
                self._store.acknowledge(policy, note.claim)
        self._store.release(policy)
        self._publish()

    def ready(self) -> None:
        """Once everything is loaded."""

    def lessons(self) -> int:
        """How many it gave since the run was started or resumed."""
        return self._lessons

    def learn(self, lessons: int, update: int) -> Lesson:
        """Claim the games of an update, update once, publish.

        Args:
            lessons: how many there were before; one that is asked for twice is given again.
            update: whose games.
        """
        if self._lessons > lessons:
            return self._last
        self._last, claim = team.learn(
            self._run, self._trainer, self._store, Written(), update, LEASE_SECONDS
        )
        self._tools.look()
        self._lessons += 1
        self._keep(claim)
        self._store.acknowledge(self._policy, claim)
        self._publish()
        return self._last

    def save(self, folder: Path) -> None:
        """Write the whole state into a folder, whatever half of one is in it."""
        for path in folder.iterdir():
            path.unlink()
        self._trainer.save(folder)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote and publish it."""
        self._trainer.restore(folder)
        self._keep(0)
        self._publish()

    def _keep(self, claim: int) -> None:
        recovery.keep(self._kept, self._lessons, claim, self._last, self._trainer.save)

    def _publish(self) -> None:
        """Write the weights into a file, which outlives this process, and tell the store."""
        weights = self._trainer.learner.weights()
        path = self._served / f"{weights.version:06d}.safetensors"
        assert weights.tensors is not None, "a learner's weights are in memory"
        files.write(weights.tensors, path)
        self._store.publish(replace(weights, tensors=None, path=str(path)))
        for old in sorted(self._served.glob("*.safetensors"))[:-SERVED]:
            old.unlink()


class RolloutHost:
    """A rollout worker: plays its share of the games against the policies' servers."""

    def __init__(self, run: RunSettings, run_dir: Path, number: int, threads: int) -> None:
        """Make the seats, and become a client of every engine.

        Args:
            run: the settings.
            run_dir: the run folder.
            number: of the worker.
            threads: for torch.
        """
        here(run_dir, f"rollout worker {number}")
        team.use_threads(threads)
        self._run, self._store = run, RemoteStore()
        self._makers, self._seats = run.makers(), team.seats(run, run_dir)
        self._engines = {name: RemoteEngine(name) for name in run.policies}
        self._idle: dict[str, list[Game]] = {}
        self._tools = ToolWatch(run_dir, f"rollout worker {number}")
        team.settle()

    def ready(self) -> None:
        """Once everything is loaded."""

    def collect(
        self, plans: Sequence[Plan], versions: Mapping[str, int], lock_step: bool
    ) -> list[Episode]:
        """Play these episodes and put them into the store of every policy.

        Args:
            plans: what to play.
            versions: of the weights that the engines serve now, by policy.
            lock_step: as in `rollout.play`.
        """
        try:
            return team.collect(
                self._run,
                self._makers,
                self._seats,
                self._engines,
                versions,
                self._store,
                Written(),
                plans,
                self._idle,
                lock_step,
            )
        finally:
            self._tools.look()
