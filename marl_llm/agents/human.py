"""A person at the terminal."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from marl_llm.agents.spiel import ListedGame
from marl_llm.errors import MarlError


@dataclass(frozen=True, slots=True)
class Human:
    """Shows what the agent knows and asks for an action until a legal one is typed.

    Case and spacing of what is typed do not matter as long as one legal action only is meant; its
    number in the list will do as well. Where actions are free text, only spacing does not matter.
    """

    # One that was closed before the program began is None; it ends at once.
    source: TextIO = field(default_factory=lambda: sys.stdin or io.StringIO())
    sink: TextIO = field(default_factory=lambda: sys.stdout)
    name: str = "human"

    def act(self, game: ListedGame, agent: str, rng: np.random.Generator) -> str:
        """The legal action that the person names.

        Raises:
            MarlError: the input ended.
        """
        legal = game.legal(agent)
        print(f"\n{agent}:\n{game.observation(agent).text}", file=self.sink)
        while True:
            print(f"{agent}> ", end="", file=self.sink, flush=True)
            line = self.source.readline()
            if not line:
                raise MarlError(
                    f"the input ended before {agent} of {game.name} had moved; type an action and "
                    "Enter, or leave with Ctrl-C"
                )
            action = chosen(line, legal) if legal else " ".join(line.split())
            if action is not None and (legal or game.accepts(agent, action)):
                return action
            if not legal:
                print("Not an action here.", file=self.sink)
                continue
            choices = "\n".join(f"  {i}  {name}" for i, name in enumerate(legal, start=1))
            print(f"Not an action here. Choose one of\n{choices}", file=self.sink)


def chosen(line: str, legal: tuple[str, ...]) -> str | None:
    """The legal action that a typed line means, None if there is no such action.

    Its exact name, else its name but for case and spaces if only one fits, else its number from 1.
    """
    typed = line.strip()
    if typed in legal:
        return typed
    alike = [action for action in legal if _folded(action) == _folded(typed)]
    if len(alike) == 1:
        return alike[0]
    if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(legal):
        return legal[int(typed) - 1]
    return None


def _folded(text: str) -> str:
    return "".join(text.split()).casefold()
