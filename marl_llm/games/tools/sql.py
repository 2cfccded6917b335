"""A tool: one read-only query on tables that come with the call. Runs in a worker.

    {"tables": [{"name": "wages", "columns": [["worker", "TEXT"], ["cents", "INTEGER"]],
                 "rows": [["w01", 210000], ["w02", null]]}],
     "query": "SELECT worker FROM wages WHERE cents > ?", "values": [200000],
     "rows": 20, "steps": 200000}

gives ``w01``: rows apart by ``; ``, cells by a space. The database is in memory, made for this
call and gone behind it. The query comes from a model and may be hostile, so

- it is one statement that begins with SELECT or WITH, and an authorizer lets it read these tables
  and call the functions of a list, and nothing else: no ATTACH, no PRAGMA, no recursion, nothing
  that depends on the time or on chance;
- it ends after so many steps of SQLite's machine, which are the same on every machine, and cannot
  make a long string out of which one single step would take long;
- only so many rows are shown.
"""

from __future__ import annotations

import sqlite3
from typing import Any

FUNCTIONS = frozenset(
    (
        "abs", "avg", "coalesce", "count", "glob", "group_concat", "ifnull", "iif", "instr",
        "length", "like", "lower", "ltrim", "max", "min", "nullif", "round", "rtrim", "substr",
        "substring", "sum", "total", "trim", "typeof", "upper",
    )
)  # fmt: skip
QUERY_LIMIT = 1_000  # characters
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000,  # bytes of a string
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 8 * QUERY_LIMIT,
    sqlite3.SQLITE_LIMIT_COLUMN: 50,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 20,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 10,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
NOTHING = "no rows"
HEAP = 32 << 20  # bytes of SQLite's own
EVERY = 100  # steps between two looks at their number

REFUSALS = {
    sqlite3.SQLITE_ATTACH: "other databases cannot be attached",
    sqlite3.SQLITE_PRAGMA: "PRAGMA is not allowed",
    sqlite3.SQLITE_RECURSIVE: "recursive queries are not allowed",
}


def call(argument: dict[str, Any]) -> tuple[str, str]:
    """The rows, or why there are none."""
    query = argument["query"].strip()
    if len(query) > QUERY_LIMIT:
        return "refused", f"a query has at most {QUERY_LIMIT} characters, this one {len(query)}"
    if query[:6].upper() != "SELECT" and query[:4].upper() != "WITH":
        return "refused", "a query begins with SELECT or WITH"
    database = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
    try:
        fill(database, argument["tables"])
        names = frozenset(table["name"] for table in argument["tables"])
        return ask(database, names, query, argument)
    finally:
        database.close()


def fill(database: sqlite3.Connection, tables: list[dict[str, Any]]) -> None:
    """Make the tables, and from then on only read. Their names are ours, so they are not quoted."""
    for table in tables:
        columns = ", ".join(" ".join(column) for column in table["columns"])
        places = ", ".join("?" * len(table["columns"]))
        database.execute(f"CREATE TABLE {table['name']} ({columns})")
        database.executemany(f"INSERT INTO {table['name']} VALUES ({places})", table["rows"])
    database.execute("PRAGMA query_only = ON")
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute(f"PRAGMA hard_heap_limit = {HEAP}").fetchall()
    for limit, most in LIMITS.items():
        database.setlimit(limit, most)


def ask(
    database: sqlite3.Connection, names: frozenset[str], query: str, argument: dict[str, Any]
) -> tuple[str, str]:
    """Run the query, watched."""
    refusal: list[str] = []

    def allow(action: int, one: str | None, two: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and (one in names or counted(one, two)):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in FUNCTIONS:
            return sqlite3.SQLITE_OK
        why = REFUSALS.get(action, "only reading is allowed")
        if action == sqlite3.SQLITE_READ:
            why = f"there is no table {one}"
        elif action == sqlite3.SQLITE_FUNCTION:
            why = f"the function {two} is not allowed"
        refusal.append(why)
        return sqlite3.SQLITE_DENY

    looks, most = 0, argument["steps"] // EVERY

    def look() -> bool:
        nonlocal looks
        looks += 1
        return looks > most

    database.set_authorizer(allow)
    database.set_progress_handler(look, EVERY)
    try:
        rows = database.execute(query, argument.get("values", ())).fetchmany(argument["rows"] + 1)
    except MemoryError:
        return "memory", "the query needs too much memory"
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if looks > most:
            return "timeout", "the query takes too long"
        return "refused", refusal[0] if refusal else " ".join(str(error).split())
    if not rows:
        return "ok", NOTHING
    text = "; ".join(" ".join(map(cell, row)) for row in rows[: argument["rows"]])
    if len(rows) > argument["rows"]:
        return "too_long", f"{text} (cut: only the first {argument['rows']} rows are shown)"
    return "ok", text


def counted(table: str | None, column: str | None) -> bool:
    """Whether only rows are counted, of something that the query itself may have named."""
    return not column and not (table or "").lower().startswith("sqlite_")


def cell(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return "(bytes)"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
