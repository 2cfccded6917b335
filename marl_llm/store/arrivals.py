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
    touched: dict[int, int] = {}  # group -> its size
    begun = 0
    for record in records:
        known = _known(db, topic, record.key.episode)
        group = _group(db, topic, record.group)
        fate = fate_of(record, known, group, oldest)
        fates[fate] += 1
        if fate == "new":
            fates["void"] += _keep(db, topic, record, known)
            if group is None:
                begun += 1
                _begin(db, topic, record)
            touched[record.group] = record.size
    for number, size in touched.items():
        _sum_up(db, topic, number, size, retries)
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
        "SELECT COALESCE(SUM(MAX(size, records)), 0) FROM groups INDEXED BY open_groups"
        " WHERE topic = ? AND closed = 0",
        (topic,),
    ).fetchone()
    return taken


Known = tuple[str, int, str | None, int]  # path, attempt, why it is void, number of the group


def fate_of(
    record: Record, known: Sequence[Known], group: tuple[int, bool] | None, oldest: int
) -> str:
    """What is to become of a record: "new", "doubled" or "dropped".

    Args:
        record: that comes.
        known: what is there of its episode.
        group: its size, and whether it was claimed or closed; None = there is none yet.
        oldest: version that is still accepted.

    Raises:
        EpisodeError: its group, or its group's size, is not what it was before.
    """
    key = record.key
    was = known[0][3] if known else record.group
    size = record.size if group is None else group[0]
    if (was, size) != (record.group, record.size):
        raise EpisodeError(
            f"episode {key.episode} comes with group {record.group} of {record.size} episodes, but "
            f"has group {was}, of {size}; ids of groups must be unique in a topic"
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


def _known(db: sqlite3.Connection, topic: str, episode: int) -> list[Known]:
    return db.execute(
        "SELECT path, attempt, void, number FROM records WHERE topic = ? AND episode = ?",
        (topic, episode),
    ).fetchall()


def _group(db: sqlite3.Connection, topic: str, number: int) -> tuple[int, bool] | None:
    return db.execute(
        "SELECT size, closed OR claim IS NOT NULL FROM groups WHERE topic = ? AND number = ?",
        (topic, number),
    ).fetchone()


def _keep(db: sqlite3.Connection, topic: str, record: Record, known: Sequence[Known]) -> int:
    """Write a new record down; how many records it makes void, itself included."""
    key = record.key
    mine = (topic, key.episode)
    void, voided = record.void, 0
    if known and known[0][1] != key.attempt:  # a failed attempt gives way
        db.execute("DELETE FROM records WHERE topic = ? AND episode = ?", mine)
    elif known and known[0][2] is not None:
        void = void if void is not None else known[0][2]
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


def _begin(db: sqlite3.Connection, topic: str, record: Record) -> None:
    """Begin the group of a record."""
    db.execute(
        "INSERT INTO groups (topic, number, size) VALUES (?, ?, ?)",
        (topic, record.group, record.size),
    )


def _sum_up(db: sqlite3.Connection, topic: str, number: int, size: int, retries: int) -> None:
    """Count a group's records again.

    Raises:
        EpisodeError: it has more episodes than it should.
    """
    mine = (topic, number)
    count, good, void, spent, oldest = db.execute(
        "SELECT SUM(parts), SUM(void IS NULL), SUM(void IS NOT NULL),"
        " SUM(void IS NOT NULL AND attempt >= ?), MIN(CASE WHEN void IS NULL THEN version END)"
        " FROM (SELECT COUNT(*) AS parts, void, attempt, MIN(version) AS version FROM records"
        " WHERE topic = ? AND number = ? GROUP BY episode)",
        (retries, *mine),
    ).fetchone()
    if good + void > size:
        raise EpisodeError(
            f"{good + void} episodes come into group {number}, which should have {size}; ids of "
            "groups must be unique in a topic"
        )
    db.execute(
        "UPDATE groups SET records = ?, good = ?, void = ?, spent = ?, oldest = ?"
        " WHERE topic = ? AND number = ?",
        (count, good, void, spent, oldest, *mine),
    )
