"""Groups: when they are complete, who has them, and how they end.

A group is open until it is acknowledged, dropped or given up. Then its bodies go, and its records'
keys stay as long as they could come again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Literal

from marl_llm.store.records import Key, Missing, Record, Rule

# What a group need not wait for, as a column of `groups`.
EXCUSED: dict[Rule, str] = {"wait": "0", "refill": "spent", "partial": "void"}
# One alone has nothing to be compared with, unless it was planned so.
ENOUGH = "good >= MIN(2, size)"
# SQLite, which knows nothing of how many groups are closed, would look through all of them.
FREE = (
    "FROM groups INDEXED BY open_groups"
    " WHERE topic = ? AND closed = 0 AND (claim IS NULL OR expires <= ?)"
)
THESE = "topic = ? AND number IN (SELECT value FROM json_each(?))"
# Of joins, SQLite takes a CROSS JOIN in the order in which it is written: groups first.

End = Literal["acknowledged", "dropped", "given_up"]


def forget(db: sqlite3.Connection, topic: str, oldest: int, now: float) -> None:
    """Drop free groups with a record of an earlier version, and the keys of all that was earlier.

    They are refused if they come again.
    """
    db.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (topic,))
    db.execute("UPDATE topics SET oldest = MAX(oldest, ?) WHERE name = ?", (oldest, topic))
    (oldest,) = db.execute("SELECT oldest FROM topics WHERE name = ?", (topic,)).fetchone()
    stale = db.execute(f"SELECT number {FREE} AND oldest < ?", (topic, now, oldest))
    _close_free(db, topic, stale.fetchall(), "dropped")
    gone = db.execute(
        "DELETE FROM records WHERE topic = ? AND version < ? AND (SELECT closed FROM groups g"
        " WHERE g.topic = records.topic AND g.number = records.number)",
        (topic, oldest),
    ).rowcount
    if gone:
        db.execute(
            "DELETE FROM groups WHERE topic = ? AND closed AND NOT EXISTS"
            " (SELECT 1 FROM records r WHERE r.topic = groups.topic AND r.number = groups.number)",
            (topic,),
        )


def give_up(db: sqlite3.Connection, topic: str, rule: Rule, now: float) -> None:
    """Close free groups that wait for nothing more and have too few good episodes to be of use."""
    hopeless = db.execute(
        f"SELECT number {FREE} AND good + {EXCUSED[rule]} = size AND NOT {ENOUGH}",
        (topic, now),
    )
    _close_free(db, topic, hopeless.fetchall(), "given_up")


def complete(
    db: sqlite3.Connection, topic: str, count: int, rule: Rule, now: float, before: int | None
) -> list[int]:
    """The free groups of the lowest numbers that are complete, at most so many."""
    rows = db.execute(
        f"SELECT number {FREE}"
        f" AND good + {EXCUSED[rule]} = size AND {ENOUGH} AND number < COALESCE(?, number + 1)"
        " ORDER BY number LIMIT ?",
        (topic, now, before, count),
    )
    return [number for (number,) in rows]


def lease(db: sqlite3.Connection, topic: str, numbers: Sequence[int], expires: float) -> int:
    """Lease these groups under a new claim, whose id is returned."""
    take_back(db, topic, numbers)
    db.execute("UPDATE claims SET given = given + 1")
    (claim,) = db.execute("SELECT given FROM claims").fetchone()
    db.execute(
        f"UPDATE groups SET claim = ?, expires = ? WHERE {THESE}",
        (claim, expires, topic, json.dumps(numbers)),
    )
    return claim


def take_back(db: sqlite3.Connection, topic: str, numbers: Sequence[int]) -> None:
    """End the claims on these groups, whole: half a claim could not be acknowledged honestly."""
    db.execute(
        "UPDATE groups SET claim = NULL, expires = NULL WHERE topic = ? AND claim IN"
        f" (SELECT claim FROM groups WHERE {THESE} AND claim IS NOT NULL)",
        (topic, topic, json.dumps(numbers)),
    )


def claimed(db: sqlite3.Connection, topic: str, claim: int) -> list[int]:
    """The groups of a claim; none if it is unknown or was taken back."""
    rows = db.execute("SELECT number FROM groups WHERE topic = ? AND claim = ?", (topic, claim))
    return [number for (number,) in rows]


def records_of(db: sqlite3.Connection, topic: str, claim: int) -> tuple[Record, ...]:
    """The good records of a claim, in the order in which they came."""
    rows = db.execute(
        "SELECT episode, attempt, path, number, size, version, body, partners"
        " FROM groups g CROSS JOIN records r USING (topic, number) CROSS JOIN bodies USING (place)"
        " WHERE topic = ? AND claim = ? ORDER BY place",
        (topic, claim),
    )
    return tuple(
        Record(
            Key(episode, attempt, path),
            group,
            size,
            version,
            body,
            {} if partners is None else json.loads(partners),
        )
        for episode, attempt, path, group, size, version, body, partners in rows
    )


def lost_of(db: sqlite3.Connection, topic: str, claim: int) -> tuple[Missing, ...]:
    """The void members of a claim's groups."""
    return _void(db, "leased_groups", "claim = ?", topic, claim)


def missing(db: sqlite3.Connection, topic: str, retries: int) -> tuple[Missing, ...]:
    """The void members of groups that nobody has claimed, which have attempts left."""
    return _void(db, "open_groups", "claim IS NULL AND attempt < ?", topic, retries)


def _void(
    db: sqlite3.Connection, index: str, condition: str, topic: str, value: int
) -> tuple[Missing, ...]:
    rows = db.execute(
        "SELECT number, episode, MAX(attempt) + 1, r.void"
        f" FROM groups g INDEXED BY {index} CROSS JOIN records r USING (topic, number)"
        f" WHERE topic = ? AND {condition} AND closed = 0 AND g.void > 0 AND r.void IS NOT NULL"
        " GROUP BY number, episode ORDER BY number, MIN(place)",
        (topic, value),
    )
    return tuple(Missing(*row) for row in rows)


def close(db: sqlite3.Connection, topic: str, numbers: Sequence[int], end: End) -> None:
    """End these groups: their bodies go, their good records count as `end`.

    Void ones are given up with their group, unless it was dropped for its age.
    """
    these = (topic, json.dumps(numbers))
    good, void = db.execute(
        f"SELECT SUM(void IS NULL), SUM(void IS NOT NULL) FROM records WHERE {THESE}", these
    ).fetchone()
    db.execute(
        f"DELETE FROM bodies WHERE place IN (SELECT place FROM records WHERE {THESE})", these
    )
    db.execute(f"UPDATE groups SET closed = 1, claim = NULL, expires = NULL WHERE {THESE}", these)
    db.execute(f"UPDATE topics SET {end} = {end} + ? WHERE name = ?", (good, topic))
    if end != "dropped":
        db.execute(
            "UPDATE topics SET void = void - ?, given_up = given_up + ? WHERE name = ?",
            (void, void, topic),
        )


def _close_free(db: sqlite3.Connection, topic: str, rows: Sequence[tuple[int]], end: End) -> None:
    """End groups that are free, though some may have been claimed once."""
    if rows:
        numbers = [number for (number,) in rows]
        take_back(db, topic, numbers)
        close(db, topic, numbers, end)
