"""Leduc hold'em for two players: one card each, one shared card, two rounds of bets.

    Your card: J. Shared card: K. Chips put in: you 1, opponent 5.
    First round: you call, opponent call. Second round: you call, opponent raise.
    Legal actions: fold, call, raise.

In brief: ``J call call K call raise``. Suits do not matter in Leduc and are not told, so that equal
texts are equal information states (OpenSpiel's ``suit_isomorphism``).
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyspiel

from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.types import Outcome

ACTIONS = ("fold", "call", "raise")
RANKS = "JQK"
AMOUNTS = (1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0)  # ante 1, up to two raises of 2 and two of 4
STAKES = (1.0, 3.0, 5.0, 7.0, 9.0)  # what an agent that still has to decide can have put in
PURSE = 100  # chips that OpenSpiel gives each player
TOLD = re.compile(
    r"\[Private: (?P<card>\d)\].*\[Money: (?P<money>[\d ]+)\](\[Public: (?P<shared>\d)\])?"
    r"\[Round1: ?(?P<first>[\d ]*)\]\[Round2: ?(?P<second>[\d ]*)\]"
)


class LeducPoker(OpenSpielGame):
    """Leduc hold'em; uniform play has NashConv 4.7472."""

    def __init__(
        self,
        *,
        name: str = "leduc",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        endings = {
            Outcome.WIN: AMOUNTS,
            Outcome.LOSS: tuple(-amount for amount in AMOUNTS),
            Outcome.DRAW: (0.0,),
        }
        super().__init__(
            pyspiel.load_game("leduc_poker", {"suit_isomorphism": True}),
            name=name,
            actions=ACTIONS,
            scoring=Scoring(2, "opposed", "amount", endings, stakes=STAKES),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )

    def rules(self) -> str:
        """The rules in words."""
        return (
            "Leduc hold'em for two players. The deck has two jacks J, two queens Q and two kings "
            "K; suits do not matter. Each player puts 1 chip into the pot and gets one card that "
            "only it sees. There are two rounds of bets, player_0 first in both. call puts in "
            "what is missing to the other's chips, nothing if nothing is; raise does the same and "
            "adds 2 chips in the first round, 4 in the second; fold gives up the pot. A round has "
            "at most two raises and ends when a player calls a raise or both call. Between the "
            "rounds a shared card is laid open. At the end a card that pairs with the shared card "
            "wins, else the higher card; equal cards split the pot. You win or lose chips.\n"
            f"Actions: {', '.join(ACTIONS)}. fold is allowed only after a raise, raise only while "
            "the round has fewer than two."
        )

    def stake(self, agent: str) -> float:
        """Chips this agent has put into the pot."""
        player = self._index[agent]
        match = TOLD.search(self.told(player))
        assert match is not None  # OpenSpiel's own format
        return float(PURSE - int(match["money"].split()[player]))

    def words(self, told: str, player: int) -> tuple[str, str]:
        """The cards, the chips and the bets of both rounds."""
        return _words(told, player)


@lru_cache(maxsize=16384)
def _words(told: str, player: int) -> tuple[str, str]:
    match = TOLD.search(told)
    assert match is not None  # OpenSpiel's own format
    chips = [PURSE - int(money) for money in match["money"].split()]
    card = RANKS[int(match["card"])]
    shared = RANKS[int(match["shared"])] if match["shared"] else None
    first, second = ([ACTIONS[int(i)] for i in match[r].split()] for r in ("first", "second"))
    text = (
        f"Your card: {card}. Shared card: {shared or 'not yet open'}. "
        f"Chips put in: you {chips[player]}, opponent {chips[1 - player]}.\n"
        f"First round: {_round(first, player)}."
    )
    if shared is None:
        return text, " ".join([card, *first])
    return f"{text} Second round: {_round(second, player)}.", " ".join(
        [card, *first, shared, *second]
    )


def _round(actions: list[str], player: int) -> str:
    seats = ("you" if i % 2 == player else "opponent" for i in range(len(actions)))
    return ", ".join(f"{s} {a}" for s, a in zip(seats, actions, strict=True)) or "none yet"
