"""A library: a world, its question, its pages and the index over them, kept for a while.

The episodes of a group share their seed and so their library; the last few are kept in the process.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from marl_llm.games.phantom.grammar import question_of
from marl_llm.games.phantom.index import Index
from marl_llm.games.phantom.levels import Level
from marl_llm.games.phantom.pages import Pages
from marl_llm.games.phantom.world import World

KEPT = 32


class Library:
    """What a level and a seed make. Nothing in it ever changes; the index is made when needed."""

    def __init__(self, level: Level, seed: int):
        """The library of a level and a seed."""
        self.level, self.seed = level, seed
        self.world = World(level, seed)
        self.question = question_of(self.world)
        self.pages = Pages(self.world)

    def __reduce__(self) -> tuple[object, ...]:
        """A library is pickled as what it is made from."""
        return library_of, (self.level, self.seed)

    @cached_property
    def index(self) -> Index:
        """The full-text index."""
        return Index(self.pages)


@lru_cache(maxsize=KEPT)
def library_of(level: Level, seed: int) -> Library:
    """The library of a level and a seed."""
    return Library(level, seed)
