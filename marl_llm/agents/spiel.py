"""What scripted players and solvers read of a game.

A role sees text only. A scripted player may look at the game itself; this page says at which part,
so that they play any game that has it: `ListedGame` is enough for simple ones, those that think
ahead need `SpielGame`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar

import numpy as np
import pyspiel

from marl_llm.errors import GameError
from marl_llm.types import Observation

Choice = TypeVar("Choice", bound=Hashable)


class ListedGame(Protocol):
    """A game that can list the legal actions."""

    name: str

    def legal(self, agent: str) -> tuple[str, ...]:
        """Names of the actions that this agent, whose turn it is, may take."""

    def accepts(self, agent: str, action: str) -> bool:
        """Whether the agent may take an action now."""

    def sample(self, agent: str, rng: np.random.Generator) -> str:
        """Any of them, or any action that it may take where they are not listed."""

    def observation(self, agent: str) -> Observation:
        """All that this agent may know now."""


class SpielGame(ListedGame, Protocol):
    """A game whose rules are OpenSpiel's."""

    actions: tuple[str, ...]  # names, in the order of OpenSpiel's action numbers

    @property
    def spiel_game(self) -> pyspiel.Game:
        """The rules."""

    @property
    def state(self) -> pyspiel.State:
        """The state of now; to be read, not changed."""

    def player(self, agent: str) -> int:
        """OpenSpiel's number of an agent."""


def draw(rng: np.random.Generator, chances: Mapping[Choice, float]) -> Choice:
    """One choice, with probability proportional to its weight (a choice of weight 0 never)."""
    possible = {choice: chance for choice, chance in chances.items() if chance > 0}
    left = rng.random() * sum(possible.values())
    for choice, chance in possible.items():
        left -= chance
        if left < 0:
            return choice
    return choice  # rounding left nothing for the last one


def require(
    game: pyspiel.Game,
    who: str,
    *,
    open_state: bool = False,
    no_chance: bool = False,
    zero_sum_pair: bool = False,
    in_turns: bool = False,
) -> None:
    """Refuse a game that a player's method does not apply to.

    Args:
        game: the rules.
        who: the player, as the error should call it.
        open_state: everybody sees everything.
        no_chance: there are no chance moves.
        zero_sum_pair: two players, and one's gain is the other's loss.
        in_turns: nobody moves at the same time as another.

    Raises:
        GameError: the game lacks one of the properties asked for.
    """
    kind = game.get_type()
    lacking = {
        "perfect information": open_state
        and kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION,
        "no chance moves": no_chance
        and kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC,
        "two players with opposed interests": zero_sum_pair
        and (game.num_players() != 2 or kind.utility != pyspiel.GameType.Utility.ZERO_SUM),
        "moves in turns": in_turns and kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL,
    }
    missing = [what for what, lacks in lacking.items() if lacks]
    if missing:
        raise GameError(
            f"player {who!r} needs {' and '.join(missing)}, which {kind.short_name} does not have; "
            "choose another player, e.g. cfr for small card games or random for any game"
        )
