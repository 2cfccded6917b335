"""What becomes of a record that comes: kept, doubled, or dropped.

An episode's records in a topic are of one attempt, and are good or void as a whole: a part that
failed makes the attempt worthless, and the next attempt takes the place of all of it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence

from marl_llm.errors import EpisodeError, FullError
from marl_llm.store.records import Record


def arrive(
    db: sqlite3.Connection, topic: str, records: Sequence[Record], capacity: int, retries: int
) -> int:
    """Take records in; how many were new.

    Raises:
        FullError: there is no room for a group that they begin.
        EpisodeError: they are at odds with each other or with what is there.
    """
    db.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (topic,))
    (oldest,) = db.execute("SELECT oldest FROM topics WHERE name = ?", (topic,)).fetchone()
    fates: Counter[str] = Counter()
    touched: set[int] = set()
    begun = 0
    for record in records:
        fate = fate_of(db, topic, record, oldest)
        fates[fate] += 1
        if fate == "new":
            fates["void"] += _keep(db, topic, record)
            begun += _enlist(db, topic, record)
            touched.add(record.group)
    for group in touched:
        _sum_up(db, topic, group, retries)
    if begun and (taken := places(db, topic)) > capacity:
        raise FullError(
            f"{begun} groups come new into topic {topic!r}, which would then hold {taken} records, "
            f"but only {capacity} may wait; is its learner running?"
        )
    db.execute(
        "UPDATE topics SET put = put + ?, void = void + ?, dropped = dropped + ?,"
        " doubled = doubled + ? WHERE name = ?",
        (len(records), fates["void"], fates["dropped"], fates["doubled"], topic),
    )
    return fates["new"]


def places(db: sqlite3.Connection, topic: str) -> int:
    """How many places are taken: a group has its whole size from its first record on.

    So what has begun can always be completed, and a full topic is never one of halves only.
    """
    (taken,) = db.execute(
        "SELECT COALESCE(SUM(MAX(size, records)), 0) FROM groups WHERE topic = ? AND closed = 0",
        (topic,),
    ).fetchone()
    return taken


def fate_of(db: sqlite3.Connection, topic: str, record: Record, oldest: int) -> str:
    """What is to become of a record: "new", "doubled" or "dropped".

    Raises:
        EpisodeError: its group, or its group's size, is not what it was before.
    """
    key = record.key
    known = db.execute(
        "SELECT path, attempt, void, number FROM records WHERE topic = ? AND episode = ?",
        (topic, key.episode),
    ).fetchall()
    group = db.execute(
        "SELECT size, closed OR claim IS NOT NULL FROM groups WHERE topic = ? AND number = ?",
        (topic, record.group),
    ).fetchone()
    was = known[0][3] if known else record.group
    size = group[0] if group else record.size
    if (was, size) != (record.group, record.size):
        raise EpisodeError(
            f"episode {key.episode} comes into topic {topic!r} with group {record.group} of "
            f"{record.size} episodes, but has group {was}, of {size}; ids of groups must be unique"
        )
    if known:
        _, attempt, void, _ = known[0]
        if attempt == key.attempt:
            repeated = any(path == key.path for path, *_ in known)
        else:
            repeated = void is None or (record.void is not None and key.attempt < attempt)
        if repeated:
            return "doubled"
    # A group that was claimed takes nothing in, so that whoever claims it again sees the same.
    shut = group is not None and group[1]
    return "dropped" if shut or record.version < oldest else "new"


def _keep(db: sqlite3.Connection, topic: str, record: Record) -> int:
    """Write a new record down; how many records it makes void, itself included."""
    key = record.key
    mine = (topic, key.episode)
    known = db.execute(
        "SELECT attempt, void FROM records WHERE topic = ? AND episode = ?", mine
    ).fetchone()
    void, voided = record.void, 0
    if known and known[0] != key.attempt:  # a failed attempt gives way
        db.execute("DELETE FROM records WHERE topic = ? AND episode = ?", mine)
    elif known and known[1] is not None:
        void = void or known[1]
    elif known and void is not None:
        db.execute(
            "DELETE FROM bodies WHERE place IN"
            " (SELECT place FROM records WHERE topic = ? AND episode = ?)",
            mine,
        )
        voided = db.execute(
            "UPDATE records SET void = ? WHERE topic = ? AND episode = ?", (void, *mine)
        ).rowcount
    place = db.execute(
        "INSERT INTO records (topic, episode, path, attempt, number, version, partners, void)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *mine,
            key.path,
            key.attempt,
            record.group,
            record.version,
            json.dumps(dict(record.partners)) if record.partners else None,
            void,
        ),
    ).lastrowid
    if void is None:
        db.execute("INSERT INTO bodies VALUES (?, ?)", (place, record.body))
        return 0
    return voided + 1


def _enlist(db: sqlite3.Connection, topic: str, record: Record) -> bool:
    """Make sure that the record's group is there; whether it is new."""
    return (
        db.execute(
            "INSERT OR IGNORE INTO groups (topic, number, size, first)"
            " SELECT ?, ?, ?, MAX(place) FROM records",
            (topic, record.group, record.size),
        ).rowcount
        == 1
    )


def _sum_up(db: sqlite3.Connection, topic: str, group: int, retries: int) -> None:
    """Count a group's records again.

    Raises:
        EpisodeError: it has more episodes than it should.
    """
    mine = (topic, group)
    count, good, void, spent, oldest = db.execute(
        "SELECT SUM(parts), SUM(void IS NULL), SUM(void IS NOT NULL),"
        " SUM(void IS NOT NULL AND attempt >= ?), MIN(CASE WHEN void IS NULL THEN version END)"
        " FROM (SELECT COUNT(*) AS parts, void, attempt, MIN(version) AS version FROM records"
        " WHERE topic = ? AND number = ? GROUP BY episode)",
        (retries, *mine),
    ).fetchone()
    (size,) = db.execute("SELECT size FROM groups WHERE topic = ? AND number = ?", mine).fetchone()
    if good + void > size:
        raise EpisodeError(
            f"{good + void} episodes come into group {group} of topic {topic!r}, which should have "
            f"{size}; ids of groups must be unique"
        )
    db.execute(
        "UPDATE groups SET records = ?, good = ?, void = ?, spent = ?, oldest = ?"
        " WHERE topic = ? AND number = ?",
        (count, good, void, spent, oldest, *mine),
    )
