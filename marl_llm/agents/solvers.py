"""Players that compute: exact play of small board games, tree search, equilibria of card games.

They look at the game's state, hidden cards excepted: where those matter, a player reads its own
information state only, or refuses the game.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyspiel

from marl_llm.agents.equilibrium import average_policy, equilibrium
from marl_llm.agents.spiel import SpielGame, draw, require
from marl_llm.errors import ConfigError, GameError

MAX_POSITIONS = 200_000  # tic-tac-toe has 5,478
_SAME = 1e-9  # values closer than this are one value
_TREE_MEGABYTES = 1000  # of a search; reached by none with fewer than a million simulations


@dataclass(frozen=True, slots=True)
class Minimax:
    """Perfect play of a small board game; equally good actions are equally likely."""

    name: str = "minimax"

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """One of the best actions.

        Raises:
            GameError: the game has hidden cards, chance, other than two opposed players, or more
                than `MAX_POSITIONS` positions.
        """
        rules = game.spiel_game
        require(
            rules, self.name, open_state=True, no_chance=True, zero_sum_pair=True, in_turns=True
        )
        best = best_actions(game.state, position_values(str(rules)))
        return game.actions[best[int(rng.integers(len(best)))]]


def best_actions(state: pyspiel.State, values: dict[tuple[int, str], float]) -> list[int]:
    """The actions with the best value for the player to move, in OpenSpiel's order.

    Args:
        state: with a decision.
        values: of all positions that can follow, for player 0; see `position_values`.
    """
    sign = 1.0 if state.current_player() == 0 else -1.0
    legal = state.legal_actions()
    worth = [sign * values[_position(state.child(action))] for action in legal]
    top = max(worth)
    return [action for action, value in zip(legal, worth, strict=True) if top - value < _SAME]


@lru_cache(8)
def position_values(name: str) -> dict[tuple[int, str], float]:
    """Player 0's return under perfect play from every position of a game, by (mover, picture).

    Args:
        name: OpenSpiel's, parameters included, e.g. ``tic_tac_toe()``. Its text of a state must
            show all that the future depends on, apart from who moves.

    Raises:
        GameError: there are more than `MAX_POSITIONS` positions.
    """
    values: dict[tuple[int, str], float] = {}
    _value(pyspiel.load_game(name).new_initial_state(), values)
    return values


def _value(state: pyspiel.State, values: dict[tuple[int, str], float]) -> float:
    position = _position(state)
    if position not in values:
        if len(values) >= MAX_POSITIONS:
            raise GameError(
                f"{state.get_game()} has more than {MAX_POSITIONS:,} positions, too many for "
                "minimax; choose another player, e.g. mcts_1000"
            )
        if state.is_terminal():
            values[position] = state.player_return(0)
        else:
            after = [_value(state.child(action), values) for action in state.legal_actions()]
            values[position] = max(after) if state.current_player() == 0 else min(after)
    return values[position]


def _position(state: pyspiel.State) -> tuple[int, str]:
    return state.current_player(), str(state)


@dataclass(frozen=True, slots=True)
class Mcts:
    """Monte-Carlo tree search (UCT) with uniform roll-outs; a fresh tree for every move."""

    simulations: int = 100
    uct_c: float = 2.0  # weight of exploration
    rollouts: int = 10  # uniform games that value one new position
    name: str = "mcts"

    def __post_init__(self) -> None:
        if self.simulations < 1 or self.rollouts < 1:
            raise ConfigError(
                "mcts needs at least one simulation and one roll-out, got "
                f"{self.simulations} and {self.rollouts}"
            )

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """The action the search settles on; its seeds come from `rng`.

        Raises:
            GameError: the game has hidden cards (the search would see them) or simultaneous moves.
        """
        require(game.spiel_game, self.name, open_state=True, in_turns=True)
        seeds = rng.integers(2**31, size=2)
        bot = pyspiel.MCTSBot(
            game.spiel_game,
            pyspiel.RandomRolloutEvaluator(self.rollouts, int(seeds[0])),
            self.uct_c,
            self.simulations,
            _TREE_MEGABYTES,
            True,  # a position proved won or lost is not searched again
            int(seeds[1]),
            False,  # not verbose
        )
        return game.actions[bot.step(game.state)]


@dataclass(frozen=True, slots=True)
class Cfr:
    """Plays the average policy of counterfactual regret minimisation, found at its first move."""

    iterations: int = 1000
    plus: bool = False  # CFR+
    name: str = "cfr"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"cfr needs at least one iteration, got {self.iterations}")

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """An action drawn from the policy at this agent's information state.

        Raises:
            GameError: the game is too large or has simultaneous moves.
        """
        policy = average_policy(game.spiel_game, self.iterations, self.plus)
        key = game.state.information_state_string(game.player(agent))
        return game.actions[draw(rng, policy[key])]


@dataclass(frozen=True, slots=True)
class Nash:
    """Plays an equilibrium of a small two-player zero-sum game, computed at its first move."""

    tremble: float = 1e-5  # least share of an action in the computation; see `equilibrium`
    name: str = "nash"

    def act(self, game: SpielGame, agent: str, rng: np.random.Generator) -> str:
        """An action drawn from the equilibrium at this agent's information state.

        Raises:
            GameError: the game is too large, or not between two opposed players.
        """
        policy = equilibrium(game.spiel_game, self.tremble)
        key = game.state.information_state_string(game.player(agent))
        return game.actions[draw(rng, policy[key])]
