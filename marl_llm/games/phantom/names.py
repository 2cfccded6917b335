"""Names: made of unlikely syllables, how they are compared, and which of them a text names."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator

# What a terse world draws from, so that a small vocabulary of tokens learns them all.
FEW = {
    "person": ("Vexu", "Zolqi", "Jarxu", "Quvo", "Xemqo", "Wyzo", "Yarqu", "Ovji"),
    "place": ("Zuvek", "Qorxa", "Jivqu", "Wexol", "Xolzu", "Yugzi"),
    "firm": ("Voqex", "Zixoq", "Jubqo", "Uxwen", "Qaxim"),
}

_SYLLABLES = (
    "zor", "vex", "qui", "jat", "xel", "uvu", "zhi", "wyz", "orq", "yth", "qua",
    "vru", "jex", "zil", "oxa", "wux", "xan", "qir", "zev", "jov", "ulq", "yxi",
    "vaz", "qoz", "wez", "juq", "xor", "zub", "iqa", "vyx", "zeg", "oji",
)  # fmt: skip
_FIRMS = ("Group", "Guild", "Press", "Foundry", "Mills", "Trust")
_WORKS = ("Glass", "Silent", "Seventh", "Salt", "Paper", "Northern", "Hollow", "Crimson")
_ARTICLES = frozenset({"a", "an", "the"})
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_NUMBERS = {word: str(number) for number, word in enumerate(_SMALL)}
_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared: no case, no articles, no punctuation."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return [word for word in _WORD.findall(plain) if word not in _ARTICLES]


def normalised(text: str) -> str:
    """A text as answers are compared: `words_of`, small numbers as digits, one space between."""
    return " ".join(_NUMBERS.get(word, word) for word in words_of(text))


def numbers_of(words: Iterable[str]) -> set[int]:
    """The numbers among words, in digits or up to twelve in letters; none over four digits.

    The word "one" is none of them, since it mostly stands for something else.
    """
    found = [_NUMBERS.get(word, word) for word in words if word != "one"]
    return {int(word) for word in found if word.isascii() and word.isdigit() and len(word) <= 4}


def new_words(chance: random.Random) -> Iterator[str]:
    """Made-up words without end, capitalised, all different."""
    made: set[str] = set()
    while True:
        count = 2 if len(made) < 200 else 3
        word = "".join(chance.choice(_SYLLABLES) for _ in range(count)).capitalize()
        if word not in made:
            made.add(word)
            yield word


def people_names(count: int, new: Iterator[str], chance: random.Random) -> list[str]:
    """First names, all different, and last names, which are shared: search finds the kin too."""
    first = [next(new) for _ in range(count)]
    last = [next(new) for _ in range((count + 2) // 3)]
    return [f"{name} {chance.choice(last)}" for name in first]


def firm_name(new: Iterator[str], chance: random.Random) -> str:
    """A word and what firms are called."""
    return f"{next(new)} {chance.choice(_FIRMS)}"


def work_name(new: Iterator[str], chance: random.Random) -> str:
    """A title with an article, which need not be repeated in an answer."""
    return f"The {chance.choice(_WORKS)} {next(new)}"


class Register:
    """Which things a text names, by any of their names."""

    def __init__(self, names: Iterable[tuple[str, int]]):
        """All names with the thing that each stands for."""
        self._by_first: dict[str, list[tuple[list[str], int]]] = {}
        for name, thing in names:
            words = words_of(name)
            self._by_first.setdefault(words[0], []).append((words, thing))
        for same in self._by_first.values():
            same.sort(key=lambda entry: -len(entry[0]))  # the longest name that fits is meant

    def named(self, text: str) -> list[int]:
        """The things that a text names, in order, each as often as it is named."""
        words, at, found = words_of(text), 0, []
        while at < len(words):
            for name, thing in self._by_first.get(words[at], ()):
                if words[at : at + len(name)] == name:
                    found.append(thing)
                    at += len(name)
                    break
            else:
                at += 1
        return found
