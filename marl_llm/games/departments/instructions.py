"""What each role is told of the rules."""

from __future__ import annotations

from marl_llm.games.departments.reports import NEAR
from marl_llm.games.departments.world import Size

APART = ";;"  # between the asks of one action


def planner_rules(size: Size) -> str:
    """For the planner, who has no SQL."""
    task = "CODE" if size.short else "TASK"
    does = (
        "calls a clerk of that department, who looks up that code and reports its value."
        if size.short
        else "gives a task, in words, to a clerk of that department."
    )
    return (
        "You plan how to answer a question. What you need lies in the tables of departments, which "
        "you cannot see. Clerks look them up for you: a clerk sees the tables of its own "
        "department and your task, and nothing else, not even an earlier task. A code, such as "
        "w12, means the same in all departments.\n"
        f"Actions: `ask DEPARTMENT: {task}` {does} Several at once stand apart by ` {APART} `, as "
        f"in `ask DEPARTMENT: {task} {APART} ask DEPARTMENT: {task}`; they work side by side. You "
        f"can call {size.calls} clerks in all, and have {size.planner_turns} turns. "
        "`answer: VALUE` ends it, with one number or one code and nothing else that could be "
        f"taken for one; a number may be wrong by {NEAR:g}."
    )


def clerk_rules(size: Size) -> str:
    """For a clerk, whatever its department."""
    get = "`get CODE` shows what your tables have on a code. " if size.short else ""
    return (
        "You are a clerk of one department of a firm, and are given a task. Find in your tables "
        "what it asks for and report that and nothing else: codes, or codes with their values, as "
        "in `report: w12 250; w31 300`, or one number. What is not known is NULL in the tables and "
        "`null` in a report.\n"
        f"Actions: {get}`schema` names the table and its columns. `sql: SELECT ...` runs one "
        f"SQLite query, which can only read; at most {size.rows} rows are shown. `report: TEXT` "
        f"ends your task. You have {size.turns} turns."
    )
