"""`marl-llm bench store`: records per second through the store: put, claimed, acknowledged.

In memory, in a file, and in an actor over a file, which is what `runtime=ray` has. Records of about
one kilobyte come in groups and batches, one batch after the other.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_llm.bench.timing import took
from marl_llm.errors import ConfigError, nearest
from marl_llm.store import FILE, Key, Record, SqliteStore, Store

TARGET = 2000  # records per second, in every one of them


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent through."""

    records: int = 10_000
    batch: int = 500  # records per put and per claim
    group: int = 4  # records that are claimed together
    size: int = 1024  # bytes of a record

    def __post_init__(self) -> None:
        if min(self.records, self.batch, self.group, self.size) < 1:
            raise ConfigError(f"bench store: all numbers are at least 1, got {self}")
        if self.records % self.batch or self.batch % self.group:
            raise ConfigError(
                "bench store: records are whole batches and a batch is whole groups, got "
                f"records={self.records} batch={self.batch} group={self.group}"
            )


def records_per_second(store: Store, load: Load, first: int = 0) -> float:
    """How fast records go through a store.

    Args:
        store: any.
        load: what goes through.
        first: id of the first episode; a store takes each only once.
    """
    body = random.Random(0).randbytes(load.size)
    batches = [
        [
            Record(Key(first + start + n), (first + start + n) // load.group, load.group, 0, body)
            for n in range(load.batch)
        ]
        for start in range(0, load.records, load.batch)
    ]

    def through() -> None:
        for batch in batches:
            store.put("bench", batch)
            claim = store.claim("bench", load.batch // load.group, 0, 3600.0)
            assert claim is not None and len(claim.records) == load.batch, "all were put"
            store.acknowledge("bench", claim.id)

    return load.records / took(through).clock


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, Store]]:
    """One of each kind, all open at the same time.

    Args:
        folder: empty, for files.
    """
    from marl_llm.cluster.clients import RemoteStore
    from marl_llm.cluster.runtime import start_cluster, start_store, stop_cluster

    start_cluster(processes=1)
    try:
        with (
            closing(SqliteStore(":memory:", time.time)) as memory,
            closing(SqliteStore(folder / f"own_{FILE}", time.time)) as file,
        ):
            actor = RemoteStore(start_store(folder / f"actors_{FILE}"))
            yield {"memory": memory, "file": file, "actor": actor}
    finally:
        stop_cluster()


def measure(load: Load, rounds: int, folder: Path) -> dict[str, Any]:
    """All figures: the median of the rounds, after one that does not count."""
    rates: dict[str, list[float]] = {}
    with stores(folder) as found:
        for number in range(rounds + 1):
            for name, store in found.items():
                rate = records_per_second(store, load, first=number * load.records)
                if number:
                    rates.setdefault(name, []).append(rate)
    return {
        "records_per_second": {name: statistics.median(each) for name, each in rates.items()},
        "rounds": rates,
        "load": {name: getattr(load, name) for name in ("records", "batch", "group", "size")},
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "versions": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
    }


def main(words: Sequence[str]) -> int:
    """`marl-llm bench store [--json FILE] [records=N] [batch=N] [group=N] [size=N] [rounds=N]`."""
    path, load, rounds = options(words)
    with tempfile.TemporaryDirectory(prefix="marl_llm_bench_") as folder:
        result = measure(load, rounds, Path(folder))
    show(result)
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def options(words: Sequence[str]) -> tuple[Path | None, Load, int]:
    """The words after `bench store`: where the figures go, what is sent, how often.

    Raises:
        ConfigError: an unknown word, or a value that is no number from 1 on.
    """
    path: Path | None = None
    numbers: dict[str, int] = {"rounds": 5}
    known = ("--json", "records", "batch", "group", "size", "rounds")
    waiting = list(words)
    while waiting:
        name, equals, value = waiting.pop(0).partition("=")
        if name not in known:
            raise ConfigError(f"bench store: unknown word {name!r}; {nearest(name, known)}")
        if name == "--json" and not equals and waiting:
            value = waiting.pop(0)
        if not value:
            raise ConfigError(f"bench store: {name} needs a value, as in {name}=VALUE")
        if name == "--json":
            path = Path(value)
        elif value.isdecimal() and int(value):
            numbers[name] = int(value)
        else:
            raise ConfigError(f"bench store: {name} is a number from 1 on, got {value!r}")
    rounds = numbers.pop("rounds")
    return path, Load(**numbers), rounds


def show(result: Mapping[str, Any]) -> None:
    """Print the figures."""
    for name, rate in result["records_per_second"].items():
        print(f"{name:8} {rate:10,.0f} records/s   (target: at least {TARGET:,})")
