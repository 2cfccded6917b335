"""Queries of models: what is asked is answered, what is hostile is refused or cut, in words."""

import pytest

from marl_llm.games.tools import sql
from marl_llm.games.tools.process import Kind, Tool, ToolProcess

WAGES = {
    "name": "wages",
    "columns": [["worker", "TEXT"], ["cents", "INTEGER"]],
    "rows": [*([f"w{number}", 1000 * number] for number in range(10, 50)), ["w99", None]],
}


@pytest.fixture(scope="module")
def tool():
    made = ToolProcess(Tool(sql.__file__))
    yield made
    made.close()


def ask(tool, query, **more):
    return tool.call({"tables": [WAGES], "query": query, "rows": 20, "steps": 200_000, **more})


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SELECT worker, cents FROM wages WHERE cents > 48000", "w49 49000"),
        ("select worker from wages where cents is null;", "w99"),
        ("SELECT * FROM wages WHERE worker = 'w99'", "w99 null"),
        ("SELECT worker FROM wages WHERE worker LIKE 'w1%' AND cents < 12000", "w10; w11"),
        ("SELECT count(*), count(cents), sum(cents) / 100.0 FROM wages", "41 40 11800"),
        ("SELECT max(cents), min(cents), round(avg(cents), 1) FROM wages", "49000 10000 29500"),
        ("WITH x AS (SELECT worker FROM wages) SELECT count(*) FROM x", "41"),
        ("SELECT a.worker FROM wages a JOIN wages b USING (worker) LIMIT 2", "w10; w11"),
        ("SELECT cents, count(*) FROM wages GROUP BY cents HAVING cents < 11000", "10000 1"),
        ("SELECT sum(cents) OVER (ORDER BY worker) FROM wages LIMIT 2", "10000; 21000"),
        ("SELECT worker FROM wages WHERE cents > 1e9", sql.NOTHING),
        ("SELECT 1 / 3.0, 1 / 0, x'00ff'", "0.3333333333 null (bytes)"),
        ("SELECT 'häßlich \U0001f0a1'", "häßlich \U0001f0a1"),
    ],
)
def test_a_query_is_answered(tool, query, text):
    result = ask(tool, query)
    assert (result.kind, result.text, result.infra) == (Kind.OK, text, False)


def test_values_are_bound(tool):
    query = "SELECT cents FROM wages WHERE worker = ?"
    assert ask(tool, query, values=["w12"]).text == "12000"
    assert ask(tool, query, values=["w12' OR '1' = '1"]).text == sql.NOTHING


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("ATTACH 'x.db' AS x", "begins with SELECT"),
        ("PRAGMA query_only = OFF", "begins with SELECT"),
        ("DELETE FROM wages", "begins with SELECT"),
        ("EXPLAIN SELECT 1", "begins with SELECT"),
        ("VALUES (1)", "begins with SELECT"),
        ("", "begins with SELECT"),
        ("WITH x AS (SELECT 1) DELETE FROM wages", "only reading"),
        ("WITH x AS (SELECT 1) UPDATE wages SET cents = 0", "only reading"),
        ("WITH x AS (SELECT 1) INSERT INTO wages VALUES (1, 2)", "only reading"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DROP TABLE wages", "one statement"),
        ("SELECT * FROM salaries", "no such table: salaries"),
        ("SELECT pay FROM wages", "no such column: pay"),
        ("SELECT FROM", "syntax error"),
        ("SELECT * FROM sqlite_master", "there is no table sqlite_master"),
        ("SELECT count(*) FROM sqlite_schema", "there is no table sqlite_"),
        ("SELECT * FROM pragma_table_info('wages')", "allowed"),
        ("SELECT count(*) FROM pragma_database_list", "allowed"),
        ("SELECT * FROM json_each('[1, 2]')", "allowed"),
        ("SELECT load_extension('x.so')", "load_extension is not allowed"),
        ("SELECT random()", "random is not allowed"),
        ("SELECT CURRENT_TIMESTAMP", "current_timestamp is not allowed"),
        ("SELECT datetime('now')", "datetime is not allowed"),
        ("SELECT zeroblob(1000000000)", "zeroblob is not allowed"),
        ("SELECT printf('%.*c', 1000000000, 'x')", "printf is not allowed"),
        ("SELECT replace(hex(worker), '0', worker) FROM wages", "is not allowed"),
        ("SELECT cents FROM wages WHERE worker = ?", "bindings"),
        ("SELECT '\x00'", "null character"),
        ("SELECT '\ud800'", "surrogates"),
        ("SELECT CAST(x'ff' AS TEXT)", "UTF-8"),
        ("SELECT " + "(" * 400 + "1" + ")" * 400, ""),
        ("SELECT '" + "x" * 1000 + "'", "at most 1000 characters"),
        ("SELECT worker FROM wages WHERE worker LIKE '" + "%a" * 30 + "'", "too complex"),
        (
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
            "recursive queries are not allowed",
        ),
        (
            "SELECT group_concat(a.worker || b.worker || c.worker) FROM wages a, wages b, wages c",
            "too big",
        ),
    ],
)
def test_what_is_hostile_or_wrong_is_refused(tool, query, words):
    before = tool.pid
    result = ask(tool, query, steps=20_000_000)
    assert result.kind is Kind.REFUSED and not result.infra
    assert words in result.text and len(result.text) < 300
    assert tool.pid == before or before is None  # and the worker lives


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM wages a, wages b, wages c, wages d, wages e, wages f",
        "SELECT a.worker, b.worker FROM wages a, wages b, wages c, wages d ORDER BY 2, 1",
        "SELECT max(a.worker LIKE '%1%2%3%' OR b.worker LIKE c.worker) FROM wages a, wages b, "
        "wages c, wages d",
    ],
)
def test_a_query_that_takes_too_long_is_stopped_after_the_same_steps_everywhere(tool, query):
    before = tool.pid
    result = ask(tool, query)
    assert (result.kind, result.text, result.infra) == (
        Kind.TIMEOUT,
        "the query takes too long",
        False,
    )
    assert tool.pid == before


def test_a_long_string_to_be_matched_takes_no_long_time(tool):
    """One step of SQLite's machine, in which nobody looks at the clock."""
    long = "(SELECT group_concat(a.worker) FROM wages a, wages b)"
    result = ask(tool, f"SELECT {long} LIKE '%w%w%w%w%w%w%w%w%z'")
    assert (result.kind, result.text) == (Kind.OK, "0")


def test_only_so_many_rows_and_characters_are_shown(tool):
    result = ask(tool, "SELECT worker FROM wages", rows=3)
    assert result.kind is Kind.TOO_LONG and result.answered
    assert result.text == "w10; w11; w12 (cut: only the first 3 rows are shown)"
    long = "SELECT (SELECT group_concat(worker) FROM wages), a.worker FROM wages a"
    result = ask(tool, f"{long} LIMIT 20")
    assert result.kind is Kind.TOO_LONG and result.text.endswith("(cut: the text is too long)")
    assert len(result.text) <= tool.tool.limits.output


def test_a_query_that_needs_too_much_memory_is_stopped(tool):
    """Sorting a million rows of 300 characters: more than SQLite may hold."""
    line = "(SELECT group_concat(worker) FROM wages)"
    query = f"SELECT {line} || a.cents || b.cents || c.cents AS x FROM wages a, wages b, wages c, "
    result = ask(tool, f"{query} wages d ORDER BY x DESC", steps=2**40)
    assert result.kind is Kind.MEMORY and not result.infra
    assert ask(tool, "SELECT 1").text == "1"


def test_nothing_is_left_behind_from_one_call_to_the_next(tool):
    other = {**WAGES, "name": "items", "rows": [["i1", 5]]}
    assert ask(tool, "SELECT * FROM items", tables=[other]).text == "i1 5"
    assert "no such table" in ask(tool, "SELECT * FROM items").text
