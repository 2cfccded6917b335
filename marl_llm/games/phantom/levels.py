"""Levels: how large and how hard a world and its questions are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from marl_llm.errors import GameError, nearest

QUESTIONS = ("bridge", "comparison", "intersection", "count", "superlative", "temporal")


@dataclass(frozen=True, slots=True)
class Level:
    """The knobs. Ranges are (least, most), both included."""

    people: int
    places: int
    firms: int
    works: int
    questions: tuple[str, ...]  # which of `QUESTIONS`; a bridge of one link is a lookup
    links: tuple[int, int]  # of a bridge
    lead: tuple[int, int]  # links that lead to what any other question is about
    branching: int  # mean number of subjects that share a value, such as works of one author
    calls: int  # searchers that a planner can call
    planner_turns: int
    searcher_turns: int
    tail: tuple[int, int] = (0, 0)  # links behind what any other question finds
    aliases: float = 0.0  # share of things that have a second name
    by_alias: float = 0.0  # share of mentions of such a thing that use it
    distractors: int = 0  # sentences of a page about which nothing is ever asked
    stale: float = 0.0  # share of things that also have an old edition of their page
    part: int = 600  # characters of a page that one visit shows, at least one sentence
    noise: float = 0.0  # share of pages that the index misses; they can still be visited
    results: int = 5  # titles that a search gives
    terse: bool = False  # pages and questions in key words, without years

    def __post_init__(self) -> None:
        for name in ("branching", "calls", "part", "results"):
            _at_least(name, getattr(self, name), 1)
        for name in ("works", "distractors"):
            _at_least(name, getattr(self, name), 0)
        for name in ("people", "places", "firms", "planner_turns", "searcher_turns"):
            _at_least(name, getattr(self, name), 2)
        for name in ("aliases", "by_alias", "stale", "noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise GameError(f"{name} is a share from 0 to 1, got {getattr(self, name)}")
        for name, least in (("links", 1), ("lead", 0), ("tail", 0)):
            low, high = getattr(self, name)
            if not least <= low <= high:
                raise GameError(f"{name} is a range from {least} up, got {low} to {high}")
        for question in self.questions:
            if question not in QUESTIONS:
                raise GameError(f"unknown question {question!r}; {nearest(question, QUESTIONS)}")
        if self.people < 2 + self.firms:
            raise GameError(
                f"people must be at least firms + 2, since each firm has a founder of its own and "
                f"everybody a mentor; got {self.people} people and {self.firms} firms"
            )
        if not self.questions or (self.terse and self.questions != ("bridge",)):
            raise GameError("questions has at least one kind; a terse level has bridges only")
        if self.calls < self.links[0] or self.planner_turns <= self.links[0]:
            raise GameError(
                f"a bridge of {self.links[0]} links needs as many calls and one turn more of the "
                f"planner, got {self.calls} calls and {self.planner_turns} turns"
            )

    def changed(self, knobs: Mapping[str, Any]) -> Level:
        """This level with some knobs turned; lists, as YAML has them, become tuples.

        Raises:
            GameError: there is no such knob, or its value is out of range.
        """
        known = [each.name for each in fields(self)]
        for name, value in knobs.items():
            if name not in known:
                raise GameError(f"a level has no knob {name!r}; {nearest(name, known)}")
            kinds = _KINDS[type(getattr(self, name))]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise GameError(f"{name} must be {names}, got {value!r}")
        tidy: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in knobs.items()
        }
        return replace(self, **tidy)


_KINDS: dict[type, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    bool: (bool,),
    tuple: (list, tuple),
}


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise GameError(f"{name} must be at least {least}, got {value}")


LEVELS = {
    1: Level(
        people=4,
        places=3,
        firms=2,
        works=0,
        questions=("bridge",),
        links=(1, 2),
        lead=(0, 0),
        branching=2,
        calls=3,
        planner_turns=4,
        searcher_turns=4,
        terse=True,
    ),
    2: Level(
        people=12,
        places=6,
        firms=5,
        works=8,
        questions=("bridge", "count"),
        links=(1, 3),
        lead=(0, 0),
        branching=2,
        calls=4,
        planner_turns=5,
        searcher_turns=6,
        distractors=2,
    ),
    3: Level(
        people=48,
        places=20,
        firms=20,
        works=32,
        questions=QUESTIONS,
        links=(2, 3),
        lead=(0, 1),
        branching=3,
        calls=6,
        planner_turns=6,
        searcher_turns=8,
        aliases=0.3,
        by_alias=0.3,
        distractors=4,
        stale=0.2,
    ),
    4: Level(
        people=200,
        places=60,
        firms=80,
        works=160,
        questions=QUESTIONS,
        links=(3, 4),
        lead=(1, 2),
        tail=(0, 1),
        branching=4,
        calls=9,
        planner_turns=8,
        searcher_turns=8,
        aliases=0.5,
        by_alias=0.5,
        distractors=8,
        stale=0.4,
        part=500,
        noise=0.02,
    ),
    5: Level(
        people=800,
        places=200,
        firms=300,
        works=700,
        questions=QUESTIONS,
        links=(4, 6),
        lead=(2, 3),
        tail=(0, 2),
        branching=5,
        calls=12,
        planner_turns=10,
        searcher_turns=8,
        aliases=0.7,
        by_alias=0.6,
        distractors=12,
        stale=0.5,
        part=400,
        noise=0.05,
    ),
}
