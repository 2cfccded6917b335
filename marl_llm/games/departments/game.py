"""Departments: the tables of a firm lie in databases apart, and a question needs several."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Call, Delegation, Pay, Report, Step, Use
from marl_llm.games.departments.instructions import APART, clerk_rules, planner_rules
from marl_llm.games.departments.questions import Step as Needed
from marl_llm.games.departments.questions import make_question
from marl_llm.games.departments.reports import Items, answers, f1, reported, wanted
from marl_llm.games.departments.world import LEVELS, Department, departments, twisted
from marl_llm.games.faults import NOTHING, Fault, Faults, spoiled
from marl_llm.games.faults import Kind as FaultKind
from marl_llm.games.text_game import View
from marl_llm.games.tools import process, sql
from marl_llm.games.tools.process import Kind, Limits, Result, Tool
from marl_llm.types import Outcome

TASK_LIMIT = 600  # characters of a task
REPORT_LIMIT = 1_000  # characters of a report; what is longer is cut
STEPS = 200_000  # of SQLite's machine that a query may take
_CODE = re.compile(r"[a-z][0-9]{1,3}")
_SQL_TOOL = str(Path(sql.__file__))


@dataclass(frozen=True, slots=True)
class Note:
    """What a clerk did, and what it was told."""

    command: str
    text: str
    answered: bool  # it comes from the tables

    def after(self, fault: Fault | None) -> Note:
        """What is told after a content fault: nothing, the first part, or other values."""
        if fault is None:
            return self
        if fault.kind is FaultKind.WRONG:
            return replace(self, text=twisted(self.text, fault.seed))
        text = spoiled(self.text, fault)
        return replace(self, text=text or NOTHING, answered=self.answered and bool(text))


class Departments(Delegation):
    """A planner asks clerks, each of whom can query the tables of one department and no other.

    The planner knows the question and what each department keeps, and sees no table. A clerk knows
    its task and its department's tables, and not the question. Queries run in a process of their
    own, with limits. If that fails and no query is to blame, the episode is void, as it is after a
    fault that was drawn.
    """

    def __init__(
        self,
        *,
        level: int = 3,
        pay: Pay | None = None,
        limits: Limits | None = None,
        faults: Faults | None = None,
        list_legal: bool = True,
    ):
        """A game of one level.

        Args:
            level: 1 to 5, see `LEVELS`.
            pay: what the agents get.
            limits: of the process that queries run in.
            faults: how often a look at the tables fails; None = never.
            list_legal: without meaning here, since actions are free text.
        """
        if level not in LEVELS:
            raise GameError(f"level of departments is one of {list(LEVELS)}, got {level}")
        size = self.size = LEVELS[level]
        self.departments = departments(size)
        self.tool = Tool(_SQL_TOOL, limits or Limits())
        self._again: list[list[Any]] = []  # results of a snapshot, used again instead of the tool
        super().__init__(
            name="departments",
            seats={"planner": 1, "clerk": size.calls},
            turns={"planner": size.planner_turns, "clerk": size.turns},
            pay=pay,
            list_legal=list_legal,
            faults=faults,
        )

    # What is said to all.

    def rules(self) -> str:
        """Rules and actions of both roles."""
        return f"{self.instructions(self.planner)}\n\n{self.instructions('clerk')}"

    def instructions(self, role: str) -> str:
        """Each role is told its own part."""
        return planner_rules(self.size) if role == self.planner else clerk_rules(self.size)

    # The hooks of Delegation.

    def question(self, rng: np.random.Generator, options: Mapping[str, Any]) -> str:
        """Tables and a question on them."""
        world, self._question = make_question(self.size, Random(int(rng.integers(2**63))))
        self._tables = {name: [list(row) for row in world[name]] for name in self.departments}
        self._results: list[list[Any]] = []
        return self._question.text

    def read(self, call: Call, action: str) -> Step | None:
        """Ask and answer for the planner; get, schema, sql and report for a clerk."""
        action = action.strip()
        word, _, text = action.partition(":")
        text = text.strip()
        if call.role == self.planner:
            if word == "answer" and text:
                return Report(_plain(text)[:REPORT_LIMIT])
            return self._asked(action)
        if word == "report" and text:
            return Report(_plain(text)[:REPORT_LIMIT])
        if word == "sql" and text:
            return Use("sql", text)
        if action == "schema":
            return Use("schema")
        word, _, code = action.partition(" ")
        if self.size.short and word == "get" and _CODE.fullmatch(code):
            return Use("get", code)
        return None

    def use(self, call: Call, step: Use) -> None:
        """Look at the department's tables, through a process of its own."""
        department = self._department(call)
        if step.tool == "schema":
            columns = ", ".join(" ".join(column) for column in department.columns)
            note = Note("schema", f"{department.table}({columns})", True)
            call.notes.append(note.after(step.fault))
            return
        if step.tool == "get":
            key, *rest = (name for name, _ in department.columns)
            query = f"SELECT {', '.join(rest)} FROM {department.table} WHERE {key} = ?"
            result, command = self._query(department, query, step.argument), f"get {step.argument}"
        else:
            result = self._query(department, step.argument)
            command = f"sql: {_plain(step.argument)[:TASK_LIMIT]}"
        if result.infra:
            self.spoil(f"a query in {department.name}: {result.kind}: {result.text}")
            return
        said = result.text if result.answered else f"{result.kind}: {result.text}"
        call.notes.append(Note(command, said, result.answered).after(step.fault))

    def right(self, call: Call) -> float:
        """Whether the answer is right, or how well a report fits what its department must say."""
        report = call.report or ""
        if call.caller is None:
            return float(answers(report, self._question.truth))
        want = self.wanted(call)
        return max((f1(reported(report, letter), right) for letter, right in want), default=0.0)

    def wanted(self, call: Call) -> list[tuple[str, Items]]:
        """What a right report has, in each of its right forms; none where nobody should ask.

        On level 1 a task that is a code says by itself what is wanted. Else it is what the question
        needs of the clerk's department, whatever the task was.
        """
        department, task = _split(call.task)
        if self.size.short:
            rows = [row for row in self._tables[department] if row[0] == task]
            values = [row[1:] for row in rows]
            return [("w", wanted(values, keyed=False)), ("w", wanted(rows, keyed=True))]
        needed = self._needed(department)
        return [] if needed is None else [(needed.letter, right) for right in needed.right]

    def told(self, call: Call) -> View:
        """The question and the reports; or the task, and what the tables said."""
        return self._told_planner(call) if call.role == self.planner else self._told_clerk(call)

    def answer(self) -> str:
        """The right final action."""
        truth = self._question.truth
        return f"answer: {truth if isinstance(truth, str) else f'{truth:.10g}'}"

    # Players that need no model.

    def solve(self, call: Call, rng: np.random.Generator) -> str:
        """The planner asks for what it lacks, stage by stage; a clerk asks what it was asked."""
        if call.role != self.planner:
            return self._solve_clerk(call)
        lacking = [step for step in self._question.steps if not self._has(call, step)]
        if not lacking:
            return self.answer()
        now = [step for step in lacking if step.stage == lacking[0].stage]
        now = now[: max(1, self.free("clerk"))]
        return f" {APART} ".join(f"ask {step.department}: {step.task}" for step in now)

    def guess(self, call: Call, rng: np.random.Generator) -> str:
        """Some value of the kind that is asked for."""
        random = Random(int(rng.integers(2**63)))
        if call.role == self.planner:
            if isinstance(self._question.truth, str):
                return f"answer: {self._some_code(self._question.truth[0], random)}"
            most = 99 if self.size.short else 10 if "count" in self._question.brief else 1000
            return f"answer: {random.randint(1, most)}"
        if self.size.short:
            return f"report: {random.choice(self._tables[self._department(call).name])[1]}"
        return f"report: {self._some_code('w', random)} {self._some_code('w', random)}"

    def wander(self, call: Call, rng: np.random.Generator) -> str:
        """Ask one or two about some code, or look at some rows."""
        random = Random(int(rng.integers(2**63)))
        code = self._some_code("w", random)
        if call.role == self.planner:
            task = code if self.size.short else f"What do you keep of {code}?"
            several = not self.size.short and self.free("clerk") > 1
            asked = random.sample(list(self.departments), random.randint(1, 2) if several else 1)
            return f" {APART} ".join(f"ask {department}: {task}" for department in asked)
        if self.size.short:
            return f"get {code}"
        table = self._department(call).table
        return random.choice(
            ("schema", f"sql: SELECT * FROM {table} LIMIT 3", f"sql: SELECT count(*) FROM {table}")
        )

    def sample(self, agent: str, rng: np.random.Generator) -> str:
        """Some action of the right form, to some end or none."""
        call = self._calls[agent]
        going = rng.random() < 0.7
        action = self.wander(call, rng) if going else self.guess(call, rng)
        return action if self.accepts(agent, action) else self.guess(call, rng)

    # Copies.

    def snapshot(self) -> bytes:
        """The state, and what the tools have said: no query is run again to come back to it."""
        state = json.loads(super().snapshot())
        return json.dumps({**state, "results": self._results}).encode()

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot."""
        self._again = json.loads(state).get("results", [])
        try:
            super().restore(state)
        finally:
            self._again = []

    # Inside.

    def _asked(self, action: str) -> Ask | None:
        """The asks of one action; None if any of them is none."""
        calls = []
        for part in action.split(APART):
            word, _, rest = part.strip().partition(" ")
            department, colon, task = rest.partition(":")
            name, task = department.strip(), _plain(task)
            if word != "ask" or not colon or name not in self.departments:
                return None
            if not 0 < len(task) <= TASK_LIMIT:
                return None
            calls.append(("clerk", f"{name}: {task}"))
        return Ask(tuple(calls))

    def _query(self, department: Department, query: str, *values: str) -> Result:
        """Run a query on a department's table; what a snapshot remembers is not run."""
        if len(self._results) < len(self._again):
            kind, text, infra = self._again[len(self._results)]
            result = Result(Kind(kind), text, infra)
        else:
            table = {
                "name": department.table,
                "columns": department.columns,
                "rows": self._tables[department.name],
            }
            result = process.shared(self.tool).call(
                {
                    "tables": [table],
                    "query": query,
                    "values": values,
                    "rows": self.size.rows,
                    "steps": STEPS,
                }
            )
        self._results.append([result.kind.value, result.text, result.infra])
        return result

    def _department(self, call: Call) -> Department:
        return self.departments[_split(call.task)[0]]

    def _needed(self, department: str) -> Needed | None:
        steps = self._question.steps
        return next((step for step in steps if step.department == department), None)

    def _has(self, planner: Call, step: Needed) -> bool:
        """Whether the planner was told what this step is to find out."""
        return any(
            call.task == f"{step.department}: {step.task}" and self._rightness(call) >= 1.0
            for call in planner.calls
        )

    def _solve_clerk(self, call: Call) -> str:
        department, task = _split(call.task)
        needed = self._needed(department)
        if self.size.short:
            command = f"get {task}"
            if not _CODE.fullmatch(task):
                return "report: none"
        else:
            if not any(note.command == "schema" for note in call.notes):
                return "schema"
            table = self.departments[department].table
            right = needed is not None and needed.task == task
            query = needed.query if needed and right else f"SELECT * FROM {table} LIMIT 3"
            command = f"sql: {query}"
        told = [note for note in call.notes if note.command == command]
        if not told:
            return command
        known = told[-1].answered and told[-1].text != sql.NOTHING
        return f"report: {told[-1].text if known else 'none'}"

    def _some_code(self, letter: str, random: Random) -> str:
        """A code of this kind, there or not."""
        most = {"w": self.size.workers, "h": self.size.halls}.get(letter, self.size.items)
        return f"{letter}{random.randint(1, most) if self.size.short else random.randint(10, 99)}"

    def _told_planner(self, call: Call) -> View:
        text, brief = [f"Question: {call.task}"], [self._question.brief]
        kept = "; ".join(f"{each.name} ({each.keeps})" for each in self.departments.values())
        text.append(f"Departments and what they keep: {kept}.")
        for each in call.calls:
            department, task = _split(each.task)
            if each.report is None:
                text.append(f"{department} was asked: {task} No report: {_why(each)}.")
            else:
                text.append(f"{department} was asked: {task} Report: {each.report}")
            brief.append(f"{each.task} = {'?' if each.report is None else each.report}")
        text.append(f"Clerks left to ask: {self.free('clerk')}.")
        whole = "\n".join(text)
        return View(whole, "; ".join(brief), whole)

    def _told_clerk(self, call: Call) -> View:
        department, task = self._department(call), _split(call.task)[1]
        text = [f"You are a clerk of {department.name}. It keeps {department.keeps}."]
        text.append(f"Task: {task}")
        text += [f"{note.command}\n{note.text}" for note in call.notes]
        brief = [task, *(f"{note.command} = {note.text}" for note in call.notes)]
        whole = "\n".join(text)
        return View(whole, "; ".join(brief), whole)


def _split(task: str) -> tuple[str, str]:
    """Department and task."""
    department, _, words = task.partition(": ")
    return department, words


def _plain(text: str) -> str:
    return " ".join(text.split())


def _why(call: Call) -> str:
    if call.open:
        return "it is at work"
    return "it ran out of turns" if call.ended is Outcome.TRUNCATED else f"{call.ended} fault"
