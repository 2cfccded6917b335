"""The store's tables, and how a connection to them is opened.

topics      what came into each topic and what became of it; the oldest version it accepts
groups      which records belong together: how many are there, who has them
records     one row a play (episode, path), all rows of an episode of one attempt, either all
            good or all void; stays when its group is closed, so that it does not count twice
bodies      what the open groups' good records hold
weights, serving    see `registry`
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from marl_llm.errors import CheckpointError
from marl_llm.store import registry

FORMAT = 1  # of the tables
PATIENCE = 60.0  # seconds to wait for another process that writes

TABLES = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY, oldest INTEGER NOT NULL DEFAULT 0,
    put INTEGER NOT NULL DEFAULT 0, acknowledged INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0, void INTEGER NOT NULL DEFAULT 0,
    given_up INTEGER NOT NULL DEFAULT 0, doubled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE groups (
    topic TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL,  -- episodes that it should have
    records INTEGER NOT NULL DEFAULT 0,
    good INTEGER NOT NULL DEFAULT 0,   -- episodes
    void INTEGER NOT NULL DEFAULT 0,   -- episodes
    spent INTEGER NOT NULL DEFAULT 0,  -- void episodes that have had all their attempts
    oldest INTEGER,                    -- version of its good records
    claim INTEGER, expires REAL, closed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, number)
) WITHOUT ROWID;
CREATE INDEX open_groups ON groups (topic, number) WHERE closed = 0;
CREATE INDEX leased_groups ON groups (topic, claim) WHERE claim IS NOT NULL;
CREATE TABLE records (
    place INTEGER PRIMARY KEY,
    topic TEXT NOT NULL, episode INTEGER NOT NULL, path TEXT NOT NULL, attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- of its group
    version INTEGER NOT NULL, partners TEXT, void TEXT,
    UNIQUE (topic, episode, path)
);
CREATE INDEX records_of_groups ON records (topic, number, episode);
CREATE TABLE bodies (place INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE claims (given INTEGER NOT NULL);  -- one row: how many there were
INSERT INTO claims VALUES (0);
"""


def connect(path: str | Path) -> sqlite3.Connection:
    """A connection to a store's file, which is made if it is not there; ":memory:" = no file.

    A file is in WAL mode: what was committed survives the end of the process, however it ends.
    When the machine itself stops, the file is whole but may lack the last moments.

    Raises:
        CheckpointError: the file is no store, or one of another format, or cannot be opened.
    """
    with telling(path):
        # Transactions are bracketed by hand: sqlite3 would begin them late and end them early.
        db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = OFF")  # a body's bytes need not be wiped out
        db.execute("BEGIN IMMEDIATE")  # two processes may make it at the same time
        if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in f"{TABLES} {registry.TABLES} PRAGMA user_version = {FORMAT}".split(
                ";"
            ):
                db.execute(statement)
        db.execute("COMMIT")
    return _checked(db, path)


def opened(path: str | Path) -> sqlite3.Connection:
    """A connection to a store's file that will not change it in any way.

    Raises:
        CheckpointError: as for `connect`, or the file is not there.
    """
    with telling(path):
        name = quote(str(Path(path).resolve()))
        # Even a reader would make files beside it, and a checkpoint's folder is to stay as it is.
        db = sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True, isolation_level=None)
        return _checked(db, path)


def _checked(db: sqlite3.Connection, path: str | Path) -> sqlite3.Connection:
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found != FORMAT:
        db.close()
        raise CheckpointError(
            f"the store {str(path)!r} has format {found}, expected {FORMAT}; it was made by "
            "another version of the program, use that one or start anew"
        )
    return db


def discard(path: Path) -> None:
    """Remove a store's file, if there is one, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def telling(path: str | Path) -> Iterator[None]:
    """Say in the user's words what only the user can mend, such as a full disk.

    Raises:
        CheckpointError: in the place of SQLite's own error.
    """
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):  # ours to mend
        raise
    except sqlite3.DatabaseError as error:
        raise CheckpointError(
            f"the store {str(path)!r} cannot be read or written: {error}; is the disk full, or the "
            "file in use, or something else than a store?"
        ) from error
