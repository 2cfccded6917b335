"""The store: where records wait for their learner and weights for their engines.

Rollout puts a policy's episodes under that policy's topic; its learner claims those that are fresh
enough, and acknowledges them once they are learned from. A claim is a lease: what is not acknowledged
in time can be claimed again. Putting the same record twice changes nothing. The store never looks
inside a record and knows no game and no torch.

`MemoryStore` is a plain class; `cluster/` wraps the same class in an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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

    def put(self, policy: str, key: Hashable, version: int, record: Any) -> bool:
        """Keep a record; False when this key of this policy was seen before."""

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


class MemoryStore:
    """The store of one process.

    Args:
        clock: seconds, monotonic.
        capacity: records that may wait per policy; more is refused, so a rollout that runs ahead
            of its learner hears of it.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = 1_000_000) -> None:
        self._clock, self._capacity = clock, capacity
        self._topics: dict[str, dict[Hashable, _Record]] = {}
        self._seen: dict[str, set[Hashable]] = {}
        self._weights: dict[str, Weights] = {}
        self._dropped: dict[str, int] = {}
        self._numbers = 0

    def put(self, policy: str, key: Hashable, version: int, record: Any) -> bool:
        """Keep a record; False when this key of this policy was seen before.

        Raises:
            TrainingError: the topic is full.
        """
        seen = self._seen.setdefault(policy, set())
        if key in seen:
            return False
        topic = self._topics.setdefault(policy, {})
        if len(topic) >= self._capacity:
            raise TrainingError(
                f"{len(topic)} records wait for the learner of {policy!r}, the most that "
                "store.capacity allows; is the learner running?"
            )
        seen.add(key)
        self._numbers += 1
        topic[key] = _Record(self._numbers, version, record)
        return True

    def claim(self, policy: str, count: int, oldest: int, lease: float) -> Claim | None:
        """Lease the `count` oldest free records of at least version `oldest`.

        Records of an earlier version are dropped and counted (`dropped`).
        """
        topic, now = self._topics.setdefault(policy, {}), self._clock()
        stale = [key for key, record in topic.items() if record.version < oldest]
        for key in stale:
            del topic[key]
        self._dropped[policy] = self._dropped.get(policy, 0) + len(stale)
        free = [r for r in topic.values() if r.claim is None or r.expires <= now]
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
        topic = self._topics.get(policy, {})
        keys = [key for key, record in topic.items() if record.claim == claim]
        if not keys:
            raise EpisodeError(f"claim {claim} of {policy!r} is unknown, or its lease has expired")
        for key in keys:
            del topic[key]

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
        return len(self._topics.get(policy, {}))

    def dropped(self, policy: str) -> int:
        """Records of a policy that were too old when their turn came."""
        return self._dropped.get(policy, 0)


def put_episodes(store: Store, policy: str, version: int, episodes: Sequence[Any]) -> None:
    """Put finished episodes under a policy, by (episode, attempt)."""
    for episode in episodes:
        store.put(policy, (episode.id, episode.attempt), version, episode)
