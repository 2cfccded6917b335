"""Phantom search: a planner without tools, and searchers who read pages about a made-up world."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Call, Delegation, Pay, Report, Step, Use
from marl_llm.games.faults import Faults
from marl_llm.games.phantom.grammar import CROWD, plainly
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.games.phantom.library import library_of
from marl_llm.games.phantom.names import normalised, words_of
from marl_llm.games.phantom.pages import Page
from marl_llm.games.phantom.questions import Hop, stages
from marl_llm.games.phantom.relations import BY_NAME
from marl_llm.games.phantom.tasks import Asked, asked_by, rightness, told_by
from marl_llm.games.phantom.tools import TOOLS, Note, faulty, used
from marl_llm.games.text_game import ACTION_LIMIT, View

SEARCHER = "searcher"
BETWEEN = ";;"  # tasks that are given at once
NOTHING = "?"  # what stands for a report that did not come
SOLO_USES = 50  # of tools by one agent at most: all that it has seen stays in its observation

ANSWER = "The answer is a name, a year or a number, without anything else."
LOOKS = (
    "search: WORDS, which gives titles; visit: TITLE, which gives the page, or the first part of "
    "it if it is long, and visit: TITLE #2 the second; find: WORD, which gives the lines with that "
    "word on the page visited last"
)


class PhantomSearch(Delegation):
    """A question about people, places, firms and works that do not exist.

    The planner has no tools. It gives searchers tasks in free words, several at once if it likes,
    reads their reports and answers. A searcher sees its task and what its tools give back. Actions
    are free text of one line, a word and a colon first:

        planner     delegate: TASK [;; TASK ...]    answer: TEXT
        searcher    search: WORDS    visit: TITLE [#PART]    find: WORD    report: TEXT

    With ``solo`` there is nobody to call: one agent has the tools, sees all that they gave back,
    and answers. World, pages and question come from the episode's seed, so two seeds share nothing.
    """

    def __init__(
        self,
        *,
        level: int = 3,
        change: Mapping[str, Any] | None = None,
        solo: bool = False,
        pay: Pay | None = None,
        faults: Faults | None = None,
        list_legal: bool = True,
    ):
        """A game of one level.

        Args:
            level: 1 to 5, see `levels.LEVELS`.
            change: knobs of `levels.Level` that are to be otherwise, by name.
            solo: the planner looks for itself, as often as all its searchers could but no more
                than `SOLO_USES` times, and answers.
            pay: what the agents get.
            faults: how often tools fail; None = never.
            list_legal: without effect, since actions are free text.
        """
        if level not in LEVELS:
            raise GameError(f"level of phantom_search is one of {list(LEVELS)}, got {level}")
        self.level, self.solo = LEVELS[level].changed(change or {}), solo
        calls, turns = self.level.calls, self.level.searcher_turns
        uses = min(calls * (turns - 1), SOLO_USES)  # each searcher reports in its last turn
        super().__init__(
            name="phantom_search",
            seats={"planner": 1} if solo else {"planner": 1, SEARCHER: calls},
            turns={"planner": uses + 1 if solo else self.level.planner_turns, SEARCHER: turns},
            pay=pay,
            list_legal=list_legal,
            faults=faults,
        )

    def rules(self) -> str:
        """The whole game in words."""
        roles = (self.planner,) if self.solo else (self.planner, SEARCHER)
        return "\n\n".join(map(self.instructions, roles))

    def instructions(self, role: str) -> str:
        """What a planner or a searcher is told."""
        about = (
            "There is a library of pages about people, places, firms and works. "
            "All of it is made up, so nothing of it is known beforehand."
        )
        if self.level.aliases:
            about += " Some have a second name."
        if self.level.stale:
            about += " Some pages have an old edition; where two differ, the newer one is right."
        calls, turns = self.level.calls, self._turns[role]
        if role == self.planner and self.solo:
            return (
                f"{about}\nYou are given a question about them; look into the library and answer "
                f"it. You have {turns} turns. {ANSWER}\n"
                f"Actions: {LOOKS}; answer: TEXT, which ends your work."
            )
        if role == self.planner:
            return (
                f"{about}\nYou are the planner and must answer a question about them. You cannot "
                f"look into the library. You can call {calls} searchers in all, each for one task; "
                "a searcher knows nothing but its task. Several tasks given at once are worked on "
                f"side by side. You have {turns} turns. {ANSWER}\n"
                f"Actions: delegate: TASK, or delegate: TASK {BETWEEN} TASK and so on; "
                "answer: TEXT."
            )
        return (
            f"{about}\nYou are a searcher. You are given a task; look into the library and report "
            f"what was asked for, in few words and nothing else. You have {turns} turns.\n"
            f"Actions: {LOOKS}; report: TEXT, which ends your work."
        )

    def question(self, rng: np.random.Generator, options: Mapping[str, Any]) -> str:
        """A world of the episode's own and a question about it."""
        self.library = library_of(self.level, int(rng.integers(2**63)))
        self._demands: dict[str, Asked] = {}
        return self.library.question.text

    def answer(self) -> str:
        """The answer by its usual name."""
        return f"answer: {self.library.question.answers[0]}"

    def read(self, call: Call, action: str) -> Step | None:
        """A word, a colon, and text."""
        if len(action) > ACTION_LIMIT:
            return None
        word, _, rest = action.partition(":")
        word, text = word.strip().casefold(), plain(rest)
        if not text:
            return None
        if word == ("answer" if call.role == self.planner else "report"):
            return Report(text)
        if self._looks(call):
            return Use(word, text) if word in TOOLS else None
        if word == "delegate":
            tasks = [task for each in text.split(BETWEEN) if (task := each.strip())]
            return Ask(tuple((SEARCHER, task) for task in tasks)) if tasks else None
        return None

    def use(self, call: Call, step: Use) -> None:
        """Search, visit or find."""
        note = used(step.tool, step.argument, call.notes, self.library)
        call.notes.append(faulty(note, step.fault, self.library))

    def right(self, call: Call) -> float:
        """Whether the answer is one of the right names; of a report, `tasks.rightness`."""
        report = call.report or ""
        if call.caller is None:
            right = {normalised(name) for name in self.library.question.answers}
            return float(normalised(report) in right)
        return rightness(report, call.task, self._demand(call), self.library.world)

    def told(self, call: Call) -> View:
        """The question or the task, and what was reported or what the tools gave back."""
        asked, left = self.library.question, f"Turns left: {self.turns_left(call)}."
        main = call.role == self.planner
        head = f"Question: {asked.text}\n{left}" if main else f"Your task: {call.task}\n{left}"
        brief = [asked.brief if main else call.task]
        if self._looks(call):
            lines = [f"You did {each.tool}: {each.argument}\n{each.text}" for each in call.notes]
            brief += [note.brief for note in call.notes]
        else:
            head += f" Searchers left: {self.free(SEARCHER)}."
            lines = [f"You asked {each.agent}: {each.task}\n{_heard(each)}" for each in call.calls]
            brief += [_in_short(each, self.level.terse) for each in call.calls]
        text = "\n".join([head, *lines])
        key = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return View(text, " | ".join(brief), key)

    # Players that need no model.

    def solve(self, call: Call, rng: np.random.Generator) -> str:
        """Delegate look-up by look-up, what can be found at once at once; look up, then report."""
        last = self.turns_left(call) <= 1
        if not self._looks(call):
            tasks = [] if last else self._next_tasks(call)
            return f"delegate: {f' {BETWEEN} '.join(tasks)}" if tasks else self.answer()
        action = None if last else self._next_look(call)
        if action is not None:
            return action
        if call.role == self.planner:
            return self.answer()
        told = told_by(self._demand(call), self.library.world)[:CROWD]
        return f"report: {'; '.join(told) or 'nothing'}"

    def guess(self, call: Call, rng: np.random.Generator) -> str:
        """The name of anything."""
        return f"{'answer' if call.role == self.planner else 'report'}: {self._any_name(rng)}"

    def wander(self, call: Call, rng: np.random.Generator) -> str:
        """Ask for any fact, or look anywhere."""
        world = self.library.world
        if not self._looks(call):
            ways = list(world.about)
            thing, relation = ways[int(rng.integers(len(ways)))]
            facts = world.about[thing, relation]
            year = facts[0].start + 1 if BY_NAME[relation].office else None
            return f"delegate: {plainly(Hop(relation, thing, False, facts, year), world)}"
        tool = TOOLS[int(rng.integers(len(TOOLS)))]
        if tool == "visit":
            titles = self.library.pages.titles
            return f"visit: {titles[int(rng.integers(len(titles)))][0]}"
        return f"{tool}: {self._any_name(rng).split()[-1]}"

    def sample(self, agent: str, rng: np.random.Generator) -> str:
        """Each kind of action that is allowed, equally likely, about anything."""
        call = self.call_of(agent)
        if call is None:
            raise GameError(f"{agent} was not called and has nothing to do")
        kinds = 1 + len(TOOLS) if self._looks(call) else 2
        if rng.integers(kinds) == 0:
            return self.guess(call, rng)
        action = self.wander(call, rng)
        if not self._looks(call):
            if self.free(SEARCHER) > 1 and rng.random() < 0.5:
                action += f" {BETWEEN} {self.wander(call, rng).partition(': ')[2]}"
            return action if self.free(SEARCHER) else self.guess(call, rng)
        return action

    # Inside.

    def _looks(self, call: Call) -> bool:
        """Whether the agent of a call has the tools; one without them delegates."""
        return self.solo or call.role == SEARCHER

    def _demand(self, call: Call) -> Asked:
        """What the task of a call asks for; the planner's is the whole question."""
        if call.agent not in self._demands:
            steps = self.library.question.steps
            self._demands[call.agent] = (
                dict(enumerate(steps))
                if call.caller is None
                else asked_by(call.task, steps, self.library.world)
            )
        return self._demands[call.agent]

    def _next_tasks(self, call: Call) -> list[str]:
        """The look-ups of the first stage that has not been delegated, as many as can be."""
        steps, asked = self.library.question.steps, {each.task for each in call.calls}
        for stage in stages(steps):
            hops = [step for number in stage if isinstance(step := steps[number], Hop)]
            tasks = [task for h in hops if (task := plainly(h, self.library.world)) not in asked]
            if tasks:
                return tasks[: self.free(SEARCHER)]
        return []

    def _next_look(self, call: Call) -> str | None:
        """The next use of a tool that shows what the task asks for; None = all has been seen."""
        pages, notes = self.library.pages, call.notes
        for step in self._demand(call).values():
            if not isinstance(step, Hop):
                continue
            page = pages.newest(step.known)
            place = pages.places(page.title)[0]
            seen = {at for note in notes if note.place == place for at in note.sentences}
            about = (step.relation, step.back)
            left = [at for at, what in enumerate(page.says) if what == about and at not in seen]
            if left:
                return self._look(page, place, left[0], notes)
        return None

    def _look(self, page: Page, place: int, sentence: int, notes: list[Note]) -> str:
        """The next use of a tool on the way to a sentence: search, visit, find, visit its part."""
        name = self.library.world.things[page.thing].name
        done = {(note.tool, note.argument) for note in notes}
        if not self.level.terse and ("search", name) not in done:
            return f"search: {name}"
        if ("visit", page.title) not in done:
            return f"visit: {page.title}"
        about = page.says[sentence]
        word = None if about is None else _word_for(about, page.sentences[sentence])
        if word is not None and notes[-1].place == place and ("find", word) not in done:
            return f"find: {word}"
        (part,) = [n for n, (at, end) in enumerate(page.parts, start=1) if at <= sentence < end]
        return f"visit: {page.title} #{part}"

    def _any_name(self, rng: np.random.Generator) -> str:
        things = self.library.world.things
        return things[int(rng.integers(len(things)))].name


def plain(text: str) -> str:
    """A text on one line, without what cannot be printed or encoded."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _heard(call: Call) -> str:
    if call.report is not None:
        return f"It reports: {call.report}"
    return "It works." if call.ended is None else f"It gives no report ({call.ended.value})."


def _in_short(call: Call, terse: bool) -> str:
    report = call.report or NOTHING
    return report if terse else f"{call.task} {report}"


def _word_for(about: tuple[str, bool], sentence: str) -> str | None:
    """A word of a sentence by which to find it among others: one that asks for its relation."""
    relation, words = BY_NAME[about[0]], set(words_of(sentence))
    cues = relation.back_cues if about[1] else relation.cues
    return next((word for cue in cues for word in sorted(cue) if word in words), None)
