"""The store on SQLite: a file of a run, or ":memory:" for the life of one process.

Every call is one transaction: it has happened as a whole when it returns, and not at all when it
raises or the process dies in it. Several processes may open one file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from marl_llm.errors import ConfigError, EpisodeError, nearest
from marl_llm.store import grouping
from marl_llm.store.arrivals import arrive, places
from marl_llm.store.records import Claim, Consumer, Counts, Missing, Record, Rule
from marl_llm.store.registry import WeightsRegister
from marl_llm.store.schema import connect, opened, telling
from marl_llm.types import Weights

CAPACITY = 1_000_000  # records
RETRIES = 3


class SqliteStore:
    """What rollout, learners and engines share; see `Store` for what the calls mean."""

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], float],
        capacity: int = CAPACITY,
        retries: int = RETRIES,
    ) -> None:
        """Open a store, or make it.

        Args:
            path: of its file, or ":memory:".
            clock: seconds that go on when the process has ended, such as `time.time`: leases
                outlive it.
            capacity: records that may wait per topic; more is refused, so a rollout that runs
                ahead of its learner hears of it. A group counts as whole from its first record on.
            retries: further attempts at an episode after the first has failed.
        """
        self._path, self._clock = path, clock
        self._capacity, self._retries = capacity, retries
        self._db = connect(path)
        self._weights = WeightsRegister(self._db)

    def put(self, topic: str, records: Sequence[Record]) -> int:
        """As `Store.put`."""
        with self._transaction():
            return arrive(self._db, topic, records, self._capacity, self._retries)

    def room(self, topic: str) -> int:
        """As `Store.room`."""
        return max(self._capacity - places(self._db, topic), 0)

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
        if rule not in grouping.EXCUSED:
            raise ConfigError(f"unknown rule {rule!r} of groups; {nearest(rule, grouping.EXCUSED)}")
        if groups < 1:
            raise EpisodeError(f"a claim is of at least one group, got {groups}")
        now = self._clock()
        with self._transaction():
            grouping.forget(self._db, topic, oldest, now)
            grouping.give_up(self._db, topic, rule, now)
            numbers = grouping.complete(self._db, topic, groups, rule, now, before)
            if len(numbers) < groups:
                return None
            claim = grouping.lease(self._db, topic, numbers, now + lease)
            return Claim(
                claim,
                grouping.records_of(self._db, topic, claim),
                now + lease,
                grouping.lost_of(self._db, topic, claim),
            )

    def acknowledge(self, topic: str, claim: int) -> None:
        """As `Store.acknowledge`."""
        self.settle(topic, claim, {})

    def release(self, topic: str) -> None:
        """As `Store.release`."""
        with self._transaction():
            self._db.execute(
                "UPDATE groups SET claim = NULL, expires = NULL WHERE topic = ? AND closed = 0",
                (topic,),
            )

    def settle(self, topic: str, claim: int, puts: Mapping[str, Sequence[Record]]) -> int:
        """As `Store.settle`."""
        with self._transaction():
            numbers = grouping.claimed(self._db, topic, claim)
            if not numbers:
                raise EpisodeError(
                    f"claim {claim} of {topic!r} is unknown, or its lease has expired"
                )
            grouping.close(self._db, topic, numbers, "acknowledged")
            return sum(
                arrive(self._db, other, records, self._capacity, self._retries)
                for other, records in puts.items()
            )

    def missing(self, topic: str) -> tuple[Missing, ...]:
        """As `Store.missing`."""
        return grouping.missing(self._db, topic, self._retries)

    def counts(self, topic: str) -> Counts:
        """As `Store.counts`."""
        row = self._db.execute(
            "SELECT put, waiting, leased, acknowledged, dropped, void, given_up, doubled"
            " FROM topics, (SELECT COALESCE(SUM(NOT had), 0) AS waiting,"
            " COALESCE(SUM(had), 0) AS leased FROM"
            " (SELECT claim IS NOT NULL AND expires > ? AS had"
            " FROM groups g INDEXED BY open_groups CROSS JOIN records r USING (topic, number)"
            " WHERE topic = ? AND closed = 0 AND r.void IS NULL)) WHERE name = ?",
            (self._clock(), topic, topic),
        ).fetchone()
        return Counts() if row is None else Counts(*row)

    def remembered(self, topic: str) -> int:
        """Keys that are kept so that their records do no harm when they come again."""
        (count,) = self._db.execute(
            "SELECT COUNT(*) FROM records WHERE topic = ?", (topic,)
        ).fetchone()
        return count

    def publish(self, weights: Weights) -> None:
        """As `Store.publish`."""
        with self._transaction():
            self._weights.publish(weights)

    def latest(self, policy: str) -> Weights | None:
        """As `Store.latest`."""
        return self._weights.latest(policy)

    def served(self, consumer: str, policy: str, version: int) -> None:
        """As `Store.served`."""
        with self._transaction():
            self._weights.served(consumer, policy, version)

    def consumers(self) -> list[Consumer]:
        """As `Store.consumers`."""
        return self._weights.consumers()

    def save(self, path: Path) -> None:
        """As `Store.save`."""
        with telling(path):
            self._db.execute("VACUUM INTO ?", (str(path),))
            with closing(sqlite3.connect(path, isolation_level=None)) as copy:
                copy.executescript(
                    "BEGIN; DELETE FROM weights; DELETE FROM serving;"
                    " UPDATE groups SET claim = NULL, expires = NULL; COMMIT;"
                )

    def restore(self, path: Path) -> None:
        """As `Store.restore`."""
        with telling(path), closing(opened(path)) as copy:
            copy.backup(self._db)

    def close(self) -> None:
        """Let the file go; what is only in memory is gone."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with telling(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has ended it itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise
