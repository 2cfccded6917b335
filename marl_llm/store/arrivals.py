"""What becomes of a record that comes: kept, doubled, or dropped.

An episode's records in a topic are of one attempt, and are good or void as a whole: a part that
failed makes the attempt worthless, and the next attempt takes the place of all of it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_llm.errors import EpisodeError, FullError
from marl_llm.store.records import Record


@dataclass(slots=True)
class Play:
    """What is there of an episode: one attempt at it."""

    group: int
    attempt: int
    void: str | None
    versions: dict[str, int] = field(default_factory=dict)  # of its records, by path


Group = tuple[int, bool]  # size, whether it was claimed or closed


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
    numbers = {record.group for record in records}
    groups = _groups(db, topic, numbers)
    plays = _plays(db, topic, {record.key.episode for record in records}, numbers)
    desk = _Desk(db, topic, plays)
    fates: Counter[str] = Counter()
    touched: dict[int, int] = {}  # group -> its size
    for record in records:
        fate = fate_of(record, plays.get(record.key.episode), groups.get(record.group), oldest)
        fates[fate] += 1
        if fate == "new":
            fates["void"] += desk.keep(record)
            touched[record.group] = record.size
    desk.write()
    _sum_up(db, topic, touched, plays, retries)
    begun = len(touched.keys() - groups.keys())
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


def fate_of(record: Record, play: Play | None, group: Group | None, oldest: int) -> str:
    """What is to become of a record: "new", "doubled" or "dropped".

    Args:
        record: that comes.
        play: what is there of its episode, None = nothing.
        group: what is there of its group, None = nothing.
        oldest: version that is still accepted.

    Raises:
        EpisodeError: its group, or its group's size, is not what it was before.
    """
    key = record.key
    number = record.group if play is None else play.group
    size = record.size if group is None else group[0]
    if (number, size) != (record.group, record.size):
        raise EpisodeError(
            f"episode {key.episode} comes with group {record.group} of {record.size} episodes, but "
            f"has group {number}, of {size}; ids of groups must be unique in a topic"
        )
    if play is not None:
        if play.attempt == key.attempt:
            repeated = key.path in play.versions
        else:  # only a failure makes room for another attempt, and only a later one for a failure
            repeated = play.void is None or (record.void is not None and key.attempt < play.attempt)
        if repeated:
            return "doubled"
    # A group that was claimed takes nothing in, so that whoever claims it again sees the same.
    shut = group is not None and group[1]
    return "dropped" if shut or record.version < oldest else "new"


def _groups(db: sqlite3.Connection, topic: str, numbers: Collection[int]) -> dict[int, Group]:
    """What is there of these groups."""
    rows = db.execute(
        "SELECT number, size, closed OR claim IS NOT NULL FROM groups"
        " WHERE topic = ? AND number IN (SELECT value FROM json_each(?))",
        (topic, json.dumps(list(numbers))),
    )
    return {number: (size, bool(shut)) for number, size, shut in rows}


def _plays(
    db: sqlite3.Connection, topic: str, episodes: Collection[int], numbers: Collection[int]
) -> dict[int, Play]:
    """What is there of these episodes and of all others of these groups, by episode."""
    columns = "SELECT episode, path, version, number, attempt, void FROM records WHERE topic = ?"
    plays: dict[int, Play] = {}
    for episode, path, version, *play in db.execute(
        f"{columns} AND episode IN (SELECT value FROM json_each(?))"
        f" UNION ALL {columns} AND number IN (SELECT value FROM json_each(?))",
        (topic, json.dumps(list(episodes)), topic, json.dumps(list(numbers))),
    ):
        plays.setdefault(episode, Play(*play)).versions[path] = version
    return plays


class _Desk:
    """Where the new records of a put are written down, most of them in one go."""

    def __init__(self, db: sqlite3.Connection, topic: str, plays: dict[int, Play]) -> None:
        """Begin.

        Args:
            db: the store.
            topic: of all records.
            plays: what is there of their episodes; kept up to date.
        """
        self._db, self._topic, self._plays = db, topic, plays
        (last,) = db.execute("SELECT MAX(place) FROM records").fetchone()
        self._place = 0 if last is None else last
        self._records: list[tuple[object, ...]] = []
        self._bodies: list[tuple[int, bytes]] = []

    def keep(self, record: Record) -> int:
        """Keep a new record; how many records it makes void, itself included."""
        key, voided = record.key, 0
        play = self._plays.get(key.episode)
        if play is not None and play.attempt != key.attempt:
            self._give_way(key.episode)
            play = None
        if play is None:
            play = self._plays[key.episode] = Play(record.group, key.attempt, record.void)
        elif play.void is None and record.void is not None:
            voided = len(play.versions)
            play.void = record.void
            self._spoil(key.episode, record.void)
        play.versions[key.path] = record.version
        self._place += 1
        self._records.append(
            (
                self._place, self._topic, key.episode, key.path, key.attempt, record.group,
                record.version, json.dumps(dict(record.partners)) if record.partners else None,
                play.void,
            )
        )  # fmt: skip
        if play.void is None:
            self._bodies.append((self._place, record.body))
            return 0
        return voided + 1

    def write(self) -> None:
        """Write down what was kept."""
        self._db.executemany(
            "INSERT INTO records (place, topic, episode, path, attempt, number, version, partners,"
            " void) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._records,
        )
        self._db.executemany("INSERT INTO bodies VALUES (?, ?)", self._bodies)
        self._records.clear()
        self._bodies.clear()

    def _give_way(self, episode: int) -> None:
        """Forget a failed attempt, which holds no bodies."""
        self.write()
        self._db.execute(
            "DELETE FROM records WHERE topic = ? AND episode = ?", (self._topic, episode)
        )

    def _spoil(self, episode: int, void: str) -> None:
        """Make an attempt void whose records were good so far."""
        self.write()
        mine = self._topic, episode
        self._db.execute(
            "DELETE FROM bodies WHERE place IN"
            " (SELECT place FROM records WHERE topic = ? AND episode = ?)",
            mine,
        )
        self._db.execute(
            "UPDATE records SET void = ? WHERE topic = ? AND episode = ?", (void, *mine)
        )


def _sum_up(
    db: sqlite3.Connection,
    topic: str,
    sizes: Mapping[int, int],
    plays: Mapping[int, Play],
    retries: int,
) -> None:
    """Write down how many records groups have; those that are not there yet begin.

    Args:
        db: the store.
        topic: of the groups.
        sizes: of the groups.
        plays: all that is there of them, and perhaps of others.
        retries: attempts after the first.

    Raises:
        EpisodeError: a group has more episodes than it should.
    """
    counted: dict[int, list[Any]] = {number: [0, 0, 0, 0, None] for number in sizes}
    for play in plays.values():
        sums = counted.get(play.group)
        if sums is None:
            continue
        sums[0] += len(play.versions)
        if play.void is None:
            oldest = min(play.versions.values())
            sums[1] += 1
            sums[4] = oldest if sums[4] is None else min(sums[4], oldest)
        else:
            sums[2] += 1
            sums[3] += play.attempt >= retries
    rows = []
    for number, size in sizes.items():
        sums = counted[number]
        if sums[1] + sums[2] > size:
            raise EpisodeError(
                f"{sums[1] + sums[2]} episodes come into group {number}, which should have "
                f"{size}; ids of groups must be unique in a topic"
            )
        rows.append((topic, number, size, *sums))
    db.executemany(
        "INSERT INTO groups (topic, number, size, records, good, void, spent, oldest)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (topic, number) DO UPDATE SET"
        " records = excluded.records, good = excluded.good, void = excluded.void,"
        " spent = excluded.spent, oldest = excluded.oldest",
        rows,
    )
