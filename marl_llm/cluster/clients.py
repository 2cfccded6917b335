"""Typed clients of actors, so that nobody else writes ``.remote``. Every wait has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from marl_llm.errors import DeadlineError, EpisodeError, MarlError
from marl_llm.store import Claim, Consumer, Counts, Missing, Record, Rule
from marl_llm.types import Completion, Request, Weights

RESTART_SECONDS = 120.0  # how long a process that has ended may take to be there again
RETRY_SECONDS = 0.2
CALL_SECONDS = 600.0  # an ordinary call that takes longer is a hang
WORK_SECONDS = 24 * 3600.0  # a rollout, which has deadlines of its own, or an update of any size
DECODE_SECONDS = 60.0  # how long one exchange lets an engine decode before it says "nothing yet"


STORE = "the store"  # names of actors, by which they find each other, before and after a restart


def engine_of(policy: str) -> str:
    """The name of a policy's engine."""
    return f"the engine of {policy}"


class EndedError(MarlError):
    """A process has ended. What it was asked for may have been done, or not."""


class StrangerError(MarlError):
    """An engine does not know this client: it has been started anew."""


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
        raise EndedError(
            f"the process of {who} has ended, perhaps for want of memory; go on from the last "
            "checkpoint with marl-llm train resume=RUNDIR"
        ) from error


def insist(call: Callable[[], ray.ObjectRef], who: str, seconds: float = CALL_SECONDS) -> Any:
    """As `answer`, and calls again while a process that has ended is started anew.

    Args:
        call: makes the call; twice must do no harm.
        who: is called, for errors.
        seconds: to wait for one answer.
    """
    end = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            return answer(call(), who, seconds)
        except EndedError:
            if time.monotonic() > end:
                raise
            time.sleep(RETRY_SECONDS)


class RemoteStore:
    """The store, in its actor; every call as in `Store`."""

    def __init__(self, actor: Any = None) -> None:
        """A client of this actor; None = of the run's store."""
        self._actor: Any = ray.get_actor(STORE) if actor is None else actor

    def put(self, topic: str, records: Sequence[Record]) -> int:
        """As `Store.put`."""
        return insist(lambda: self._actor.put.remote(topic, records), STORE)

    def room(self, topic: str) -> int:
        """As `Store.room`."""
        return insist(lambda: self._actor.room.remote(topic), STORE)

    def claim(
        self,
        topic: str,
        groups: int,
        oldest: int,
        lease: float,
        rule: Rule = "wait",
        before: int | None = None,
    ) -> Claim | None:
        """As `Store.claim`."""
        call = partial(self._actor.claim.remote, topic, groups, oldest, lease, rule, before)
        try:
            return answer(call(), STORE)
        except EndedError:  # it may have leased what it could not hand over
            self.release(topic)
            return insist(call, STORE)

    def acknowledge(self, topic: str, claim: int) -> None:
        """As `Store.acknowledge`."""
        self.settle(topic, claim, {})

    def release(self, topic: str) -> None:
        """As `Store.release`."""
        insist(lambda: self._actor.release.remote(topic), STORE)

    def settle(self, topic: str, claim: int, puts: Mapping[str, Sequence[Record]]) -> int:
        """As `Store.settle`."""
        call = partial(self._actor.settle.remote, topic, claim, puts)
        try:
            return answer(call(), STORE)
        except EndedError:  # it may have done it
            try:
                return insist(call, STORE)
            except EpisodeError:
                return 0

    def missing(self, topic: str) -> Sequence[Missing]:
        """As `Store.missing`."""
        return insist(lambda: self._actor.missing.remote(topic), STORE)

    def counts(self, topic: str) -> Counts:
        """As `Store.counts`."""
        return insist(lambda: self._actor.counts.remote(topic), STORE)

    def publish(self, weights: Weights) -> None:
        """As `Store.publish`."""
        insist(lambda: self._actor.publish.remote(weights), STORE)

    def latest(self, policy: str) -> Weights | None:
        """As `Store.latest`."""
        return insist(lambda: self._actor.latest.remote(policy), STORE)

    def served(self, consumer: str, policy: str, version: int) -> None:
        """As `Store.served`."""
        insist(lambda: self._actor.served.remote(consumer, policy, version), STORE)

    def consumers(self) -> Sequence[Consumer]:
        """As `Store.consumers`."""
        return insist(lambda: self._actor.consumers.remote(), STORE)

    def save(self, path: Path) -> None:
        """As `Store.save`."""
        insist(lambda: self._actor.save.remote(path.resolve()), STORE)

    def restore(self, path: Path) -> None:
        """As `Store.restore`."""
        insist(lambda: self._actor.restore.remote(path.resolve()), STORE)


class RemoteEngine:
    """A policy's engine, in its actor, which may have several clients.

    One exchange of a client is under way at a time: it hands over what was submitted and brings
    what is finished, so a batch of replies costs one message each way.
    """

    def __init__(self, policy: str) -> None:
        """Become a client; waits until the engine is loaded."""
        self._who = engine_of(policy)
        self._actor: Any = ray.get_actor(self._who)
        self._queue: list[Request] = []  # to be handed over
        self._asked: dict[int, Request] = {}  # without a reply so far
        self._pending: ray.ObjectRef | None = None
        self._join()

    def submit(self, requests: Sequence[Request]) -> None:
        """As `Engine.submit`."""
        self._queue.extend(requests)
        self._asked |= {request.id: request for request in requests}
        self._exchange()

    def poll(self, timeout: float) -> list[Completion]:
        """As `Engine.poll`; an engine that was started anew is asked again for what is missing."""
        end = time.monotonic() + timeout
        while self._asked:
            pending = self._exchange()
            ready, _ = ray.wait([pending], timeout=max(end - time.monotonic(), 0.0))
            if not ready:
                return []
            self._pending = None
            try:
                done, self.version = answer(pending, self._who)
            except (EndedError, StrangerError):
                if time.monotonic() > end:  # it ends again and again
                    raise
                self._join()
                continue
            for completion in done:
                del self._asked[completion.id]
            if done:
                return done
        return []

    def score(
        self,
        sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """As `Engine.score`; a batch of any size is one call."""
        call = partial(self._actor.score.remote, sequences, temperature)
        return insist(call, self._who, WORK_SECONDS)

    def load(self, weights: Weights) -> None:
        """As `Engine.load`."""
        self.version = insist(lambda: self._actor.load.remote(weights), self._who)

    def load_latest(self) -> None:
        """Have the engine fetch the store's latest weights of its policy, as `load` does."""
        self.version = insist(self._actor.load_latest.remote, self._who)

    def busy_seconds(self) -> float:
        """How long the engine has decoded, for whomever, since it was started."""
        return float(insist(self._actor.busy_seconds.remote, self._who))

    def _join(self) -> None:
        """Become a client, of an engine that knows nothing of what was asked before."""
        self._client, self.version, self.context = insist(self._actor.join.remote, self._who)
        self._queue = list(self._asked.values())

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
