"""Typed clients of actors, so that nobody else writes ``.remote``. Every wait has a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from marl_llm.errors import DeadlineError, MarlError
from marl_llm.store import Claim, Consumer, Counts, Missing, Record, Rule
from marl_llm.types import Completion, Request, Weights

CALL_SECONDS = 600.0  # an ordinary call that takes longer is a hang
WORK_SECONDS = 24 * 3600.0  # a rollout, which has deadlines of its own, or an update of any size
DECODE_SECONDS = 60.0  # how long one exchange lets an engine decode before it says "nothing yet"


def answer(pending: ray.ObjectRef, who: str, seconds: float = CALL_SECONDS) -> Any:
    """What a call brings.

    Args:
        pending: the call.
        who: was called, for errors.
        seconds: to wait at most.

    Raises:
        DeadlineError: no answer in time.
        MarlError: the actor's own error, as it was raised there; or the actor's process has ended.
    """
    try:
        return ray.get(pending, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise DeadlineError(
            f"no answer from {who} within {seconds:.0f} s; is the machine overloaded?"
        ) from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, MarlError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise MarlError(
            f"the process of {who} has ended, perhaps for want of memory; go on from the last "
            "checkpoint with marl-llm train resume=RUNDIR"
        ) from error


class RemoteStore:
    """The store, in its actor; every call as in `Store`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def put(self, topic: str, records: Sequence[Record]) -> int:
        """As `Store.put`."""
        return answer(self._actor.put.remote(topic, records), "the store")

    def room(self, topic: str) -> int:
        """As `Store.room`."""
        return answer(self._actor.room.remote(topic), "the store")

    def claim(
        self, topic: str, groups: int, oldest: int, lease: float, rule: Rule = "wait"
    ) -> Claim | None:
        """As `Store.claim`."""
        return answer(self._actor.claim.remote(topic, groups, oldest, lease, rule), "the store")

    def acknowledge(self, topic: str, claim: int) -> None:
        """As `Store.acknowledge`."""
        answer(self._actor.acknowledge.remote(topic, claim), "the store")

    def settle(self, topic: str, claim: int, puts: Mapping[str, Sequence[Record]]) -> int:
        """As `Store.settle`."""
        return answer(self._actor.settle.remote(topic, claim, puts), "the store")

    def missing(self, topic: str) -> Sequence[Missing]:
        """As `Store.missing`."""
        return answer(self._actor.missing.remote(topic), "the store")

    def counts(self, topic: str) -> Counts:
        """As `Store.counts`."""
        return answer(self._actor.counts.remote(topic), "the store")

    def publish(self, weights: Weights) -> None:
        """As `Store.publish`."""
        answer(self._actor.publish.remote(weights), "the store")

    def latest(self, policy: str) -> Weights | None:
        """As `Store.latest`."""
        return answer(self._actor.latest.remote(policy), "the store")

    def served(self, consumer: str, policy: str, version: int) -> None:
        """As `Store.served`."""
        answer(self._actor.served.remote(consumer, policy, version), "the store")

    def consumers(self) -> Sequence[Consumer]:
        """As `Store.consumers`."""
        return answer(self._actor.consumers.remote(), "the store")

    def save(self, path: Path) -> None:
        """As `Store.save`."""
        answer(self._actor.save.remote(path.resolve()), "the store")

    def restore(self, path: Path) -> None:
        """As `Store.restore`."""
        answer(self._actor.restore.remote(path.resolve()), "the store")


class RemoteEngine:
    """A policy's engine, in its actor, which may have several clients.

    One exchange of a client is under way at a time: it hands over what was submitted and brings
    what is finished, so a batch of replies costs one message each way.
    """

    def __init__(self, actor: Any, policy: str) -> None:
        """Become a client; waits until the engine is loaded."""
        self._actor, self._who = actor, f"the engine of {policy}"
        self._queue: list[Request] = []
        self._pending: ray.ObjectRef | None = None
        self._in_flight = 0
        self._client, self.version, self.context = answer(actor.join.remote(), self._who)

    def submit(self, requests: Sequence[Request]) -> None:
        """As `Engine.submit`."""
        self._queue.extend(requests)
        self._in_flight += len(requests)
        self._exchange()

    def poll(self, timeout: float) -> list[Completion]:
        """As `Engine.poll`."""
        end = time.monotonic() + timeout
        while self._in_flight:
            pending = self._exchange()
            ready, _ = ray.wait([pending], timeout=max(end - time.monotonic(), 0.0))
            if not ready:
                return []
            self._pending = None
            done, self.version = answer(pending, self._who)
            self._in_flight -= len(done)
            if done:
                return done
        return []

    def score(
        self,
        sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """As `Engine.score`; a batch of any size is one call."""
        pending = self._actor.score.remote(sequences, temperature)
        return answer(pending, self._who, WORK_SECONDS)

    def load(self, weights: Weights) -> None:
        """As `Engine.load`."""
        self.version = answer(self._actor.load.remote(weights), self._who)

    def load_latest(self) -> None:
        """Have the engine fetch the store's latest weights of its policy, as `load` does."""
        self.version = answer(self._actor.load_latest.remote(), self._who)

    def _exchange(self) -> ray.ObjectRef:
        if self._pending is None:
            now = time.monotonic()
            # Clocks of two machines have nothing in common: a deadline travels as the time left.
            requests = [
                request
                if request.deadline is None
                else replace(request, deadline=request.deadline - now)
                for request in self._queue
            ]
            self._queue = []
            self._pending = self._actor.exchange.remote(self._client, requests, DECODE_SECONDS)
        return self._pending
