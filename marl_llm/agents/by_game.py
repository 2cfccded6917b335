"""Another player for each game, behind one name: who plays when a run has several games."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from marl_llm.agents import Player
from marl_llm.agents.spiel import ListedGame
from marl_llm.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class ByGame:
    """Hands every game to the player that is named for it."""

    players: Mapping[str, Player]  # by the game's name
    name: str = "by_game"

    def act(self, game: ListedGame, agent: str, rng: np.random.Generator) -> str:
        """What the game's own player does.

        Raises:
            ConfigError: no player is named for this game.
        """
        if game.name not in self.players:
            raise ConfigError(
                f"player {self.name!r} has nobody for {game.name!r}; add one under players, "
                f"{nearest(game.name, self.players)}"
            )
        return self.players[game.name].act(game, agent, rng)
