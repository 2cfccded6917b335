"""The firm: its departments, the tables that they keep, and how large they are at each level.

Each department has one table. Codes hold them together: w12 is a worker, h3 a hall, i4 an item, in
whatever department. A value that is not known is NULL.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from random import Random
from typing import Any

Row = tuple[Any, ...]

TRADES = ("welder", "joiner", "painter", "fitter", "turner")
TOWNS = ("lund", "oslo", "riga", "turin", "ghent")
_VALUE = re.compile("|".join((r"\d+", *TRADES, *TOWNS)))


@dataclass(frozen=True, slots=True)
class Department:
    """What a department keeps."""

    name: str
    keeps: str  # in words
    table: str
    columns: tuple[tuple[str, str], ...]  # name and type in SQL


DEPARTMENTS = {
    department.name: department
    for department in (
        Department(
            "staff",
            "the hall and the trade of each worker",
            "workers",
            (("worker", "TEXT"), ("hall", "TEXT"), ("trade", "TEXT")),
        ),
        Department(
            "pay",
            "the monthly wage of each worker, in cents",
            "wages",
            (("worker", "TEXT"), ("cents", "INTEGER")),
        ),
        Department(
            "time",
            "how many minutes each worker has worked this week",
            "shifts",
            (("worker", "TEXT"), ("minutes", "INTEGER")),
        ),
        Department(
            "jobs",
            "the worker of each job, the item that it made, and how many pieces",
            "jobs",
            (("job", "TEXT"), ("worker", "TEXT"), ("item", "TEXT"), ("pieces", "INTEGER")),
        ),
        Department(
            "stock",
            "the weight of a piece of each item, in grams",
            "items",
            (("item", "TEXT"), ("grams", "INTEGER")),
        ),
        Department("sites", "the town of each hall", "halls", (("hall", "TEXT"), ("town", "TEXT"))),
    )
}


@dataclass(frozen=True, slots=True)
class Size:
    """How hard a level is."""

    departments: tuple[str, ...]  # that there are, needed or not
    # What may be asked: the conditions on workers, and what is wanted of those who meet them.
    recipes: tuple[tuple[tuple[str, ...], str], ...]
    workers: int
    halls: int = 4
    towns: int = 3
    trades: int = 3
    items: int = 5
    jobs: int = 0
    unknown: float = 0.0  # share of the values that are NULL
    calls: int = 3  # clerks that an episode has
    turns: int = 6  # of a clerk
    rows: int = 20  # that a query shows
    short: bool = False  # tasks are single codes, and clerks need no SQL

    @property
    def planner_turns(self) -> int:
        """One for each clerk, called one by one, and one to answer."""
        return self.calls + 1


LEVELS = {
    1: Size(("staff", "pay"), (), workers=6, halls=5, calls=2, turns=3, short=True),
    2: Size(
        ("staff", "pay", "time"),
        (
            (("trade", "hall"), "count"),
            (("not_hall",), "count"),
            (("no_wage",), "count"),
            (("wage",), "count"),
            (("hours",), "count"),
            (("named",), "hours"),
            ((), "top_wage"),
        ),
        workers=12,
        unknown=0.15,
        calls=3,
    ),
    3: Size(
        ("staff", "pay", "time", "jobs", "stock"),
        (
            (("hall", "wage"), "count"),
            (("not_hall", "hours"), "count"),
            (("trade",), "wages"),
            (("hall",), "hours"),
            (("trade",), "top_hours"),
            (("not_hall",), "top_wage"),
            (("hall",), "pieces"),
            (("named",), "kilograms"),
        ),
        workers=16,
        jobs=24,
        unknown=0.1,
        calls=4,
    ),
    4: Size(
        ("staff", "pay", "time", "jobs", "stock", "sites"),
        (
            (("hall",), "kilograms"),
            (("trade",), "kilograms"),
            (("hall", "wage"), "hours"),
            (("trade", "hours"), "wages"),
            (("not_hall", "hours"), "top_wage"),
            (("town",), "wages"),
            (("town", "wage"), "count"),
            (("town",), "top_hours"),
        ),
        workers=20,
        jobs=40,
        unknown=0.1,
        calls=5,
    ),
    5: Size(
        ("staff", "pay", "time", "jobs", "stock", "sites"),
        (
            (("town",), "kilograms"),
            (("trade", "wage"), "kilograms"),
            (("not_hall", "hours"), "kilograms"),
            (("town", "trade", "wage"), "hours"),
            (("town", "hours"), "wages"),
            (("town", "hours"), "top_wage"),
            (("town", "wage", "hours"), "count"),
        ),
        workers=40,
        halls=6,
        towns=3,
        trades=4,
        items=8,
        jobs=80,
        unknown=0.1,
        calls=6,
    ),
}

World = dict[str, list[Row]]  # department -> the rows of its table


def departments(size: Size) -> dict[str, Department]:
    """Those of a level, by name. On level 1 each has a single value for a worker."""
    found = {name: DEPARTMENTS[name] for name in size.departments}
    if size.short:
        found["staff"] = Department(
            "staff", "the hall of each worker", "workers", DEPARTMENTS["staff"].columns[:2]
        )
    return found


def codes(letter: str, count: int, random: Random) -> list[str]:
    """Codes that nobody can list without asking."""
    return [f"{letter}{number}" for number in sorted(random.sample(range(10, 100), count))]


def make_world(size: Size, random: Random) -> World:
    """The tables of a level, by chance."""
    if size.short:
        workers = [f"w{number}" for number in range(1, size.workers + 1)]
        places = [f"h{number}" for number in range(1, size.halls + 1)]
        return {
            "staff": [(worker, random.choice(places)) for worker in workers],
            "pay": [(worker, random.randrange(10, 100)) for worker in workers],
        }

    def known(value: Any) -> Any:
        return None if random.random() < size.unknown else value

    workers = codes("w", size.workers, random)
    places, items = codes("h", size.halls, random), codes("i", size.items, random)
    trades, towns = TRADES[: size.trades], TOWNS[: size.towns]
    found: World = {
        "staff": [(w, known(random.choice(places)), random.choice(trades)) for w in workers],
        "pay": [(w, known(100 * random.randrange(1500, 4000) + 50)) for w in workers],
        "time": [(w, known(random.randrange(600, 3000))) for w in workers],
        "jobs": [
            (job, random.choice(workers), random.choice(items), known(random.randrange(1, 60)))
            for job in codes("j", size.jobs, random)
        ],
        "stock": [(item, random.randrange(50, 5000)) for item in items],
        "sites": [(place, towns[number % len(towns)]) for number, place in enumerate(places)],
    }
    for rows in found.values():
        random.shuffle(rows)
    return found


def twisted(text: str, seed: int) -> str:
    """A text in which every number, of a code too, and every word of a table is another one."""
    random, others = Random(seed), dict[str, str]()
    for value in _VALUE.findall(text):
        if value not in others:
            others[value] = _other(value, random)
    return _VALUE.sub(lambda found: others[found[0]], text)


def _other(value: str, random: Random) -> str:
    """Another value that could stand there: as many digits, or a word of the same kind."""
    if not value.isdigit():
        kin = TRADES if value in TRADES else TOWNS
        return random.choice([word for word in kin if word != value])
    high = 10 ** len(value)
    low = high // 10 if len(value) > 1 else 0
    return str(low + (int(value) - low + random.randrange(1, high - low)) % (high - low))


def union(world: World, kept: dict[str, Department]) -> sqlite3.Connection:
    """All departments in one database, which no agent ever has: for the truth."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    for name, rows in world.items():
        department = kept.get(name, DEPARTMENTS[name])
        columns = ", ".join(" ".join(column) for column in department.columns)
        database.execute(f"CREATE TABLE {department.table} ({columns})")
        places = ", ".join("?" * len(department.columns))
        database.executemany(f"INSERT INTO {department.table} VALUES ({places})", rows)
    return database
