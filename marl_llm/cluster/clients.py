"""Typed clients of actors, so that nobody else writes ``.remote``. Every wait has a deadline."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any

import ray

from marl_llm.errors import DeadlineError, MarlError
from marl_llm.store import Claim
from marl_llm.types import Completion, Request, Weights

CALL_SECONDS = 600.0  # a single call that takes longer is a hang
DECODE_SECONDS = 60.0  # how long one exchange lets an engine decode before it says "nothing yet"


def call(method: Any, *arguments: Any, seconds: float = CALL_SECONDS) -> Any:
    """The answer of an actor.

    Raises:
        DeadlineError: no answer in time.
        MarlError: the actor's own error, as it was raised there, or that the actor died.
    """
    return answer(method.remote(*arguments), method._method_name, seconds)


def answer(pending: ray.ObjectRef, name: str, seconds: float = CALL_SECONDS) -> Any:
    """What a call that was made earlier has brought, see `call`."""
    try:
        return ray.get(pending, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise DeadlineError(f"no answer from {name} within {seconds:.0f} s") from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, MarlError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise MarlError(
            f"the process behind {name} ended ({' '.join(str(error).split())[:300]}); go on from "
            "the last checkpoint with train resume=RUNDIR"
        ) from error


class RemoteStore:
    """The store, in its actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def put(self, policy: str, key: Hashable, version: int, record: Any) -> bool:
        """As `Store.put`."""
        return call(self._actor.put, policy, key, version, record)

    def claim(self, policy: str, count: int, oldest: int, lease: float) -> Claim | None:
        """As `Store.claim`."""
        return call(self._actor.claim, policy, count, oldest, lease)

    def acknowledge(self, policy: str, claim: int) -> None:
        """As `Store.acknowledge`."""
        call(self._actor.acknowledge, policy, claim)

    def publish(self, weights: Weights) -> None:
        """As `Store.publish`."""
        call(self._actor.publish, weights)

    def latest(self, policy: str) -> Weights | None:
        """As `Store.latest`."""
        return call(self._actor.latest, policy)


class RemoteEngine:
    """A policy's engine, in its actor.

    One exchange is under way at a time: it hands over what was submitted and brings what is finished,
    so a batch of replies costs one message each way.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._queue: list[Request] = []
        self._pending: ray.ObjectRef | None = None
        self._in_flight = 0
        self.version, self.context = call(actor.facts)

    def __reduce__(self) -> tuple[type[RemoteEngine], tuple[Any]]:
        return RemoteEngine, (self._actor,)

    def submit(self, requests: Sequence[Request]) -> None:
        """As `Engine.submit`."""
        self._queue.extend(requests)
        self._in_flight += len(requests)
        self._exchange()

    def poll(self, timeout: float) -> list[Completion]:
        """As `Engine.poll`."""
        end = time.monotonic() + timeout
        while self._in_flight:
            self._exchange()
            left = end - time.monotonic()
            ready, _ = ray.wait([self._pending], timeout=max(left, 0.0))
            if not ready:
                return []
            done, self.version, self.context = answer(self._pending, "engine.exchange")
            self._pending = None
            self._in_flight -= len(done)
            if done:
                return done
        return []

    def score(
        self,
        sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """As `Engine.score`."""
        return call(self._actor.score, sequences, temperature)

    def load(self, weights: Weights) -> None:
        """As `Engine.load`."""
        self.version = call(self._actor.load, weights)

    def _exchange(self) -> None:
        if self._pending is None:
            requests, self._queue = self._queue, []
            self._pending = self._actor.exchange.remote(requests, DECODE_SECONDS)
