"""Scripted players of games with sub-goals: one that does what is next, one that leaves steps out.

Both pursue a sub-goal at any time and can say which (`intent`): it is a function of the game as it
stands, so that it comes out the same when an episode is told again. That is how demonstrations of
the plan-execute format get their sub-goals; the action stays the game's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from marl_llm.agents.spiel import ListedGame
from marl_llm.errors import ConfigError, GameError


class SubGoalGame(ListedGame, Protocol):
    """What these players read of a game: `games.household.single.Household` has it."""

    def subgoal(self, agent: str, hasty: Sequence[bool] = ()) -> str:
        """What is next; `hasty` says of each part of the task whether to leave steps out."""

    def toward(self, agent: str, subgoal: str) -> str | None:
        """The next action towards a sub-goal; None = it is met."""

    def luck(self, what: str) -> float:
        """A number in [0, 1) that hangs on the episode and a name alone."""


@runtime_checkable
class Purposeful(Protocol):
    """A player who pursues sub-goals."""

    def intent(self, game: SubGoalGame, agent: str) -> str:
        """The sub-goal that it pursues now."""


@dataclass(frozen=True, slots=True)
class SubGoalSolver:
    """Does what is next, and knows where everything is."""

    name: str = "household_solver"

    def intent(self, game: SubGoalGame, agent: str) -> str:
        """What is next."""
        _check(game, self.name)
        return game.subgoal(agent)

    def act(self, game: SubGoalGame, agent: str, rng: np.random.Generator) -> str:
        """The next action towards it."""
        goal = self.intent(game, agent)
        return game.toward(agent, goal) or game.sample(agent, rng)


@dataclass(frozen=True, slots=True)
class Skipper:
    """Leaves out the steps that change a thing, more often than not: a weak start to learn from.

    Of each errand it makes up its mind once. With probability `skip` it does not clean, heat, cool
    or light, and once nothing else is left it does anything at random. Its hand slips with
    probability `slip` to any action. So what it does most is right for errands without such a
    step and wrong for the others, and a policy that is only sharpened at what it does most fails
    there.
    """

    skip: float = 0.6
    slip: float = 0.1
    name: str = "skipper"

    def __post_init__(self) -> None:
        for name in ("skip", "slip"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a probability, got {getattr(self, name)}")

    def intent(self, game: SubGoalGame, agent: str) -> str:
        """What is next, or comes after it."""
        _check(game, self.name)
        return game.subgoal(agent, [game.luck(f"skip {n}") < self.skip for n in range(_PARTS)])

    def act(self, game: SubGoalGame, agent: str, rng: np.random.Generator) -> str:
        """The next action towards it, or any."""
        goal = self.intent(game, agent)
        wanted = game.toward(agent, goal)
        slips = rng.random() < self.slip
        return game.sample(agent, rng) if slips or wanted is None else wanted


_PARTS = 5  # of a task, about which it makes up its mind; more are done without leaving steps out


def _check(game: SubGoalGame, who: str) -> None:
    if not hasattr(game, "toward"):
        raise GameError(f"player {who!r} plays games with sub-goals, and {game.name} is none")
