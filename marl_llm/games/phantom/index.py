"""Search over the pages of a world: SQLite's FTS5 with bm25, in memory, only ever read.

A query is any text. Its words are searched for as they stand, any of them; nothing in it is taken
for an operator.
"""

from __future__ import annotations

import random
import re
import sqlite3
import threading
from dataclasses import dataclass

from marl_llm.games.phantom.pages import Pages
from marl_llm.seeds import derive

WORDS = 24  # of a query, the others are left out
LETTERS = 40  # of a word
SNIPPET = 12  # words

_WORD = re.compile(r"[^\W_]+")
_SEARCH = (
    "SELECT rowid, snippet(pages, 1, '', '', '...', ?) FROM pages WHERE pages MATCH ? "
    "ORDER BY bm25(pages, 3.0, 1.0), rowid LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: the place of a page among all, and words of it around what was searched."""

    place: int
    snippet: str


class Index:
    """A full-text index of the pages, but for those that it misses."""

    def __init__(self, pages: Pages):
        """Index all pages of a world that its noise leaves in."""
        chance = random.Random(derive(pages.world.seed, "index"))
        noise = pages.world.level.noise
        rows = [
            (place, page.title, page.text())
            for place, page in enumerate(pages.all)
            if chance.random() >= noise
        ]
        self._lock = threading.Lock()  # games of several threads may share a library
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text)")
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO pages(rowid, title, text) VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")
        self._database.execute("PRAGMA query_only = ON")

    def search(self, query: str, results: int) -> list[Hit]:
        """The pages that fit best, best first; [] if the query holds no word."""
        words = [word[:LETTERS] for word in _WORD.findall(query)[:WORDS]]
        if not words:
            return []
        quoted = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            found = self._database.execute(_SEARCH, (SNIPPET, quoted, results)).fetchall()
        return [Hit(place, snippet) for place, snippet in found]
