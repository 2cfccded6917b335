"""Scripted players that need no search: opponents, cold starts and tests.

All are settings without memory: what a player does hangs on the game's state and the generator it
is given, so one object plays any number of games at once. `solvers.py` has those that compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyspiel

from marl_llm.agents import Player
from marl_llm.agents.spiel import ListedGame, SpielGame, draw, require
from marl_llm.errors import ConfigError, GameError, nearest

_PRIVATE_CARD = re.compile(r"\[Private: (\d+)\]")
_PUBLIC_CARD = re.compile(r"\[Public: (\d+)\]")


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any legal action, all equally likely."""

    name: str = "random"

    def act(self, game: ListedGame, agent: str, rng: np.random.Generator) -> str:
        """A legal action."""
        return game.sample(agent, rng)


@dataclass(frozen=True, slots=True)
class Fixed:
    """These actions in this order, one per turn of its own."""

    actions: tuple[str, ...]
    name: str = "fixed"

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """The next action of the list; which one that is, the game's history tells.

        Raises:
            GameError: the list is at its end, or its action is not legal here.
        """
        player = game.player(agent)
        turn = sum(step.player == player for step in game.state.full_history())
        if turn >= len(self.actions):
            raise GameError(
                f"player {self.name!r} has {len(self.actions)} actions and {agent} of {game.name} "
                f"is asked for number {turn + 1}; give it a longer list"
            )
        action, legal = self.actions[turn], game.legal(agent)
        if action not in legal:
            raise GameError(
                f"action {turn + 1} of player {self.name!r}, {action!r}, is not legal for {agent} "
                f"of {game.name} here; {nearest(action, legal)}"
            )
        return action


@dataclass(frozen=True, slots=True)
class Noisy:
    """Another player, whose hand slips now and then to any legal action."""

    player: Player
    epsilon: float  # probability of a slip
    name: str = "noisy"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"epsilon is a probability, got {self.epsilon}")

    def act(self, game: ListedGame, agent: str, rng: np.random.Generator) -> str:
        """The other player's action, or a uniform one with probability `epsilon`."""
        if rng.random() < self.epsilon:
            return Uniform().act(game, agent, rng)
        return self.player.act(game, agent, rng)


@dataclass(frozen=True)
class Table:
    """A policy written down: probabilities of actions by the key of what the agent knows."""

    policy: Mapping[str, Mapping[str, float]]
    name: str = "table"

    def __post_init__(self) -> None:
        for key, chances in self.policy.items():
            if min(chances.values(), default=-1) < 0 or abs(sum(chances.values()) - 1) > 1e-6:
                raise ConfigError(
                    f"player {self.name!r}: probabilities at {key!r} must be >= 0 and sum to 1, "
                    f"got {dict(chances)}"
                )

    def act(self, game: ListedGame, agent: str, rng: np.random.Generator) -> str:
        """An action drawn from the table's row for this agent's observation.

        Raises:
            GameError: there is no such row.
        """
        key = game.observation(agent).key
        if key not in self.policy:
            raise GameError(
                f"player {self.name!r} has no row for {key!r} of {game.name}; "
                f"{nearest(key, self.policy)}"
            )
        return draw(rng, self.policy[key])


@dataclass(frozen=True, slots=True)
class Leaning:
    """A weak poker player that bets more often with a better card, and knows nothing else.

    The last legal action (bet or raise; call once raising is capped) has probability

        low + (high - low) · strength

    with strength 0 for the lowest card, 1 for the highest or a pair, evenly between; the others
    share the rest equally. In three-card Kuhn poker the defaults bet with .35, .50 and .65. It ties
    the choice to the card, weakly, which is what a cold start needs in order not to end in the same
    move everywhere.
    """

    low: float = 0.35
    high: float = 0.65
    name: str = "weak"

    def __post_init__(self) -> None:
        if not (0 <= self.low <= 1 and 0 <= self.high <= 1):
            raise ConfigError(f"low and high are probabilities, got {self.low} and {self.high}")

    def chances(self, state: pyspiel.State, player: int) -> dict[int, float]:
        """Probability of each legal OpenSpiel action for `player`."""
        *others, boldest = state.legal_actions(player)
        bold = self.low + (self.high - self.low) * strength(state, player) if others else 1.0
        return {**{action: (1 - bold) / len(others) for action in others}, boldest: bold}

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """An action drawn from `chances`."""
        player = game.player(agent)
        return game.actions[draw(rng, self.chances(game.state, player))]


def strength(state: pyspiel.State, player: int) -> float:
    """How good a player's cards are in Kuhn or Leduc poker: 0 the worst, 1 the best or a pair.

    Raises:
        GameError: the game is another one.
    """
    game = state.get_game()
    name = game.get_type().short_name
    ranks = game.num_players() + 1  # in both games one more than players
    text = state.information_state_string(player)
    if name == "kuhn_poker":
        return int(text[0]) / (ranks - 1)
    if name != "leduc_poker":
        raise GameError(
            f"player 'weak' knows the cards of kuhn_poker and leduc_poker, not of {name}; "
            "choose another player, e.g. random"
        )
    suits = 1 if game.get_parameters()["suit_isomorphism"] else 2
    private, public = _PRIVATE_CARD.search(text), _PUBLIC_CARD.search(text)
    if private is None:
        raise GameError(f"the cards of {name} are not dealt yet, so nobody can act: {text}")
    rank = int(private[1]) // suits
    if public is not None and int(public[1]) // suits == rank:
        return 1.0
    return rank / (ranks - 1)


@dataclass(frozen=True, slots=True)
class WinOrBlock:
    """Looks one move ahead for itself and one for the other; for any two-player board game.

    Wins at once if it can. Else it draws among the actions that leave the other player no immediate
    win, or among all if there is no such action.
    """

    name: str = "win_or_block"

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """A winning, else a blocking, else any action.

        Raises:
            GameError: the game has hidden cards, chance, or other than two opposed players.
        """
        require(
            game.spiel_game,
            self.name,
            open_state=True,
            no_chance=True,
            zero_sum_pair=True,
            in_turns=True,
        )
        state, player = game.state, game.player(agent)
        legal = state.legal_actions()
        after = {action: state.child(action) for action in legal}
        wins = [action for action in legal if _won(after[action], player)]
        safe = wins or [action for action in legal if not _can_win(after[action], 1 - player)]
        choice = safe or legal
        return game.actions[choice[int(rng.integers(len(choice)))]]


def _won(state: pyspiel.State, player: int) -> bool:
    return state.is_terminal() and state.player_return(player) > 0


def _can_win(state: pyspiel.State, player: int) -> bool:
    """Whether `player` is to move and has a move that wins at once."""
    if state.is_terminal() or state.current_player() != player:
        return False
    return any(_won(state.child(action), player) for action in state.legal_actions())
