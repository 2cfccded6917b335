"""Scripted players of delegation games: one knows the truth, the other does not wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from marl_llm.errors import ConfigError, GameError


class DelegationGame(Protocol):
    """What these players read of a game: `games.delegation.Delegation` has it."""

    name: str

    def call_of(self, agent: str) -> Any:
        """What an agent was called for."""

    def solve(self, call: Any, rng: np.random.Generator) -> str:
        """A best action."""

    def guess(self, call: Any, rng: np.random.Generator) -> str:
        """An action that ends the call at once."""

    def wander(self, call: Any, rng: np.random.Generator) -> str:
        """Any action that does not end the call."""

    def ends(self, call: Any, action: str) -> bool:
        """Whether an action ends the call."""

    def accepts(self, agent: str, action: str) -> bool:
        """Whether an action is allowed now."""


@dataclass(frozen=True, slots=True)
class Solver:
    """Plays every role best, knowing what its agents do not."""

    name: str = "solver"

    def act(self, game: DelegationGame, agent: str, rng: np.random.Generator) -> str:
        """A best action, or a guess where that is refused: there is nobody left to call."""
        call = _call(game, agent)
        best = game.solve(call, rng)
        return best if game.accepts(agent, best) else game.guess(call, rng)


@dataclass(frozen=True, slots=True)
class Hasty:
    """Ends its calls too early, and does the right thing now and then: a weak start to learn from.

    With probability `hasty` it ends its call at once, and else goes on. Where the best action is of
    the kind that it has chosen, it takes that with probability `right`; else it guesses, or takes
    any action that goes on. What it does most is therefore wrong, and a policy that is only
    sharpened at what it does most fails.
    """

    hasty: float = 0.6
    right: float = 0.6
    name: str = "hasty"

    def __post_init__(self) -> None:
        for name in ("hasty", "right"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a probability, got {getattr(self, name)}")

    def act(self, game: DelegationGame, agent: str, rng: np.random.Generator) -> str:
        """The best action, a guess, or any other that goes on."""
        call = _call(game, agent)
        best, end = game.solve(call, rng), bool(rng.random() < self.hasty)
        if game.ends(call, best) == end and rng.random() < self.right:
            return best if game.accepts(agent, best) else game.guess(call, rng)
        on = None if end else game.wander(call, rng)
        return on if on is not None and game.accepts(agent, on) else game.guess(call, rng)


def _call(game: DelegationGame, agent: str) -> Any:
    if not hasattr(game, "call_of"):
        raise GameError(
            f"players 'solver' and 'hasty' play delegation games, and {game.name} is none"
        )
    return game.call_of(agent)
