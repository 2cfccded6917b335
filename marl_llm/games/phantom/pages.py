"""Pages: what the world's things look like in words.

Each thing has a page that holds; some also have an older edition, which contradicts it here and
there. Where there are editions every page says its year, and of two the newer one holds. A page
says each fact of its thing in one of several ways, lists what has the thing as its value, and mixes
in sentences about which nothing is ever asked. Things are called by any of their names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from marl_llm.games.phantom.names import normalised
from marl_llm.games.phantom.relations import DISTRACTORS, YEAR, Relation
from marl_llm.games.phantom.world import YEARS, World
from marl_llm.seeds import derive

TOGETHER = 4  # names in one sentence of a list

About = tuple[str, bool]  # a relation, and whether the sentence lists its subjects


@dataclass(frozen=True, slots=True)
class Page:
    """A title, its sentences, and which of them say what."""

    title: str
    thing: int
    edition: int | None
    sentences: tuple[str, ...]
    says: tuple[About | None, ...]  # what each sentence is about; None = nothing one asks for
    parts: tuple[tuple[int, int], ...]  # (first, behind the last) sentence of each part

    def part(self, number: int) -> str:
        """The text of a part, counted from 1."""
        first, end = self.parts[number - 1]
        return " ".join(self.sentences[first:end])

    def text(self) -> str:
        """All of it."""
        return " ".join(self.sentences)


class Pages:
    """The pages of a world, each written when it is first looked at."""

    def __init__(self, world: World):
        """All pages of a world."""
        self.world = world
        self.titles: list[tuple[str, int, bool]] = []  # (title, thing, old)
        self._places: dict[str, list[int]] = {}  # normalised title or name -> of which pages
        self._written: dict[int, Page] = {}
        for number, thing in enumerate(world.things):
            years = (
                [world.edition[number], world.former[number][0]] if number in world.former else []
            )
            first = len(self.titles)
            if years:
                self.titles += [
                    (f"{thing.name} ({year})", number, bool(old)) for old, year in enumerate(years)
                ]
            else:
                self.titles.append((thing.name, number, False))
            places = list(range(first, len(self.titles)))
            for name in thing.names:
                self._places[normalised(name)] = places
            for place in places:
                self._places.setdefault(normalised(self.titles[place][0]), [place])

    def places(self, title: str) -> list[int]:
        """The pages that a title or a thing's name stands for; several if it has old editions."""
        return self._places.get(normalised(title), [])

    def page(self, place: int) -> Page:
        """A page."""
        if place not in self._written:
            self._written[place] = self._write(place)
        return self._written[place]

    def newest(self, thing: int) -> Page:
        """The page of a thing that holds."""
        return self.page(self._places[normalised(self.world.things[thing].name)][0])

    @cached_property
    def all(self) -> list[Page]:
        """Every page."""
        return [self.page(place) for place in range(len(self.titles))]

    def _write(self, place: int) -> Page:
        title, thing, old = self.titles[place]
        world, level = self.world, self.world.level
        chance = random.Random(derive(world.seed, "page", place))
        said = list(self._said(thing, old, chance))
        chance.shuffle(said)
        edition = None
        if not level.terse:
            said.insert(0, (self._opening(thing), None))
        if world.edition:
            edition = world.former[thing][0] if old else world.edition[thing]
            said.insert(0, (f"Edition of {edition}.", None))
        if not said:
            said.append((f"{world.things[thing].kind}.", None))
        sentences = tuple(sentence for sentence, _ in said)
        about = tuple(about for _, about in said)
        return Page(title, thing, edition, sentences, about, _parts(sentences, level.part))

    def _opening(self, number: int) -> str:
        thing = self.world.things[number]
        also = f", also known as {thing.alias}" if thing.alias else ""
        return f"{thing.name} is a {thing.kind}{also}."

    def _said(
        self, thing: int, old: bool, chance: random.Random
    ) -> Iterator[tuple[str, About | None]]:
        """Sentences of a page and what they are about, not yet in their order."""
        world, kind = self.world, self.world.things[thing].kind
        for relation in world.relations:
            if relation.of == kind:
                former = world.former[thing][1] if old else {}
                for sentence in self._facts(thing, relation, former, chance):
                    yield sentence, (relation.name, False)
            if relation.to == kind and relation.lists and not old and not world.level.terse:
                for sentence in self._lists(thing, relation, chance):
                    yield sentence, (relation.name, True)
        for _ in range(world.level.distractors):
            yield self._distractor(thing, chance), None

    def _facts(
        self, thing: int, relation: Relation, former: dict[str, int], chance: random.Random
    ) -> Iterator[str]:
        for fact in self.world.about[thing, relation.name]:
            value = former.get(relation.name, fact.value)
            shown = str(value) if relation.to == YEAR else self._called(value, chance)
            if self.world.level.terse:
                yield f"{relation.name} {shown}."
            else:
                yield chance.choice(relation.says).format(
                    s=self._called(thing, chance), v=shown, start=fact.start, end=fact.end
                )

    def _lists(self, thing: int, relation: Relation, chance: random.Random) -> Iterator[str]:
        subjects = [fact.subject for fact in self.world.to.get((relation.name, thing), ())]
        chance.shuffle(subjects)
        for first in range(0, len(subjects), TOGETHER):
            called = [self._called(each, chance) for each in subjects[first : first + TOGETHER]]
            yield chance.choice(relation.lists).format(
                v=self._called(thing, chance), list=", ".join(called)
            )

    def _distractor(self, thing: int, chance: random.Random) -> str:
        while True:
            sentence, kind = chance.choice(DISTRACTORS[self.world.things[thing].kind])
            if kind == YEAR:
                shown = str(chance.randint(*YEARS))
                break
            others = self.world.of_kind[kind]
            if others and (other := chance.choice(others)) != thing:
                shown = self._called(other, chance)
                break
        return sentence.format(s=self._called(thing, chance), v=shown)

    def _called(self, number: int, chance: random.Random) -> str:
        thing = self.world.things[number]
        if thing.alias is not None and chance.random() < self.world.level.by_alias:
            return thing.alias
        return thing.name


def _parts(sentences: Sequence[str], most: int) -> tuple[tuple[int, int], ...]:
    """Where parts of at most so many characters begin and end; a longer sentence stands alone."""
    parts, first, size = [], 0, 0
    for at, sentence in enumerate(sentences):
        if at > first and size + len(sentence) > most:
            parts.append((first, at))
            first, size = at, 0
        size += len(sentence) + 1
    return (*parts, (first, len(sentences)))
