"""Tic-tac-toe. A cell is a word, and an action is the name of a cell.

    You are x. The board:
      a b c
    1 x . o
    2 . x .
    3 . . o
    Legal actions: b1, a2, c2, a3, b3.

In brief: ``x b1 o a2 x c2 a3 b3 o``, the cells in reading order, a free one by its name: what can
be played is what is named.
"""

from __future__ import annotations

from functools import lru_cache

import pyspiel

from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.types import Outcome

ACTIONS = tuple(f"{column}{row}" for row in "123" for column in "abc")
MARKS = ("x", "o")


class TicTacToe(OpenSpielGame):
    """Two players, three in a row. Equal boards have equal keys, however they came about."""

    def __init__(
        self,
        *,
        name: str = "tictactoe",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        endings = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,), Outcome.DRAW: (0.0,)}
        super().__init__(
            pyspiel.load_game("tic_tac_toe"),
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
            "Tic-tac-toe for two players. The board has three columns a, b, c and three rows 1, "
            "2, 3; cell b1 is the middle of the top row. player_0 plays x and moves first, "
            "player_1 plays o; they take turns, and each puts its mark into one empty cell. Three "
            "marks of a player in a row, a column or a diagonal win. A full board without that is "
            "a draw.\n"
            f"Actions, named by the cell: {', '.join(ACTIONS)}. A cell that is taken is not "
            "allowed."
        )

    def told(self, player: int) -> str:
        """The board: everybody sees it, and the order of past moves does not matter."""
        return self._state.observation_string(player)

    def words(self, told: str, player: int) -> tuple[str, str]:
        """The board as rows of cells; in brief, the nine cells, free ones by name."""
        return _words(told, player)


@lru_cache(maxsize=16384)  # 5,478 boards can be reached
def _words(board: str, player: int) -> tuple[str, str]:
    rows = [" ".join(line) for line in board.split()]
    grid = "\n".join(f"{number} {row}" for number, row in enumerate(rows, start=1))
    marks = "".join(board.split())
    cells = (name if mark == "." else mark for name, mark in zip(ACTIONS, marks, strict=True))
    return f"You are {MARKS[player]}. The board:\n  a b c\n{grid}", " ".join(cells)
