"""The register of weights: the latest of each policy, and who serves which.

What is known of weights is durable. Tensors that lie in memory are held in this process only: after
a restart they are gone until they are published again.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from marl_llm.errors import EpisodeError
from marl_llm.store.records import Consumer
from marl_llm.types import Weights

TABLES = """
CREATE TABLE weights (
    policy TEXT PRIMARY KEY, version INTEGER NOT NULL, checksum TEXT NOT NULL, path TEXT
) WITHOUT ROWID;
CREATE TABLE serving (
    consumer TEXT NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (consumer, policy)
) WITHOUT ROWID;
"""


class WeightsRegister:
    """The weights' tables of a store. The caller brackets what belongs in one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._held: dict[str, Weights] = {}  # whose tensors lie in this process

    def publish(self, weights: Weights) -> None:
        """As `Store.publish`."""
        latest = self._row(weights.policy)
        if latest is not None and weights.version < latest[0]:
            raise EpisodeError(
                f"{weights.policy!r} has version {latest[0]}; cannot go back to {weights.version}"
            )
        self._db.execute(
            "INSERT OR REPLACE INTO weights VALUES (?, ?, ?, ?)",
            (weights.policy, weights.version, weights.checksum, weights.path),
        )
        self._held.pop(weights.policy, None)
        if weights.tensors is not None:
            self._held[weights.policy] = weights

    def latest(self, policy: str) -> Weights | None:
        """As `Store.latest`."""
        row = self._row(policy)
        if row is None:
            return None
        version, checksum, path = row
        if path is not None:
            return Weights(policy, version, checksum, path) if Path(path).is_file() else None
        held = self._held.get(policy)
        same = held is not None and (held.version, held.checksum) == (version, checksum)
        return held if same else None

    def served(self, consumer: str, policy: str, version: int) -> None:
        """As `Store.served`."""
        self._db.execute(
            "INSERT OR REPLACE INTO serving VALUES (?, ?, ?)", (consumer, policy, version)
        )

    def consumers(self) -> list[Consumer]:
        """As `Store.consumers`."""
        rows = self._db.execute(
            "SELECT s.consumer, s.policy, s.version, MAX(COALESCE(w.version, 0) - s.version, 0)"
            " FROM serving s LEFT JOIN weights w USING (policy) ORDER BY s.consumer, s.policy"
        )
        return [Consumer(*row) for row in rows]

    def _row(self, policy: str) -> tuple[int, str, str | None] | None:
        return self._db.execute(
            "SELECT version, checksum, path FROM weights WHERE policy = ?", (policy,)
        ).fetchone()
