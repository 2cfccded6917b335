"""A reader who knows nothing but words: facts from the text of pages, answers from those facts.

Written apart from the code under test, with regular expressions and sets only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import pytest

from marl_llm.games.phantom.relations import PLURALS, RELATIONS, YEAR_OF

YEAR = re.compile(r"\d{4}")


class Reader:
    """What the newest pages of a world say, as (subject, relation, value, start, end)."""

    def __init__(self, pages):
        self.who = {name: n for n, t in enumerate(pages.world.things) for name in t.names}
        self.kind = {n: t.kind for n, t in enumerate(pages.world.things)}
        self.terse = pages.world.level.terse
        newest = {}
        for page in pages.all:
            if page.thing not in newest or page.edition > newest[page.thing].edition:
                newest[page.thing] = page
        self.facts = {fact for page in newest.values() for fact in self._facts(page)}

    def _facts(self, page) -> Iterator[tuple]:
        for sentence in page.sentences:
            for relation in RELATIONS:
                if self.terse:
                    if found := re.fullmatch(f"{relation.name} (.*)\\.", sentence):
                        yield (page.thing, relation.name, self.who[found[1]], 0, 0)
                    continue
                for template in relation.says:
                    yield from self._fact(relation, template, sentence)
                for template in relation.lists:
                    yield from self._list(relation, template, sentence)

    def _fact(self, relation, template, sentence):
        found = pattern(template).fullmatch(sentence)
        if found is None or found["s"] not in self.who:
            return
        value = int(found["v"]) if YEAR.fullmatch(found["v"]) else self.who.get(found["v"])
        subject = self.who[found["s"]]
        if value is None or self.kind[subject] != relation.of:
            return
        if (relation.to == "year") != bool(YEAR.fullmatch(found["v"])):
            return
        if relation.to != "year" and self.kind[value] != relation.to:
            return
        terms = found.groupdict()
        yield (subject, relation.name, value, int(terms.get("start", 0)), int(terms.get("end", 0)))

    def _list(self, relation, template, sentence):
        found = pattern(template).fullmatch(sentence)
        if found is None or found["v"] not in self.who:
            return
        value, names = self.who[found["v"]], found["list"].split(", ")
        if self.kind[value] == relation.to and all(name in self.who for name in names):
            for name in names:
                if self.kind[self.who[name]] == relation.of:
                    yield (self.who[name], relation.name, value, 0, 0)

    def meanings(self, text: str) -> set[frozenset]:
        """All that a noun phrase can stand for, by any way of reading it; empty sets left out."""
        return {found for found in self._meanings(text) if found}

    def _meanings(self, text):
        if text in self.who:
            yield frozenset({self.who[text]})
        if YEAR.fullmatch(text):
            yield frozenset({int(text)})
        if not text.startswith("the "):
            return
        rest = text.removeprefix("the ")
        for relation in RELATIONS:
            for noun in relation.nouns:
                yield from self._values(relation, noun, rest)
        for kind, plural in PLURALS.items():
            for head in (kind, plural):
                if rest.startswith(f"{head} "):
                    yield from self._sets(kind, rest.removeprefix(f"{head} "))
        if rest.startswith("number of "):
            yield from (frozenset({len(s)}) for s in self.meanings("the " + rest[10:]))
        for relation in set(YEAR_OF.values()):
            for which, best in (("earliest", min), ("latest", max)):
                head = f"one with the {which} {relation} "
                if rest.startswith(head):
                    yield from self._picks(relation, best, rest.removeprefix(head))

    def _values(self, relation, noun, rest):
        for found in all_matches(noun, rest):
            years = self.meanings(found["year"]) if "year" in found else {frozenset({None})}
            for subjects in self.meanings(found["s"]):
                for when in years:
                    yield frozenset(
                        value
                        for subject, name, value, start, end in self.facts
                        if name == relation.name
                        and subject in subjects
                        and (when == {None} or any(start <= year <= end for year in when))
                    )

    def _sets(self, kind, rest):
        yield from self._one_set(kind, rest)
        for at in positions(rest, " and "):
            for left in self._one_set(kind, rest[:at]):
                for right in self._one_set(kind, rest[at + 5 :]):
                    yield left & right

    def _one_set(self, kind, rest):
        for relation in RELATIONS:
            if relation.of == kind and relation.group:
                for found in all_matches(relation.group, rest):
                    for values in self.meanings(found["v"]):
                        yield frozenset(
                            subject
                            for subject, name, value, *_ in self.facts
                            if name == relation.name and value in values
                        )

    def _picks(self, relation, best, rest):
        groups = []
        if rest.startswith("among "):
            groups += self.meanings(rest.removeprefix("among "))
        if rest.startswith("of "):
            pair = rest.removeprefix("of ")
            for at in positions(pair, " and "):
                for left in self.meanings(pair[:at]):
                    groups += [left | right for right in self.meanings(pair[at + 5 :])]
        for group in groups:
            years = {s: v for s, name, v, *_ in self.facts if name == relation and s in group}
            if years:
                top = best(years.values())
                yield frozenset(s for s, year in years.items() if year == top)

    def chain(self, words: str) -> frozenset:
        """What key words stand for: relations, outermost first, and a name."""
        *relations, name = words.split()
        values = frozenset({self.who[name]})
        for relation in reversed(relations):
            values = frozenset(v for s, r, v, *_ in self.facts if r == relation and s in values)
        return values


@lru_cache
def pattern(template: str) -> re.Pattern:
    """A template as a regular expression with groups."""
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+?)", escaped))


def all_matches(template: str, text: str) -> list[dict]:
    """All ways to fill a template of one or two places, so that it is the text."""
    first, *others = re.split(r"\{\w+\}", template)
    names = re.findall(r"\{(\w+)\}", template)
    if len(names) == 1:
        end = others[0]
        if text.startswith(first) and text.endswith(end) and len(text) > len(first) + len(end):
            return [{names[0]: text[len(first) : len(text) - len(end)]}]
        return []
    middle, end = others
    assert not end, template
    if not text.startswith(first):
        return []
    body = text.removeprefix(first)
    return [
        {names[0]: body[:at], names[1]: body[at + len(middle) :]} for at in positions(body, middle)
    ]


def positions(text: str, part: str) -> list[int]:
    """Where a part begins in a text, everywhere."""
    return [found.start() for found in re.finditer(f"(?={re.escape(part)})", text)]


@pytest.fixture(scope="session")
def read():
    """Makes a reader of a world's pages."""
    return Reader
