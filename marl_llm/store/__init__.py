"""The store: where records wait for their learner and weights for their engines.

Rollout puts a policy's episodes under that policy's topic; its learner claims those that are fresh
enough, and acknowledges them once they are learned from. A claim is a lease: what is not
acknowledged in time can be claimed again. Putting the same record twice changes nothing. The store
never looks inside a record and knows no game and no torch.

`MemoryStore` is a plain class; `cluster/` wraps the same class in an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from marl_llm.errors import EpisodeError, TrainingError
from marl_llm.types import Weights


@dataclass(frozen=True, slots=True)
class Claim:
    """Records handed to a learner until `expires` (seconds on the store's clock)."""

    id: int
    records: tuple[Any, ...]
    expires: float


class Store(Protocol):
    """What rollout, learners and engines need of a store."""

    def put(self, policy: str, version: int, records: Mapping[Any, Any]) -> int:
        """Keep records by their keys; how many were new."""

    def claim(self, policy: str, count: int, oldest: int, lease: float) -> Claim | None:
        """Lease `count` records of at least version `oldest`, None while there are fewer."""

    def acknowledge(self, policy: str, claim: int) -> None:
        """Forget the records of a claim: they have been learned from."""

    def publish(self, weights: Weights) -> None:
        """Make weights the latest of their policy."""

    def latest(self, policy: str) -> Weights | None:
        """The latest weights of a policy."""


@dataclass(slots=True)
class _Record:
    order: int
    version: int
    value: Any
    claim: int | None = None
    expires: float = 0.0


class _Topic:
    """What waits for one policy's learner."""

    def __init__(self) -> None:
        self.records: dict[Hashable, _Record] = {}
        self.seen: dict[Hashable, int] = {}  # key -> version, of all that could come again
        self.oldest = 0  # the learner takes nothing of an earlier version any more
        self.dropped = 0

    def forget(self, oldest: int) -> None:
        """Drop what is of an earlier version, and its keys: it is refused if it comes again."""
        if oldest <= self.oldest:
            return
        self.oldest = oldest
        stale = [key for key, record in self.records.items() if record.version < oldest]
        for key in stale:
            del self.records[key]
        self.dropped += len(stale)
        self.seen = {key: version for key, version in self.seen.items() if version >= oldest}


class MemoryStore:
    """The store of one process.

    Args:
        clock: seconds, monotonic.
        capacity: records that may wait per policy; more is refused, so a rollout that runs ahead
            of its learner hears of it.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = 1_000_000) -> None:
        self._clock, self._capacity = clock, capacity
        self._topics: dict[str, _Topic] = {}
        self._weights: dict[str, Weights] = {}
        self._numbers = 0

    def put(self, policy: str, version: int, records: Mapping[Any, Any]) -> int:
        """Keep records by their keys; how many were new.

        A key that was seen before changes nothing. Records older than what the learner last asked
        for are dropped and counted (`dropped`).

        Raises:
            TrainingError: the topic has no room for all of them; none was kept.
        """
        topic = self._topic(policy)
        new = {key: value for key, value in records.items() if key not in topic.seen}
        if version < topic.oldest:
            topic.dropped += len(new)
            return 0
        if len(topic.records) + len(new) > self._capacity:
            raise TrainingError(
                f"{len(topic.records)} records wait for the learner of {policy!r} and {len(new)} "
                f"come, but only {self._capacity} may wait; is the learner running?"
            )
        for key, value in new.items():
            self._numbers += 1
            topic.seen[key] = version
            topic.records[key] = _Record(self._numbers, version, value)
        return len(new)

    def claim(self, policy: str, count: int, oldest: int, lease: float) -> Claim | None:
        """Lease the `count` oldest free records of at least version `oldest`.

        Records of an earlier version are dropped and counted (`dropped`).
        """
        topic, now = self._topic(policy), self._clock()
        topic.forget(oldest)
        free = [r for r in topic.records.values() if r.claim is None or r.expires <= now]
        if len(free) < count:
            return None
        self._numbers += 1
        chosen = sorted(free, key=lambda record: record.order)[:count]
        for record in chosen:
            record.claim, record.expires = self._numbers, now + lease
        return Claim(self._numbers, tuple(record.value for record in chosen), now + lease)

    def acknowledge(self, policy: str, claim: int) -> None:
        """Forget the records of a claim.

        Raises:
            EpisodeError: the claim is unknown, or its lease ran out and others took the records.
        """
        records = self._topic(policy).records
        keys = [key for key, record in records.items() if record.claim == claim]
        if not keys:
            raise EpisodeError(f"claim {claim} of {policy!r} is unknown, or its lease has expired")
        for key in keys:
            del records[key]

    def publish(self, weights: Weights) -> None:
        """Make weights the latest of their policy.

        Raises:
            EpisodeError: an older version than the latest one.
        """
        latest = self._weights.get(weights.policy)
        if latest is not None and weights.version < latest.version:
            raise EpisodeError(
                f"{weights.policy!r} has version {latest.version}; cannot go back to "
                f"{weights.version}"
            )
        self._weights[weights.policy] = weights

    def latest(self, policy: str) -> Weights | None:
        """The latest weights of a policy, None before the first."""
        return self._weights.get(policy)

    def waiting(self, policy: str) -> int:
        """Records of a policy that are neither learned from nor dropped."""
        return len(self._topic(policy).records)

    def dropped(self, policy: str) -> int:
        """Records of a policy that were too old when their turn came, or when they came."""
        return self._topic(policy).dropped

    def remembered(self, policy: str) -> int:
        """Keys that are kept so that their records do no harm when they come again."""
        return len(self._topic(policy).seen)

    def _topic(self, policy: str) -> _Topic:
        return self._topics.setdefault(policy, _Topic())
