"""Liar's dice for two players: hidden dice, rising bids, one challenge.

    Your dice: 4. Bids so far: you 1x4, opponent 1x5.
    Legal actions: 1x6, 2x1, 2x2, 2x3, 2x4, 2x5, 2x6, liar.

In brief: ``4 1x4 1x5``. A bid "2x5" claims that at least two of all dice show a five.
"""

from __future__ import annotations

from functools import lru_cache

import pyspiel

from marl_llm.errors import GameError
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.types import Outcome

CHALLENGE = "liar"


class LiarsDice(OpenSpielGame):
    """Liar's dice with `dice` dice each; the highest face is wild."""

    def __init__(
        self,
        *,
        dice: int = 1,
        sides: int = 6,
        name: str = "liars_dice",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        if not 1 <= dice <= 5 or not 2 <= sides <= 9:
            raise GameError(
                f"liar's dice is for 1 to 5 dice each with 2 to 9 sides, got {dice} and {sides}"
            )
        bids = tuple(f"{count}x{face}" for count in range(1, 2 * dice + 1)
                     for face in range(1, sides + 1))  # fmt: skip
        self._dice, self._sides = dice, sides
        super().__init__(
            pyspiel.load_game("liars_dice", {"numdice": dice, "dice_sides": sides}),
            name=name,
            actions=(*bids, CHALLENGE),
            scoring=Scoring(2, "opposed", "result", {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,)}),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )

    def rules(self) -> str:
        """The rules in words."""
        many = f"{self._dice} dice" if self._dice > 1 else "1 die"
        return (
            f"Liar's dice for two players. Each rolls {many} with {self._sides} sides, seen by "
            "itself only. They take turns, player_0 first. A bid such as 2x5 claims that at least "
            f"two of all {2 * self._dice} dice show a 5; a die that shows {self._sides} counts as "
            "every face. Each bid must claim more dice than the last one, or as many of a higher "
            "face. Instead of bidding, a player may say liar: then all dice are shown, and "
            "whoever made the last bid wins if it holds and loses if not.\n"
            f"Actions: {', '.join(self.actions)}. liar is not allowed as the first action, and "
            f"after {self.actions[-2]} only liar is."
        )

    def words(self, told: str, player: int) -> tuple[str, str]:
        """The own dice and the bids in their order."""
        return _words(told, player)


@lru_cache(maxsize=16384)
def _words(told: str, player: int) -> tuple[str, str]:
    """Words for OpenSpiel's string: the dice as digits, then each bid as count-face or Liar."""
    dice, *said = told.split()
    bids = [bid.lower().replace("-", "x") for bid in said]
    seats = ("you" if i % 2 == player else "opponent" for i in range(len(bids)))
    spoken = ", ".join(f"{seat} {bid}" for seat, bid in zip(seats, bids, strict=True)) or "none"
    own = " ".join(dice)
    return f"Your dice: {own}. Bids so far: {spoken}.", " ".join([own, *bids])
