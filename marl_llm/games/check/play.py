"""Playing a game for the checks: random legal lines, positions by replay, plays compared.

A position is reached by reset and replay and never by `snapshot`, so that a game whose snapshots
are broken fails the check of snapshots alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.text_game import TextGame
from marl_llm.seeds import generator
from marl_llm.types import Move, Observation, Outcome

NEAR = 1e-6  # rewards closer than this are equal
_POSITIONS = 40  # at which every action name is tried

Line = Sequence[tuple[str, str]]  # (agent, action) from the start


class NotApplicable(Exception):
    """This check asks for something that the game's rules do not have."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a check works with."""

    make: Callable[[], TextGame]
    make_without_list: Callable[[], TextGame] | None
    seeds: tuple[int, ...]
    episodes: int


@dataclass(frozen=True, slots=True)
class Step:
    """One move of a play and what it paid."""

    observation: Observation
    action: str
    rewards: Mapping[str, float]


Transcript = tuple[list[Step], dict[str, Outcome]]  # the moves, and how it ended


def walk(game: TextGame, rng: np.random.Generator) -> Iterator[Step]:
    """Random legal play from where the game is, cut off when it runs over its stated turns."""
    for _ in range(game.max_turns + 1):
        if not (waiting := game.acting()):
            return
        agent = waiting[0]
        seen = game.observation(agent)
        legal = game.legal(agent)
        if not legal and not game.actions:
            raise NotApplicable("its actions are free text, so no legal play can be made up")
        if not legal:
            raise GameError(
                f"{agent} is to move and has no legal action ({seen.text!r}); end the game there "
                "or give it a pass"
            )
        action = legal[int(rng.integers(len(legal)))]
        game.act(agent, Move(action))
        if game.acting() and game.outcomes():
            raise GameError(
                f"{action!r} by {agent} leaves outcomes {dict(game.outcomes())} while "
                f"{', '.join(game.acting())} must still move; give outcomes when the game is over"
            )
        yield Step(seen, action, dict(game.take_rewards()))


def transcript(game: TextGame, seed: int, line_seed: int | None = None) -> Transcript:
    """A whole random play: the moves are drawn by `line_seed`, the game's chance by `seed`."""
    game.reset(seed)
    return rest(game, seed if line_seed is None else line_seed)


def rest(game: TextGame, seed: int) -> Transcript:
    """Random play from where the game is to its end."""
    steps = list(walk(game, generator(seed, "check")))
    return steps, dict(game.outcomes())


def plays(game: TextGame, trial: Trial) -> Iterator[tuple[int, list[Step]]]:
    """Random plays; while one is handed out the game stands at its end."""
    for seed in range(trial.episodes):
        yield seed, transcript(game, seed)[0]


def positions(game: TextGame, trial: Trial) -> list[tuple[int, Line, str]]:
    """(seed, moves so far, agent to move), spread over the plays of the trial's seeds."""
    positions = [
        (seed, line_of(steps[:turn]), step.observation.agent)
        for seed in trial.seeds
        for steps in [transcript(game, seed)[0]]
        for turn, step in enumerate(steps)
    ]
    return positions[:: max(1, len(positions) // _POSITIONS)]


def line_of(steps: Sequence[Step]) -> Line:
    """The moves of a play, to be replayed."""
    return [(step.observation.agent, step.action) for step in steps]


def replay(game: TextGame, seed: int, line: Line) -> list[float]:
    """Go to a position; returns what was paid on the way, one number per agent."""
    game.reset(seed)
    for agent, action in line:
        game.act(agent, Move(action))
    return take_paid(game)


def try_action(game: TextGame, agent: str, action: str) -> bool:
    """Play an action, the rest of the round moving legally; whether it was accepted."""
    key, others = game.observation(agent).key, game.acting()[1:]
    game.act(agent, Move(action))
    asked_again = agent in game.acting() or Outcome.TRUNCATED in game.outcomes().values()
    if asked_again and game.observation(agent).key == key:
        return False
    for other in others:
        if other in game.acting():
            game.act(other, Move(game.legal(other)[0]))
    return game.outcomes().get(agent) is not Outcome.ILLEGAL


def take_paid(game: TextGame) -> list[float]:
    """What was paid since the last look, one number per agent."""
    paid = game.take_rewards()
    return [paid.get(agent, 0.0) for agent in game.possible_agents]


def totals(game: TextGame, steps: Sequence[Step]) -> dict[str, float]:
    """The return of each agent over a whole play."""
    return {
        agent: sum(step.rewards.get(agent, 0.0) for step in steps) for agent in game.possible_agents
    }


def equal(one: Mapping[str, float], two: Mapping[str, float]) -> bool:
    """Equal rewards, absent ones being 0."""
    return all(abs(one.get(a, 0.0) - two.get(a, 0.0)) < NEAR for a in {*one, *two})


def compare(expected: Transcript, got: Transcript, where: str) -> None:
    """Raise at the first difference between two plays of the same moves."""
    for turn, (one, two) in enumerate(zip_longest(expected[0], got[0])):
        if one != two:
            raise GameError(
                f"{where}, move {turn} differs: {_shown(two)} instead of {_shown(one)}; every draw "
                "must come from the generator that `start` receives, all state lie in the game"
            )
    if expected[1] != got[1]:
        raise GameError(f"{where}, it ends with {got[1]} instead of {expected[1]}")


def _shown(step: Step | None) -> str:
    if step is None:
        return "the end"
    return f"{step.observation.text!r} then {step.action!r} paying {dict(step.rewards)}"
