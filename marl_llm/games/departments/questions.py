"""A question, its truth, and the steps that lead there.

A question asks for something (how many, which, how much) of the workers who meet some conditions.
Each condition, and what is asked for, lies in one department or two, so a question needs as many
departments as its level says. Its truth is one statement over all departments in one database.

A step is what one department must be asked. It has one or several right sub-queries, and a report
is right if it gives the values of one of them:

    the codes of those that meet the department's condition, among those that are left so far
    the same among all, if the department has a condition of its own
    where the last condition lies, how many that are; where sums are asked for, the sum or its
    parts, with those that are not known or without
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from marl_llm.errors import GameError
from marl_llm.games.departments.reports import Items, wanted
from marl_llm.games.departments.world import (
    TRADES,
    Size,
    World,
    departments,
    make_world,
    union,
)

TRIES = 1000  # questions that are drawn until one has an answer that is worth asking for


@dataclass(frozen=True, slots=True)
class Step:
    """What one department must be asked."""

    department: str
    stage: int  # steps of one stage can be asked at once
    task: str  # in words, as a good planner would put it
    query: str  # as a good clerk would
    letter: str  # of the codes that begin a row of its report
    right: tuple[Items, ...]  # one for each right sub-query


@dataclass(frozen=True, slots=True)
class Question:
    """What the planner is asked, and what only the game knows."""

    text: str
    brief: str
    truth: str | float
    steps: tuple[Step, ...]  # in the order of their stages


@dataclass(frozen=True, slots=True)
class Condition:
    """On a worker."""

    words: str  # "are welders"
    brief: str
    sql: str  # on a row of `workers`
    staff: bool = True  # whether the staff department decides it
    own: str = ""  # where another does: the condition on a row of its table
    task: str = ""  # and how to put it to that department
    town: str = ""  # the town, where sites must be asked first


MEASURES = {
    "count": "how many are there?",
    "wages": "how many euros do they earn together in a month?",
    "hours": "how many hours have they worked together this week?",
    "top_wage": "who earns the most?",
    "top_hours": "who has worked the longest this week?",
    "pieces": "how many pieces have they made together?",
    "kilograms": "how many kilograms do the pieces weigh that they have made?",
}
OF_ONE = {  # measure -> department, column of its table, units of it in one of the question's
    "wages": ("pay", "cents", 100),
    "hours": ("time", "minutes", 60),
    "top_wage": ("pay", "cents", 1),
    "top_hours": ("time", "minutes", 1),
}
SUMS = {
    "pay": "How many cents do {who} earn together in a month?",
    "time": "How many minutes have {who} worked together?",
}
TOPS = {"pay": "Which of {who} earns the most?", "time": "Which of {who} has worked the longest?"}
TABLES = {"pay": "wages", "time": "shifts"}

CAN_BE_UNKNOWN = {  # what a condition or a measure looks at
    "wage": "wage",
    "wages": "wage",
    "top_wage": "wage",
    "hours": "time",
    "top_hours": "time",
    "pieces": "number of pieces",
    "kilograms": "number of pieces",
}


def make_question(size: Size, random: Random) -> tuple[World, Question]:
    """Tables and a question on them whose answer is unique and not obvious."""
    for _ in range(TRIES // 20):
        world = make_world(size, random)
        database = union(world, departments(size))
        try:
            for _ in range(20):
                found = _short(database, world, random) if size.short else None
                found = found or _drawn(database, size, random)
                if found is not None:
                    return world, found
        finally:
            database.close()
    raise GameError(f"no question is to be had with {size}; give it more workers or fewer unknowns")


def _rows(database: sqlite3.Connection, query: str) -> list[tuple]:
    return database.execute(query).fetchall()


def _short(database: sqlite3.Connection, world: World, random: Random) -> Question:
    """Level 1: one value of one worker."""
    worker = random.choice(world["staff"])[0]
    what, department, column, table = random.choice(
        (("wage", "pay", "cents", "wages"), ("hall", "staff", "hall", "workers"))
    )
    query = f"SELECT {column} FROM {table} WHERE worker = '{worker}'"
    ((truth,),) = _rows(database, query)
    right = (wanted([(truth,)], keyed=False), wanted([(worker, truth)], keyed=True))
    text = f"What is the {what} of {worker}{', in cents' if what == 'wage' else ''}?"
    step = Step(department, 0, worker, query, "w", right)
    return Question(text, f"{what} {worker}", truth, (step,))


def _drawn(database: sqlite3.Connection, size: Size, random: Random) -> Question | None:
    """A question by chance; None = its answer is empty, not unique or given away."""
    names, measure = random.choice(size.recipes)
    conditions = []
    for name in names:
        condition = _condition(name, database, size, random)
        if condition is None:
            return None
        conditions.append(condition)
    conditions.sort(key=lambda condition: not condition.staff)
    truth = _truth(database, conditions, measure)
    if truth is None:
        return None
    steps = _steps(database, size, conditions, measure)
    if steps is None:
        return None
    who = " and ".join(condition.words for condition in conditions)
    named = names == ("named",)
    group = f"the workers {who}" if named else f"the workers who {who}" if names else "all workers"
    looked_at = [CAN_BE_UNKNOWN[name] for name in (*names, measure) if name in CAN_BE_UNKNOWN]
    text = f"Of {group}: {MEASURES[measure]}"
    if looked_at:
        what = " or ".join(dict.fromkeys(looked_at))
        text = f"{text} A {what} that is not known meets no condition and adds nothing."
    brief = ", ".join(condition.brief for condition in conditions) or "all"
    return Question(text, f"{measure}: {brief}", truth, steps)


def _condition(
    name: str, database: sqlite3.Connection, size: Size, random: Random
) -> Condition | None:
    """A condition of this kind; None = the tables have nothing to make it of."""
    if name == "trade":
        trade = random.choice(TRADES[: size.trades])
        return Condition(f"are {trade}s", trade, f"trade = '{trade}'")
    if name in ("hall", "not_hall"):
        hall = random.choice(_rows(database, "SELECT hall FROM halls"))[0]
        if name == "hall":
            return Condition(f"are in hall {hall}", f"hall {hall}", f"hall = '{hall}'")
        words = f"are not in hall {hall} (nor is a worker whose hall is not known)"
        return Condition(words, f"not hall {hall}", f"hall IS NOT '{hall}'")
    if name == "town":
        town = random.choice(_rows(database, "SELECT DISTINCT town FROM halls"))[0]
        sql = f"hall IN (SELECT hall FROM halls WHERE town = '{town}')"
        return Condition(f"are in a hall in {town}", town, sql, town=town)
    if name == "named":
        every = [row[0] for row in _rows(database, "SELECT worker FROM workers")]
        chosen = sorted(random.sample(every, random.randint(2, 3)))
        sql = f"worker IN {_listed(chosen)}"
        return Condition(_words(chosen), " ".join(chosen), sql)
    if name == "no_wage":
        sql = "worker IN (SELECT worker FROM wages WHERE cents IS NULL)"
        words = "have a wage that is not known"
        return Condition(words, "wage unknown", sql, False, "cents IS NULL", words)
    return _threshold(name, database, random)


def _threshold(name: str, database: sqlite3.Connection, random: Random) -> Condition | None:
    """More or less than a whole number of euros or hours, which some reach and some do not."""
    column, table, unit = {"wage": ("cents", "wages", 100), "hours": ("minutes", "shifts", 60)}[
        name
    ]
    query = f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {column}"
    known = [row[0] for row in _rows(database, query)]
    if len(known) < 4:
        return None
    limit = known[random.randint(len(known) // 4, 3 * len(known) // 4)] // unit
    if limit * unit in known:  # so that nobody must know what "more than" means at the limit
        return None
    sign, more = random.choice(((">", "more"), ("<", "less")))
    own = f"{column} {sign} {limit * unit}"
    sql = f"worker IN (SELECT worker FROM {table} WHERE {own})"
    if name == "wage":
        words, task = (
            f"earn {more} than {amount} a month"
            for amount in (f"{limit} euros", f"{limit * unit} cents")
        )
    else:
        words, task = (
            f"have worked {more} than {amount} this week"
            for amount in (f"{limit} hours", f"{limit * unit} minutes")
        )
    return Condition(words, f"{name} {sign} {limit}", sql, False, own, task)


def _members(conditions: Sequence[Condition]) -> str:
    """The workers who meet these conditions, in SQL over all departments."""
    return "SELECT worker FROM workers WHERE " + (
        " AND ".join(condition.sql for condition in conditions) or "1"
    )


def _truth(
    database: sqlite3.Connection, conditions: Sequence[Condition], measure: str
) -> str | float | None:
    """The answer, by one statement; None = there is none, or no single one."""
    members = _members(conditions)
    if measure == "count":
        query = f"SELECT nullif(count(*), 0) FROM ({members})"
    elif measure.startswith("top"):
        department, column, _ = OF_ONE[measure]
        rows = f"{TABLES[department]} WHERE worker IN ({members})"
        query = f"SELECT worker FROM {rows} AND {column} = (SELECT max({column}) FROM {rows})"
    elif measure in OF_ONE:
        department, column, unit = OF_ONE[measure]
        total = f"1.0 * sum({column}) / {unit}"
        query = f"SELECT {total} FROM {TABLES[department]} WHERE worker IN ({members})"
    elif measure == "pieces":
        query = f"SELECT sum(pieces) FROM jobs WHERE worker IN ({members})"
    else:
        query = (
            "SELECT sum(pieces * grams) / 1000.0 FROM jobs JOIN items USING (item) "
            f"WHERE worker IN ({members})"
        )
    found = _rows(database, query)
    return found[0][0] if len(found) == 1 else None


def _steps(
    database: sqlite3.Connection, size: Size, conditions: Sequence[Condition], measure: str
) -> tuple[Step, ...] | None:
    """What must be asked, stage by stage; None = a step has nothing to say or too much."""
    steps: list[Step] = []
    staff = [condition for condition in conditions if condition.staff]
    others = [condition for condition in conditions if not condition.staff]
    named = len(staff) == 1 and staff[0].sql.startswith("worker IN ('")
    last = measure == "count" and len(others) < 2  # the last step's codes need only be counted
    if staff and not named:
        steps += _staff_steps(database, staff, count=last and not others)
    left = _column(database, _members(staff)) if staff else None
    stage = len(steps)
    steps += [_other_step(database, other, left, stage, count=last) for other in others]
    final = _column(database, _members(conditions)) if conditions else None
    if final is not None and len(final) < (1 if measure == "count" else 2):
        return None
    if others and left is not None and len(final or ()) == len(left):
        return None  # conditions that change nothing need not be asked about
    steps += _measure_steps(database, final, measure, stage + 1)
    if any(not step.right[0] for step in steps):
        return None
    too_long = any(len(_rows(database, step.query)) > size.rows for step in steps)
    return None if too_long else tuple(steps)


def _staff_steps(
    database: sqlite3.Connection, staff: Sequence[Condition], count: bool
) -> list[Step]:
    """Where there is a town, its halls first; then the workers."""
    steps, own, words = [], [], []
    for condition in staff:
        if condition.town:
            query = f"SELECT hall FROM halls WHERE town = '{condition.town}'"
            halls = _column(database, query)
            task = f"Which halls are in {condition.town}?"
            right = _codes(database, query, count=False)
            steps.append(Step("sites", 0, task, query, "h", right))
            own.append(f"hall IN {_listed(halls)}")
            words.append(f"are in {_one_of('hall', 'halls', halls)}")
        else:
            own.append(condition.sql)
            words.append(condition.words)
    query = f"SELECT worker FROM workers WHERE {' AND '.join(own)}"
    right = _codes(database, query, count)
    alone = [condition.sql for condition in staff if not condition.town]
    if steps and alone:  # not told the halls, it can name them with the workers
        rows = _rows(database, f"SELECT worker, hall FROM workers WHERE {' AND '.join(alone)}")
        right += (wanted(rows, keyed=True),)
    task = f"Which workers {' and '.join(words)}?"
    return [*steps, Step("staff", len(steps), task, query, "w", right)]


def _other_step(
    database: sqlite3.Connection, other: Condition, left: list[str] | None, stage: int, count: bool
) -> Step:
    """A condition that pay or time decides, on the workers who are left."""
    department = "time" if "minutes" in other.own else "pay"
    query = f"SELECT worker FROM {TABLES[department]} WHERE {other.own}"
    if left is None:
        right = _codes(database, query, count)
        return Step(department, stage, f"Which workers {other.task}?", query, "w", right)
    narrow = f"{query} AND worker IN {_listed(left)}"
    right = (*_codes(database, narrow, count), *_codes(database, query, count=False))
    return Step(department, stage, f"Which of {_who(left)} {other.task}?", narrow, "w", right)


def _measure_steps(
    database: sqlite3.Connection, final: list[str] | None, measure: str, stage: int
) -> list[Step]:
    """What is asked for, of those who are left at the end."""
    if measure == "count":
        return []
    if measure in OF_ONE:
        department, column, _ = OF_ONE[measure]
        table = TABLES[department]
        among = "" if final is None else f" AND worker IN {_listed(final)}"
        known = f"FROM {table} WHERE {column} IS NOT NULL{among}"
        whole = f"FROM {table} WHERE 1{among}"  # with those that are not known
        parts = [
            wanted(_rows(database, f"SELECT worker, {column} {rows}"), keyed=True)
            for rows in (known, whole)
        ]
        if measure.startswith("top"):
            query = f"SELECT worker, {column} {known} ORDER BY {column} DESC LIMIT 1"
            rows = _rows(database, query)
            best = wanted(rows, keyed=True), wanted([row[:1] for row in rows], keyed=True)
            task = _asked(TOPS[department], final)
            return [Step(department, stage, task, query, "w", (*best, *parts))]
        query = f"SELECT sum({column}) {known}"
        total = wanted(_rows(database, query), keyed=False)
        return [
            Step(department, stage, _asked(SUMS[department], final), query, "w", (total, *parts))
        ]
    return _job_steps(database, final or [], measure, stage)


def _job_steps(
    database: sqlite3.Connection, final: list[str], measure: str, stage: int
) -> list[Step]:
    """Pieces, and what they weigh."""
    who = _who(final)
    every = f"FROM jobs WHERE worker IN {_listed(final)}"
    among = f"{every} AND pieces IS NOT NULL"
    by_item = f"SELECT item, sum(pieces) {among} GROUP BY item"
    parts = _rows(database, by_item)
    with_unknown = _rows(database, f"SELECT item, sum(pieces) {every} GROUP BY item")
    right = wanted(parts, keyed=True), wanted(with_unknown, keyed=True)
    if measure == "pieces":
        query = f"SELECT sum(pieces) {among}"
        total = wanted(_rows(database, query), keyed=False)
        task = f"How many pieces have {who} made together?"
        return [Step("jobs", stage, task, query, "i", (total, *right))]
    items = [item for item, _ in parts]
    weigh = f"SELECT item, grams FROM items WHERE item IN {_listed(items)}"
    task = f"How many pieces of each item have {who} made together?"
    each = f"item {items[0]}" if len(items) == 1 else f"each of the items {_words(items)}"
    ask = f"What is the weight in grams of a piece of {each}?"
    return [
        Step("jobs", stage, task, by_item, "i", right),
        Step("stock", stage + 1, ask, weigh, "i", (wanted(_rows(database, weigh), keyed=True),)),
    ]


def _codes(database: sqlite3.Connection, query: str, count: bool) -> tuple[Items, ...]:
    """The codes that a query finds, and how many, if that will do."""
    rows = _rows(database, query)
    right = (wanted(rows, keyed=True),)
    return (*right, wanted([[len(rows)]], keyed=False)) if count else right


def _column(database: sqlite3.Connection, query: str) -> list[str]:
    return sorted(row[0] for row in _rows(database, query))


def _listed(codes: Sequence[str]) -> str:
    return f"({', '.join(repr(code) for code in codes)})"


def _words(codes: Sequence[str]) -> str:
    return ", ".join(codes)


def _one_of(one: str, several: str, codes: Sequence[str]) -> str:
    return f"{one} {codes[0]}" if len(codes) == 1 else f"one of the {several} {_words(codes)}"


def _who(codes: Sequence[str]) -> str:
    return f"the workers {_words(codes)}"


def _asked(task: str, codes: Sequence[str] | None) -> str:
    return task.format(who="all workers" if codes is None else _who(codes))
