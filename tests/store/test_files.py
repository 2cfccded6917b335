"""A store's file after its process was killed, and when others open it."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from marl_llm.errors import CheckpointError, EpisodeError
from marl_llm.store import Key, Record, SqliteStore, discard
from marl_llm.types import Weights

PUTTER = """
import sys, time
from marl_llm.store import Key, Record, SqliteStore

box = SqliteStore(sys.argv[1], time.time)
for number in range(10**9):
    records = [Record(Key(10 * number + n), number, 10, 0, b"x" * 2000) for n in range(10)]
    box.put("main", records)
    print(number, flush=True)
    if number % 3 == 2:
        claim = box.claim("main", 1, 0, 3600)
        group = claim.records[0].group
        box.settle("main", claim.id, {"done": [Record(Key(group), group, 1, 0, b"")]})
"""


def episode(number, group=None):
    return Record(Key(number), number if group is None else group, 1, 0, b"play")


@pytest.mark.parametrize("delay", [0.0, 0.11, 0.23])
def test_killed_in_the_middle_it_has_all_that_was_put_and_nothing_twice(tmp_path, delay):
    path = tmp_path / "store.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", PUTTER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "0\n"
    time.sleep(delay)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    said = [0, *map(int, process.communicate()[0].splitlines())]
    assert said == list(range(len(said)))

    with closing(SqliteStore(path, time.time)) as box:
        counts, done = box.counts("main"), box.counts("done")
        groups = counts.put // 10
        assert groups in (len(said), len(said) + 1), "one may have come without having been told"
        assert counts.put == 10 * groups, "no put is there by half"
        assert counts.put == counts.waiting + counts.leased + counts.acknowledged
        assert counts.acknowledged == 10 * done.waiting, "settled is settled on both sides"
        assert counts.leased in (0, 10), "a lease outlives the process"
        assert counts.acknowledged or not delay
        again = [
            Record(Key(10 * number + n), number, 10, 0, b"x" * 2000)
            for number in range(groups)
            for n in range(10)
        ]
        assert box.put("main", again) == 0
        claim = box.claim("main", counts.waiting // 10, 0, 1)
        assert len({record.key for record in claim.records}) == len(claim.records)
        assert {record.body for record in claim.records} == {b"x" * 2000}


def test_a_file_opened_again_goes_on(tmp_path):
    path, now = tmp_path / "store.sqlite", [1000.0]
    weights = tmp_path / "weights"
    weights.touch()
    with closing(SqliteStore(path, lambda: now[0])) as box:
        box.put("main", [episode(1), episode(2)])
        first = box.claim("main", 1, 0, lease=10)
        box.publish(Weights("main", 3, "c", path=str(weights)))
        box.publish(Weights("other", 3, "c", tensors={"w": 1}))
        box.served("engine", "main", 1)
    with closing(SqliteStore(path, lambda: now[0])) as box:
        assert box.latest("main") == Weights("main", 3, "c", path=str(weights))
        assert box.latest("other") is None, "its tensors went with the process"
        assert [c.staleness for c in box.consumers()] == [2]
        second = box.claim("main", 1, 0, lease=1)
        assert box.claim("main", 1, 0, lease=1) is None, "the lease still runs"
        assert first.id != second.id
        box.acknowledge("main", first.id)
        now[0] = 1001.0
        third = box.claim("main", 1, 0, lease=1)
        assert third.records == second.records
        assert third.id not in (first.id, second.id)


def test_several_may_have_one_file_open(tmp_path):
    path = tmp_path / "store.sqlite"
    with (
        closing(SqliteStore(path, time.time)) as one,
        closing(SqliteStore(path, time.time)) as other,
    ):
        assert one.put("main", [episode(1)]) == 1
        assert other.put("main", [episode(1)]) == 0
        claim = other.claim("main", 1, 0, 10)
        assert one.claim("main", 1, 0, 10) is None
        one.acknowledge("main", claim.id)
        with pytest.raises(EpisodeError):
            other.acknowledge("main", claim.id)


def test_bodies_go_with_the_acknowledgement(tmp_path):
    path = tmp_path / "store.sqlite"
    with closing(SqliteStore(path, time.time)) as box:
        box.put("main", [episode(n) for n in range(5)])
        box.acknowledge("main", box.claim("main", 3, 0, 10).id)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT COUNT(*) FROM bodies").fetchone() == (2,)
        assert db.execute("SELECT COUNT(*) FROM records").fetchone() == (5,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_of_another_format_is_refused(tmp_path):
    path = tmp_path / "store.sqlite"
    SqliteStore(path, time.time).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(CheckpointError, match="has format 99, expected"):
        SqliteStore(path, time.time)
    (tmp_path / "words").write_text("no store " * 1000)
    with pytest.raises(CheckpointError, match="words' cannot be read or written"):
        SqliteStore(tmp_path / "words", time.time)
    with pytest.raises(CheckpointError, match="unable to open"):
        SqliteStore(tmp_path / "nowhere" / "store.sqlite", time.time)


def test_a_discarded_file_leaves_nothing(tmp_path):
    path = tmp_path / "store.sqlite"
    box = SqliteStore(path, time.time)
    box.put("main", [episode(1)])
    assert len(list(tmp_path.iterdir())) == 3
    discard(path)
    assert not list(tmp_path.iterdir())
    discard(path)
    box.close()
