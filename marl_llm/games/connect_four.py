"""Connect Four. A cell is a word, and an action is the number of a column.

    You are x. The board, top row first:
    1 2 3 4 5 6 7
    . . . . . . .
    . . . . . . .
    . . . . . . .
    . . . . . . .
    . . . o . . .
    . . o x x . .
    Legal actions: 1, 2, 3, 4, 5, 6, 7.

In brief, the columns that hold discs, each from the bottom up: ``3 o 4 x o 5 x``.
"""

from __future__ import annotations

from functools import lru_cache

import pyspiel

from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.types import Outcome

ACTIONS = tuple("1234567")
MARKS = ("x", "o")


class ConnectFour(OpenSpielGame):
    """Two players, seven columns, six rows. Equal boards have equal keys."""

    def __init__(
        self,
        *,
        name: str = "connect_four",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        endings = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,), Outcome.DRAW: (0.0,)}
        super().__init__(
            pyspiel.load_game("connect_four"),
            name=name,
            actions=ACTIONS,
            scoring=Scoring(2, "opposed", "result", endings),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )

    def rules(self) -> str:
        """The rules in words."""
        return (
            "Connect Four for two players. The board has seven columns, 1 to 7 from left to "
            "right, and six rows. player_0 plays x and moves first, player_1 plays o; they take "
            "turns, and each drops one disc into a column, where it falls to the lowest empty "
            "cell. Four discs of a player in a line, horizontal, vertical or diagonal, win. A "
            "full board without that is a draw.\n"
            f"Actions, named by the column: {', '.join(ACTIONS)}. A full column is not allowed."
        )

    def told(self, player: int) -> str:
        """The board: everybody sees it, and the order of past moves does not matter."""
        return self._state.observation_string(player)

    def words(self, told: str, player: int) -> tuple[str, str]:
        """The board as rows of cells; in brief, the discs of each column."""
        return _words(told, player)


@lru_cache(maxsize=16384)
def _words(board: str, player: int) -> tuple[str, str]:
    lines = board.split()
    rows = "\n".join(" ".join(line) for line in lines)
    text = f"You are {MARKS[player]}. The board, top row first:\n{' '.join(ACTIONS)}\n{rows}"
    stacks = (
        f"{column} {' '.join(cell for cell in reversed(cells) if cell != '.')}"
        for column, cells in zip(ACTIONS, zip(*lines, strict=True), strict=True)
        if cells[-1] != "."
    )
    return text, " ".join(stacks) or "empty"
