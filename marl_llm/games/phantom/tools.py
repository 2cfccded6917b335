"""What a searcher's tools give back: search, visit, find. Any text is a proper argument."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from marl_llm.games.faults import NOTHING, Fault, Kind, spoiled
from marl_llm.games.phantom.library import Library
from marl_llm.games.phantom.names import words_of
from marl_llm.games.phantom.pages import Page
from marl_llm.games.phantom.world import World
from marl_llm.seeds import generator

TOOLS = ("search", "visit", "find")

_PART = re.compile(r"\s*#\s*(\d{1,4})$")
_YEAR = re.compile(r"\b1[6-9]\d\d\b")


@dataclass(frozen=True, slots=True)
class Note:
    """What came of one use of a tool."""

    tool: str
    argument: str
    text: str
    brief: str
    place: int | None = None  # of the page that it shows, or searched for words
    sentences: frozenset[int] = frozenset()  # of that page, that it shows


def used(tool: str, argument: str, before: Sequence[Note], library: Library) -> Note:
    """Use a tool.

    Args:
        tool: one of `TOOLS`.
        argument: what it is given.
        before: what came of earlier uses in the same call.
        library: where to look.
    """
    if tool == "search":
        return _search(argument, library)
    if tool == "visit":
        return _visit(argument, library)
    return _find(argument, before, library)


def faulty(note: Note, fault: Fault | None, library: Library) -> Note:
    """A note after a content fault: nothing, half of it, or other names and years in it."""
    if fault is None:
        return note
    text, brief = spoiled(note.text, fault), spoiled(note.brief, fault)
    if fault.kind is Kind.WRONG:
        own = None if note.place is None else library.pages.titles[note.place][1]
        text = twisted(text, fault.seed, library.world, own)
        brief = twisted(brief, fault.seed, library.world, own)
    return replace(note, text=text or NOTHING, brief=brief or "?", sentences=frozenset())


def twisted(text: str, seed: int, world: World, own: int | None) -> str:
    """A text in which every year and every thing but one is another of its kind."""
    rng = generator(seed)
    for thing in dict.fromkeys(world.register.named(text)):
        if thing != own:
            kin = world.of_kind[world.things[thing].kind]
            other = world.things[kin[int(rng.integers(len(kin)))]].name
            for name in world.things[thing].names:
                text = text.replace(name, other)
    shift = int(rng.integers(1, 30))
    return _YEAR.sub(lambda year: str(int(year[0]) - shift), text)


def _search(query: str, library: Library) -> Note:
    hits = library.index.search(query, library.level.results)
    titles = [library.pages.titles[hit.place][0] for hit in hits]
    lines = [
        f"{number}. {title}: {hit.snippet}"
        for number, (title, hit) in enumerate(zip(titles, hits, strict=True), start=1)
    ]
    return Note("search", query, "\n".join(lines) or "No page found.", ", ".join(titles) or "?")


def _visit(argument: str, library: Library) -> Note:
    number = _PART.search(argument)
    part = 1 if number is None else int(number[1])
    title = argument if number is None else argument[: number.start()]
    places = library.pages.places(title)
    if len(places) > 1:
        titles = ", ".join(library.pages.titles[place][0] for place in places)
        return Note("visit", argument, f"There are several editions: {titles}.", titles)
    if not places:
        return Note("visit", argument, "There is no page of this title.", "?")
    page = library.pages.page(places[0])
    if not 1 <= part <= len(page.parts):
        return Note("visit", argument, f"This page has {len(page.parts)} parts.", "?")
    text = page.part(part)
    head = page.title if len(page.parts) == 1 else f"{page.title}, part {part} of {len(page.parts)}"
    shown = frozenset(range(*page.parts[part - 1]))
    return Note("visit", argument, f"{head}: {text}", text, places[0], shown)


def _find(word: str, before: Sequence[Note], library: Library) -> Note:
    place = next((note.place for note in reversed(before) if note.place is not None), None)
    if place is None:
        return Note("find", word, "No page has been visited yet.", "?")
    page = library.pages.page(place)
    shown = _lines(page, words_of(word), library.level.part)
    lines = " ".join(page.sentences[at] for at in shown)
    text = f"{page.title}: {lines}" if lines else f"{page.title} has no line with this."
    return Note("find", word, text, lines or "?", place, frozenset(shown))


def _lines(page: Page, wanted: Sequence[str], most: int) -> list[int]:
    """The sentences that hold all words, as many as one visit shows."""
    shown: list[int] = []
    size = 0
    for at, sentence in enumerate(page.sentences):
        if wanted and set(wanted) <= set(words_of(sentence)):
            size += len(sentence) + 1
            if shown and size > most:
                break
            shown.append(at)
    return shown
