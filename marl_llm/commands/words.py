"""The words behind a command: `key=value`, `--flag` and plain names, checked as they are read.

A key may also be written as an option, ``--key value`` or ``--key=value``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_llm.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Words:
    """What a user wrote behind a command."""

    command: str
    values: Mapping[str, str]
    flags: frozenset[str]
    names: tuple[str, ...]

    def number(self, key: str, default: int, least: int = 0) -> int:
        """A whole number of at least `least`.

        Raises:
            ConfigError: the value is something else.
        """
        text = self.values.get(key, str(default))
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigError(
                f"{self.command}: {key} must be a whole number of at least {least}, got {text!r}"
            )
        return value

    def listed(self, key: str) -> tuple[str, ...]:
        """The parts of a value between commas; () when it was not given."""
        return tuple(part for part in self.values.get(key, "").split(",") if part)


def read(
    words: Sequence[str],
    command: str,
    *,
    keys: Sequence[str] = (),
    flags: Sequence[str] = (),
    names: bool = False,
) -> Words:
    """Sort a command's words.

    Args:
        words: as typed.
        command: as errors should call it.
        keys: of `key=value` or `--key value` that the command takes.
        flags: of `--flag`, without the dashes; one that is a key too takes its value after "=".
        names: plain words are welcome.

    Raises:
        ConfigError: a word that the command does not take, or a key given twice.
    """
    values: dict[str, str] = {}
    plain: list[str] = []
    given: set[str] = set()
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("--"):
            if word[2:] in flags:
                given.add(word[2:])
                continue
            word = _option(word, waiting, command, [*flags, *keys], keys)
        key, equals, value = word.partition("=")
        if equals and not (names and not key.isidentifier()):  # a path may hold a "="
            if key not in keys:
                raise ConfigError(_unknown(command, "key", key, keys))
            if key in values:
                raise ConfigError(f"{command}: {key} is given twice")
            values[key] = value
        elif names:
            plain.append(word)
        elif keys:
            raise ConfigError(f"{command}: expected key=value, got {word!r}; keys: {_all(keys)}")
        else:
            raise ConfigError(_unknown(command, "word", word, []))
    return Words(command, values, frozenset(given), tuple(plain))


def _option(
    word: str, waiting: list[str], command: str, known: Sequence[str], keys: Sequence[str]
) -> str:
    """``--key=value``, or ``--key`` and the next word, as ``key=value``."""
    key, equals, _ = word[2:].partition("=")
    if key not in keys:
        raise ConfigError(_unknown(command, "option", word, [f"--{name}" for name in known]))
    if equals:
        return word[2:]
    if not waiting:
        raise ConfigError(f"{command}: {word} needs a value, as in {word} VALUE")
    return f"{key}={waiting.pop(0)}"


def _unknown(command: str, what: str, word: str, known: Sequence[str]) -> str:
    return f"{command}: unknown {what} {word!r}; " + (
        nearest(word, known) if known else "it takes none"
    )


def _all(keys: Sequence[str]) -> str:
    return ", ".join(keys)
