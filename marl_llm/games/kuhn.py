"""Kuhn poker for two to five players: one card each, one bet, exact equilibria.

    Your card: J. Bets so far: you pass, opponent bet.
    Legal actions: pass, bet.

In brief: ``J pass bet``. With more than two players the seats are named:

    You are player_1 of 3. Your card: Q. Bets so far: player_0 pass.
"""

from __future__ import annotations

from functools import lru_cache

import pyspiel

from marl_llm.errors import GameError
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.types import Outcome

ACTIONS = ("pass", "bet")
RANKS = (
    "9TJQKA"  # the deck is the n+1 highest of these; J, Q, K for two players, as it is always told
)
BY_LETTER = {"p": "pass", "b": "bet"}


class KuhnPoker(OpenSpielGame):
    """Kuhn poker; for two, uniform play has NashConv 11/12 and the first seat is worth -1/18."""

    def __init__(
        self,
        *,
        players: int = 2,
        name: str = "kuhn",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        if not 2 <= players <= 5:
            raise GameError(f"Kuhn poker is for 2 to 5 players, got {players}")
        self._deck = deck(players)
        # Whoever wins takes one chip of each other player, and two of each that called.
        wins = tuple(float(players - 1 + callers) for callers in range(players))
        super().__init__(
            pyspiel.load_game("kuhn_poker", {"players": players}),
            name=name,
            actions=ACTIONS,
            scoring=Scoring(
                agents=players,
                interest="opposed",
                pays="amount",
                endings={Outcome.WIN: wins, Outcome.LOSS: (-2.0, -1.0)},
                stakes=(1.0,),  # an agent that still has to decide has put in its ante only
            ),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )

    def rules(self) -> str:
        """The rules in words."""
        n = self.scoring.agents
        return (
            f"Kuhn poker for {n} players. The deck is {', '.join(self._deck)}, one card of each, "
            "lowest first. Every player puts 1 chip into the pot and gets one card that only it "
            "sees. They decide in turn, player_0 first. Until somebody bets, pass adds nothing "
            "and bet adds 1 chip. After the first bet every other player decides once more: bet "
            "calls by adding 1 chip, pass folds. Then, or when all have passed, the highest card "
            "among those who have put in most takes the pot. You win or lose chips.\n"
            f"Actions: {', '.join(ACTIONS)}. Both are always allowed."
        )

    def stake(self, agent: str) -> float:
        """Chips this agent has put into the pot."""
        player, n = self._index[agent], self.scoring.agents
        bets = self._state.history()[n:]  # after the deal
        return 1.0 + sum(bets[player::n])

    def words(self, told: str, player: int) -> tuple[str, str]:
        """The card and the bets, in the order they were made."""
        return _words(told, player, self.scoring.agents)


def deck(players: int) -> str:
    """The cards of a game, lowest first, one letter each."""
    return "JQK" if players == 2 else RANKS[-(players + 1) :]


@lru_cache(maxsize=16384)
def _words(told: str, player: int, players: int) -> tuple[str, str]:
    """Words for OpenSpiel's string: the card's number, then p or b for each decision in turn."""
    card = deck(players)[int(told[0])]
    bets = [BY_LETTER[letter] for letter in told[1:]]
    seats = [_seat(i % players, player, players) for i in range(len(bets))]
    said = ", ".join(f"{seat} {bet}" for seat, bet in zip(seats, bets, strict=True)) or "none"
    who = "" if players == 2 else f"You are player_{player} of {players}. "
    return f"{who}Your card: {card}. Bets so far: {said}.", " ".join([card, *bets])


def _seat(seat: int, player: int, players: int) -> str:
    if seat == player:
        return "you"
    return "opponent" if players == 2 else f"player_{seat}"
