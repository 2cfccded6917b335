"""Two-player matrix games: both choose at once, a table says what each gets.

    You are player_0. Both players choose now, and neither sees the other's choice.
    Legal actions: heads, tails.

In brief: ``player_0``. The table of payoffs is in the rules:

    Matching pennies for two players. [...] What the choices of player_0 and player_1 pay them:
    heads and heads: 1 and -1
    heads and tails: -1 and 1
    [...]
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pyspiel

from marl_llm.errors import GameError, nearest
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import Interest, OutcomeTable, Scoring
from marl_llm.games.text_game import TextGame
from marl_llm.types import Outcome

OPEN = "Non-terminal"  # how OpenSpiel's string ends while the choice is to be made


class MatrixGame(OpenSpielGame):
    """Any of OpenSpiel's matrix games in which both players choose among the same actions."""

    def __init__(
        self,
        *,
        matrix: str = "matrix_mp",
        title: str = "Matching pennies",
        name: str = "matching_pennies",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        known = [each for each in pyspiel.registered_names() if each.startswith("matrix_")]
        if matrix not in known:
            raise GameError(f"OpenSpiel has no matrix game {matrix!r}; {nearest(matrix, known)}")
        spiel = pyspiel.load_matrix_game(matrix)
        rows = tuple(spiel.row_action_name(i).lower() for i in range(spiel.num_rows()))
        columns = tuple(spiel.col_action_name(i).lower() for i in range(spiel.num_cols()))
        if rows != columns:
            raise GameError(
                f"the players of {matrix} choose among different actions, {rows} and {columns}; a "
                "matrix game here has one list of actions for both"
            )
        self._title = title
        opposed = spiel.get_type().utility == pyspiel.GameType.Utility.ZERO_SUM
        interest: Interest = "opposed" if opposed else "mixed"
        super().__init__(
            spiel,
            name=name,
            actions=rows,
            scoring=Scoring(2, interest, "amount", _endings(spiel)),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )

    def rules(self) -> str:
        """The rules and the table of payoffs in words."""
        numbered = list(enumerate(self.actions))
        lines = [
            f"{a} and {b}: {_payoff(self._spiel, i, j)}"
            for (i, a), (j, b) in product(numbered, numbered)
        ]
        return (
            f"{self._title} for two players. Both choose one action at the same time, once, and "
            "neither sees the other's choice. What the choices of player_0 and player_1 pay them:\n"
            + "\n".join(lines)
            + f"\nActions: {', '.join(self.actions)}. All are always allowed."
        )

    def words(self, told: str, player: int) -> tuple[str, str]:
        """Who one is; after the end, nothing is left to decide."""
        seat = self.possible_agents[player]
        if not told.endswith(OPEN):
            return f"You are {seat}. Both players have chosen.", seat
        return (
            f"You are {seat}. Both players choose now, and neither sees the other's choice.",
            seat,
        )

    def numbers(self, agent: str) -> np.ndarray:
        """Who is asked, and whether it is over: OpenSpiel's tensor holds less."""
        return TextGame.numbers(self, agent)


def _endings(spiel: pyspiel.MatrixGame) -> dict[Outcome, tuple[float, ...]]:
    """Returns by outcome: a win is more than the other got, a draw as much."""
    found: dict[Outcome, set[float]] = {}
    for row, column in product(range(spiel.num_rows()), range(spiel.num_cols())):
        pair = [spiel.row_utility(row, column), spiel.col_utility(row, column)]
        for own, other in (pair, pair[::-1]):
            outcome = Outcome.DRAW if own == other else Outcome.WIN if own > other else Outcome.LOSS
            found.setdefault(outcome, set()).add(own)
    return {outcome: tuple(sorted(values)) for outcome, values in found.items()}


def _payoff(spiel: pyspiel.MatrixGame, row: int, column: int) -> str:
    return f"{spiel.row_utility(row, column):g} and {spiel.col_utility(row, column):g}"
