"""Hanabi: a team builds fireworks from cards that each player holds but cannot see.

    Lives: 3. Hints left: 1. Cards in the deck: 1.
    Fireworks: red 1, yellow 0.
    Your cards, unseen, as far as hints tell: 1 is yellow, 1; 2 is yellow, 1; 3 is any colour, 2.
    player_0 holds: red 1 (knows: unknown), yellow 1 (knows: unknown), red 2 (knows: unknown).
    Discards: none.
    So far: player_0 hint red (cards 1), you play 1 (red 1, fits), player_0 hint 1 (cards 1 2).
    Legal actions: discard 1, discard 2, discard 3, play 1, play 2, play 3, hint red,
    hint yellow, hint 1, hint 2.

In brief, fireworks, hints, the own cards with "?" for what is not known, and the others' cards:
``red 1 yellow 0 hints 1 mine yellow 1 yellow 1 ? 2 theirs red 1 yellow 1 red 2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyspiel

from marl_llm.errors import GameError
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.types import Outcome

COLOURS = {"R": "red", "Y": "yellow", "G": "green", "W": "white", "B": "blue"}
CARDS = {f"{letter}{rank}": f"{colour} {rank}" for letter, colour in COLOURS.items()
         for rank in range(1, 6)}  # fmt: skip
HELD = re.compile(r"(?P<card>..) \|\| ..\|(?P<colours>[A-Z]+)(?P<ranks>\d+)")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a game of Hanabi."""

    players: int
    colours: int
    ranks: int
    hand: int

    @property
    def copies(self) -> tuple[int, ...]:
        """How many cards of each rank a colour has: three ones, one of the highest, else two."""
        return (3, *[2] * (self.ranks - 2), 1)

    @property
    def letters(self) -> str:
        """The colours as OpenSpiel's letters."""
        return "".join(COLOURS)[: self.colours]


@lru_cache(maxsize=64)
def action_names(size: Size) -> tuple[str, ...]:
    """Names in OpenSpiel's order: discards, plays, then hints of colours and of ranks by player."""
    cards = range(1, size.hand + 1)
    names = [f"{verb} {card}" for verb in ("discard", "play") for card in cards]
    clues = ([COLOURS[letter] for letter in size.letters], range(1, size.ranks + 1))
    for clue in clues:
        for ahead in range(1, size.players):
            whom = "" if size.players == 2 else f"+{ahead} "
            names += [f"hint {whom}{what}" for what in clue]
    return tuple(names)


class Hanabi(OpenSpielGame):
    """Hanabi; every card that fits pays 1 point to all, and losing all lives takes the points back.

    A perfect score counts as a win, the loss of all lives as a loss, anything else as a draw.
    """

    def __init__(
        self,
        *,
        players: int = 2,
        colours: int = 5,
        ranks: int = 5,
        hand: int = 5,
        hints: int = 8,
        lives: int = 3,
        name: str = "hanabi",
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        limits = (("players", players, 2, 5), ("colours", colours, 2, 5), ("ranks", ranks, 2, 5),
                  ("hand", hand, 2, 5), ("hints", hints, 1, 8), ("lives", lives, 1, 3))  # fmt: skip
        for what, value, low, high in limits:
            if not low <= value <= high:
                raise GameError(f"{what} of {name} must be {low} to {high}, got {value}")
        self._size = size = Size(players, colours, ranks, hand)
        cards = colours * sum(size.copies)
        if players * hand > cards:  # OpenSpiel would end the process
            raise GameError(
                f"{name} deals {players} hands of {hand}, but {colours} colours of {ranks} ranks "
                f"are {cards} cards only; use smaller hands or more colours"
            )
        self._hints, self._lives = hints, lives
        best = colours * ranks
        points = tuple(float(score) for score in range(best))
        parameters = {"players": players, "colors": colours, "ranks": ranks, "hand_size": hand,
                      "max_information_tokens": hints, "max_life_tokens": lives}  # fmt: skip
        endings = {Outcome.WIN: (float(best),), Outcome.LOSS: (0.0,), Outcome.DRAW: points}
        super().__init__(
            pyspiel.load_game("hanabi", parameters),
            name=name,
            actions=action_names(size),
            scoring=Scoring(players, "shared", "points", endings, stakes=points),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )
        self._chronicle = Chronicle(size)

    def rules(self) -> str:
        """The rules in words."""
        size = self._size
        colours = ", ".join(COLOURS[letter] for letter in size.letters)
        copies = ", ".join(f"{n} of rank {rank}" for rank, n in enumerate(size.copies, start=1))
        whom = (
            "hint red names all red cards of the other player, hint 1 all its cards of rank 1"
            if size.players == 2
            else "hint +1 red names all red cards of the next player in turn order, +2 of the one "
            "after it and so on, hint +1 1 all its cards of rank 1"
        )
        return (
            f"Hanabi for {size.players} players who win or lose together. The colours are "
            f"{colours}; each has {copies}. Everybody holds {size.hand} cards, seen by all but the "
            "holder, numbered from 1, the oldest. Together you build one firework per colour, "
            f"rank 1 first, then 2, up to {size.ranks}. Players move in turn, player_0 first. play "
            "N lays card N down: if it is the next of its colour everybody gets 1 point, "
            "otherwise the card is discarded and the team loses a life. discard N throws card N "
            "away and gives one hint back. After either a new card is drawn as your last one. "
            f"{whom}; a hint uses one up and must name at least one card. The team has "
            f"{self._hints} hints and {self._lives} lives. Completing a colour gives one hint "
            "back. The game ends when all fireworks are complete, when the last life is lost "
            "(which takes all points back), or when each player has moved once after the deck ran "
            "out.\n"
            f"Actions: {', '.join(self.actions)}. A discard is not allowed while no hint has been "
            "used, a hint not while none is left."
        )

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Deal."""
        self._chronicle = Chronicle(self._size)
        super().start(rng, options)

    def result(self, agent: str) -> Outcome:
        """Perfect, all lives lost, or in between."""
        if self.earnings()[0] == self.scoring.endings[Outcome.WIN][0]:
            return Outcome.WIN
        lost = str(self._state).startswith("Life tokens: 0")
        return Outcome.LOSS if lost else Outcome.DRAW

    def told(self, player: int) -> str:
        """OpenSpiel's observation, and every move so far, which the observation leaves out."""
        self._chronicle.follow(self._state.history())
        moves = "\n".join(self._chronicle.moves)
        return f"{self._state.observation_string(player)}\nMoves:\n{moves}"

    def words(self, told: str, player: int) -> tuple[str, str]:
        """Table, hands as far as they are known, discards and moves."""
        return _words(told, player, self._size)


class Chronicle:
    """What everybody saw happen, read off OpenSpiel's history as it grows.

    `moves` has one line per move: the seat, the action, and what it showed: a played or discarded
    card as ``R1+`` (fits), ``R1-`` (does not) or ``R1``, a hint the cards it named as ``1 3``.
    """

    def __init__(self, size: Size):
        self.moves: list[str] = []
        self._size = size
        self._hands: list[list[tuple[str, int]]] = [[] for _ in range(size.players)]
        self._heights = dict.fromkeys(size.letters, 0)
        self._deck = size.colours * sum(size.copies)
        self._read = 0  # entries of the history so far
        self._drawer: int | None = None  # who draws next

    def follow(self, history: Sequence[int]) -> None:
        """Read what has been added to the history since the last call."""
        size = self._size
        for i in range(self._read, len(history)):
            if i < size.players * size.hand:
                self._draw(i // size.hand, history[i])
            elif self._drawer is not None:
                self._draw(self._drawer, history[i])
                self._drawer = None
            else:
                self._move(len(self.moves) % size.players, history[i])
        self._read = len(history)

    def _draw(self, seat: int, card: int) -> None:
        colour, rank = divmod(card, self._size.ranks)
        self._hands[seat].append((self._size.letters[colour], rank + 1))
        self._deck -= 1

    def _move(self, seat: int, action: int) -> None:
        hand = self._size.hand
        name = action_names(self._size)[action]
        if action >= 2 * hand:
            self.moves.append(f"{seat}|{name}|{self._named(seat, action - 2 * hand)}")
            return
        colour, rank = self._hands[seat].pop(action % hand)
        shown = f"{colour}{rank}"
        if action >= hand:
            fits = self._heights[colour] == rank - 1
            self._heights[colour] += fits
            shown += "+" if fits else "-"
        self.moves.append(f"{seat}|{name}|{shown}")
        self._drawer = seat if self._deck else None

    def _named(self, seat: int, hint: int) -> str:
        """Positions of the cards that a hint named; hints are numbered from 0."""
        size = self._size
        of_rank = hint - (size.players - 1) * size.colours  # negative: it names a colour
        ahead, clue = divmod(hint, size.colours) if of_rank < 0 else divmod(of_rank, size.ranks)
        hand = self._hands[(seat + 1 + ahead) % size.players]
        positions = (
            i
            for i, (colour, rank) in enumerate(hand, start=1)
            if (colour == size.letters[clue] if of_rank < 0 else rank == clue + 1)
        )
        return " ".join(map(str, positions))


@lru_cache(maxsize=4096)
def _words(told: str, player: int, size: Size) -> tuple[str, str]:
    table, said = told.split("\nMoves:\n")
    head, rest = table.split("\nHands:\n")
    cards, tail = rest.split("\nDeck size: ")
    lives, hints, piles = (line.split(": ")[1].strip() for line in head.splitlines())
    left, _, discards = tail.partition("\nDiscards:")
    hands = [HELD.findall(hand) for hand in cards.split("-----\n")]
    full = (size.colours, size.ranks)
    seats = [(player + i) % size.players for i in range(size.players)]  # hands start with one's own
    fireworks = [f"{COLOURS[pile[0]]} {pile[1:]}" for pile in piles.split()]
    own = [f"{i} is {_known(*full, *hand[1:])}" for i, hand in enumerate(hands[0], start=1)]
    lines = [
        f"Lives: {lives}. Hints left: {hints}. Cards in the deck: {left}.",
        f"Fireworks: {', '.join(fireworks)}.",
        f"Your cards, unseen, as far as hints tell: {'; '.join(own)}.",
    ]
    for seat, hand in zip(seats[1:], hands[1:], strict=True):
        held = [f"{CARDS[card]} (knows: {_known(*full, *known)})" for card, *known in hand]
        lines.append(f"player_{seat} holds: {', '.join(held)}.")
    thrown = ", ".join(CARDS[card] for card in discards.split()) or "none"
    moves = ", ".join([_said(line, player) for line in said.splitlines()]) or "nothing"
    lines += [f"Discards: {thrown}.", f"So far: {moves}."]
    mine = [_only(colours, COLOURS) + " " + _only(ranks, None) for _, colours, ranks in hands[0]]
    theirs = [" ".join(("theirs", *(CARDS[card] for card, *_ in hand))) for hand in hands[1:]]
    brief = " ".join((*fireworks, f"hints {hints} mine", *mine, *theirs))
    return "\n".join(lines), brief


@lru_cache(maxsize=4096)
def _known(all_colours: int, all_ranks: int, colours: str, ranks: str) -> str:
    """What hints leave possible of a card, of so many colours and ranks."""
    any_colour, any_rank = len(colours) == all_colours, len(ranks) == all_ranks
    if any_colour and any_rank:
        return "unknown"
    colour = "any colour" if any_colour else " or ".join(COLOURS[letter] for letter in colours)
    return f"{colour}, {'any rank' if any_rank else ' or '.join(ranks)}"


def _only(possible: str, words: Mapping[str, str] | None) -> str:
    if len(possible) > 1:
        return "?"
    return words[possible] if words else possible


@lru_cache(maxsize=65536)  # the same few lines come back in every later text of an episode
def _said(line: str, player: int) -> str:
    seat, action, shown = line.split("|")
    who = "you" if int(seat) == player else f"player_{seat}"
    if action.startswith("hint"):
        return f"{who} {action} (cards {shown})"
    fits = {"+": ", fits", "-": ", does not fit"}.get(shown[-1], "")
    return f"{who} {action} ({CARDS[shown[:2]]}{fits})"
