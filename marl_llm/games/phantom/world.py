"""Worlds: typed things, facts that hold, and facts that held once, all from a level and a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from marl_llm.games.phantom import names
from marl_llm.games.phantom.levels import Level
from marl_llm.games.phantom.relations import KINDS, RELATIONS, YEAR, Relation

YEARS = (1700, 1989)  # of all events; editions are later, so that no one is taken for the other
EDITIONS = (2012, 2024)  # of the pages that hold
OLDER = (3, 12)  # years that an old edition is older
TERMS = 3  # of office, one after the other


@dataclass(frozen=True, slots=True)
class Thing:
    """Something with a name."""

    name: str
    kind: str
    alias: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, the page's title first."""
        return (self.name,) if self.alias is None else (self.name, self.alias)


@dataclass(frozen=True, slots=True)
class Fact:
    """What holds between a subject and a value: a thing, by its number, or a year."""

    subject: int
    relation: str
    value: int
    start: int = 0  # of a term of office
    end: int = 0


class World:
    """Things are numbered from 0; `about` and `to` find the facts from either end."""

    def __init__(self, level: Level, seed: int):
        """The world of a level and a seed."""
        self.level, self.seed = level, seed
        self.relations = tuple(each for each in RELATIONS if _in_play(each, level))
        chance = random.Random(seed)
        self.things = tuple(_things(level, chance))
        self.of_kind = {
            kind: [n for n, thing in enumerate(self.things) if thing.kind == kind] for kind in KINDS
        }
        self.about: dict[tuple[int, str], tuple[Fact, ...]] = {}
        self.to: dict[tuple[str, int], list[Fact]] = {}
        for relation in self.relations:
            for fact in self._facts(relation, chance):
                key = (fact.subject, relation.name)
                self.about[key] = (*self.about.get(key, ()), fact)
                self.to.setdefault((relation.name, fact.value), []).append(fact)
        self.edition = [chance.randint(*EDITIONS) for _ in self.things] if level.stale else []
        self.former = dict(self._former(chance))

    @cached_property
    def register(self) -> names.Register:
        """Who is meant by which name."""
        return names.Register(
            (name, number) for number, thing in enumerate(self.things) for name in thing.names
        )

    def facts(self) -> Iterator[Fact]:
        """All that holds."""
        for some in self.about.values():
            yield from some

    def _facts(self, relation: Relation, chance: random.Random) -> Iterator[Fact]:
        """One fact for each subject, of an office one for each term."""
        subjects = self.of_kind[relation.of]
        if relation.office:
            yield from self._terms(relation, subjects, chance)
            return
        if relation.to == YEAR:
            values = [chance.randint(*YEARS) for _ in subjects]
        elif relation.single:
            values = chance.sample(self.of_kind[relation.to], len(subjects))
        else:
            all_values = self.of_kind[relation.to]
            size = min(len(all_values), max(2, round(len(subjects) / self.level.branching)))
            pool = chance.sample(all_values, size)
            values = [_other(chance, pool, subject) for subject in subjects]
        for subject, value in zip(subjects, values, strict=True):
            yield Fact(subject, relation.name, value)

    def _terms(
        self, relation: Relation, subjects: Sequence[int], chance: random.Random
    ) -> Iterator[Fact]:
        for subject in subjects:
            years = [chance.randint(1850, 1900)]
            years += [years[0] + 20 * n + chance.randint(0, 15) for n in range(1, TERMS + 1)]
            holders = chance.sample(self.of_kind[relation.to], TERMS)
            for holder, start, end in zip(holders, years[:-1], years[1:], strict=True):
                yield Fact(subject, relation.name, holder, start, end)

    def _former(self, chance: random.Random) -> Iterator[tuple[int, tuple[int, dict[str, int]]]]:
        """What old editions say: thing -> (its year, relation -> the value that held then)."""
        if not self.level.stale:
            return
        for number, thing in enumerate(self.things):
            if chance.random() >= self.level.stale:
                continue
            held: dict[str, int] = {}
            for relation in self.relations:
                if relation.of == thing.kind and not relation.office and chance.random() < 0.6:
                    (fact,) = self.about[number, relation.name]
                    if relation.to == YEAR:
                        held[relation.name] = fact.value + chance.choice((-9, -4, -2, 3, 5, 8))
                    else:
                        pool = [n for n in self.of_kind[relation.to] if n != fact.value]
                        held[relation.name] = _other(chance, pool, number)
            if held:
                yield number, (self.edition[number] - chance.randint(*OLDER), held)


def _in_play(relation: Relation, level: Level) -> bool:
    if level.terse:
        return relation.to != YEAR and not relation.office
    return True


def _things(level: Level, chance: random.Random) -> Iterator[Thing]:
    counts = {
        "person": level.people,
        "place": level.places,
        "firm": level.firms,
        "work": level.works,
    }
    if level.terse and all(count <= len(names.FEW.get(k, ())) for k, count in counts.items()):
        for kind, count in counts.items():
            for name in chance.sample(names.FEW.get(kind, ()), count):
                yield Thing(name, kind)
        return
    new = names.new_words(chance)
    made = {
        "person": names.people_names(level.people, new, chance),
        "place": [next(new) for _ in range(level.places)],
        "firm": [names.firm_name(new, chance) for _ in range(level.firms)],
        "work": [names.work_name(new, chance) for _ in range(level.works)],
    }
    for kind, some in made.items():
        for name in some:
            yield Thing(name, kind, next(new) if chance.random() < level.aliases else None)


def _other(chance: random.Random, pool: Sequence[int], subject: int) -> int:
    """Any of a pool of at least two, but not the subject itself."""
    while (found := chance.choice(pool)) == subject:
        pass
    return found
