"""Search, visit, find: what they give, and that no text does them any harm."""

from __future__ import annotations

import pickle
import sqlite3

import pytest

from marl_llm.games.faults import NOTHING, Fault, Kind
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.games.phantom.library import Library, library_of
from marl_llm.games.phantom.tools import faulty, used

HOSTILE = (
    "", " ", "\x00", "a\x00b", "\ud800", "'; DROP TABLE pages; --", '"', '"" OR ""', "NEAR(a b, 2)",
    "title : x", "text: *", "a AND", "NOT b", "(", "^a + b", "a*", "{title} : b", "-a", "%", "_",
    "🂡", "²", "ǅ", "e\u0301", "a" * 100_000, "a " * 50_000, "'\"`;()*:^-+{}[]" * 100,
)  # fmt: skip


@pytest.fixture(scope="module")
def library():
    return Library(LEVELS[3], 1)


def rows(library):
    return library.index._database.execute("SELECT rowid, title, text FROM pages").fetchall()


def test_no_query_raises_or_changes_the_database(library):
    before = rows(library)
    for query in HOSTILE:
        for tool in ("search", "visit", "find"):
            assert used(tool, query, (), library).text
        assert library.index.search(query, 5) == library.index.search(query, 5)
    assert rows(library) == before
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        library.index._database.execute("DELETE FROM pages")


def test_operators_are_words(library):
    title = library.world.things[0].name
    places = {hit.place for hit in library.index.search(f'"{title}" AND NOT (zzz*)', 50)}
    assert library.pages.places(title)[0] in places


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_title_finds_its_page_by_any_name(number):
    library = Library(LEVELS[number], 3)
    for thing in library.world.things[:30]:
        for name in thing.names:
            found = {hit.place for hit in library.index.search(name, 5)}
            assert found & set(library.pages.places(name)), name


def test_an_index_with_noise_misses_pages_that_can_be_visited():
    level = LEVELS[2].changed({"noise": 0.5})
    library = Library(level, 0)
    indexed = {place for place, *_ in rows(library)}
    assert 5 < len(indexed) < len(library.pages.titles) - 5
    assert indexed == {place for place, *_ in rows(Library(level, 0))}
    for title, *_ in library.pages.titles:
        assert used("visit", title, (), library).place is not None


def test_visits_show_parts_editions_and_what_is_missing(library):
    pages = library.pages
    page = next(page for page in pages.all if len(page.parts) > 1 and "(" not in page.title)
    first = used("visit", page.title, (), library)
    assert first.text.startswith(f"{page.title}, part 1 of {len(page.parts)}: Edition of")
    second = used("visit", f"{page.title.upper()} # 2", (), library)
    assert second.text.endswith(page.part(2))
    assert second.sentences == frozenset(range(*page.parts[1]))
    assert "parts" in used("visit", f"{page.title} #9", (), library).text
    assert used("visit", "Nowhere", (), library).text == "There is no page of this title."
    thing = next(iter(library.world.former))
    name = library.world.things[thing].name
    both = used("visit", name, (), library)
    assert both.place is None
    for place in pages.places(name):
        assert pages.titles[place][0] in both.text
        assert used("visit", pages.titles[place][0], (), library).place == place


def test_find_gives_lines_of_the_page_visited_last(library):
    page = library.pages.newest(0)
    assert used("find", "born", (), library).text == "No page has been visited yet."
    visits = [used("visit", page.title, (), library)]
    found = used("find", "born", visits, library)
    assert used("find", "BORN", visits, library).text == found.text
    lines = [line for line in page.sentences if "born" in line.lower().split()]
    assert found.text == (
        f"{page.title}: {' '.join(lines)}" if lines else f"{page.title} has no line with this."
    )
    search = used("search", "born", visits, library)
    assert used("find", "born", [*visits, search], library) == found
    assert used("find", "zzz", visits, library).text == f"{page.title} has no line with this."


def test_content_faults_change_what_comes_back(library):
    page = library.pages.newest(0)
    note = used("visit", page.title, (), library)
    assert faulty(note, None, library) is note
    assert faulty(note, Fault(Kind.EMPTY, 1), library).text == NOTHING
    cut = faulty(note, Fault(Kind.TRUNCATED, 1), library).text
    assert note.text.startswith(cut)
    assert 0 < len(cut) < len(note.text)
    wrong = faulty(note, Fault(Kind.WRONG, 1), library)
    assert wrong == faulty(note, Fault(Kind.WRONG, 1), library)
    assert wrong.text.startswith(page.title)
    before = set(library.world.register.named(note.text))
    after = set(library.world.register.named(wrong.text))
    assert after - before
    assert faulty(note, Fault(Kind.WRONG, 2), library).text != wrong.text
    for kind in (Kind.EMPTY, Kind.TRUNCATED, Kind.WRONG):
        assert faulty(note, Fault(kind, 1), library).sentences == frozenset()


def test_a_library_pickles_as_its_seed():
    library = library_of(LEVELS[4], 3)
    library.index.search("a", 1)
    data = pickle.dumps(library)
    assert len(data) < 2_000
    assert pickle.loads(data).question == library.question
