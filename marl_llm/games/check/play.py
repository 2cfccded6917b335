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
from marl_llm.games.delegation import Call, Delegation
from marl_llm.games.text_game import TextGame
from marl_llm.seeds import generator
from marl_llm.types import FORFEITS, Move, Observation, Outcome

NEAR = 1e-6  # rewards closer than this are equal
FAULTS = sorted(FORFEITS)
_POSITIONS = 40  # that are played on in several ways

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
        if game.actions and not game.legal(agent):
            raise GameError(
                f"{agent} is to move and has no legal action ({seen.text!r}); end the game there "
                "or give it a pass"
            )
        action = any_action(game, agent, rng)
        game.act(agent, Move(action))
        if game.acting() and game.outcomes():
            raise GameError(
                f"{action!r} by {agent} leaves outcomes {dict(game.outcomes())} while "
                f"{', '.join(game.acting())} must still move; give outcomes when the game is over"
            )
        yield Step(seen, action, dict(game.take_rewards()))


def any_action(game: TextGame, agent: str, rng: np.random.Generator) -> str:
    """Any action that an agent who is to move may take."""
    if not game.actions and type(game).sample is TextGame.sample:
        raise NotApplicable("its actions are free text, and it has no `sample` to make them up")
    return game.sample(agent, rng)


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
    call = game.call_of(agent) if isinstance(game, Delegation) else None
    game.act(agent, Move(action))
    asked_again = agent in game.acting() or Outcome.TRUNCATED in game.outcomes().values()
    if asked_again and call is None and game.observation(agent).key == key:
        return False
    for other in others:
        if other in game.acting():
            game.act(other, Move(any_action(game, other, generator(0, "others"))))
    ended = game.outcomes().get(agent) if call is None else call.ended
    return ended is not Outcome.ILLEGAL


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


def the_call(game: Delegation, agent: str) -> Call:
    """The call that an agent who is to move works on."""
    call = game.call_of(agent)
    if call is None:
        raise GameError(f"{agent} is to move and was never called; leave `movers` to Delegation")
    return call


def lively(game: Delegation, seed: int, faults: float = 0.0) -> Iterator[tuple[int, str, Move]]:
    """(turn, agent, move) of a play, each in front of the move; then the game stands at its end."""
    game.reset(seed)
    rng, solves = generator(seed, "lively"), type(game).solve is not Delegation.solve
    for turn in range(game.max_turns):
        if not (waiting := game.acting()):
            return
        agent = waiting[0]
        action = any_action(game, agent, rng)
        if solves and rng.random() < 0.5:
            best = game.solve(the_call(game, agent), rng)
            action = best if game.accepts(agent, best) else action
        move = Move(action)
        if rng.random() < faults:
            move = Move(None, FAULTS[int(rng.integers(len(FAULTS)))])
        yield turn, agent, move
        game.act(agent, move)


def rounds(game: Delegation, trial: Trial) -> list[tuple[int, Line]]:
    """(seed, moves so far) in front of rounds of lively plays, about `_POSITIONS` of them."""
    found: list[tuple[int, Line]] = []
    for seed in range(max(len(trial.seeds), 10)):
        line: list[tuple[str, str]] = []
        left = 0  # moves of the round that are still to come
        for _, agent, move in lively(game, seed):
            if not left:
                left = len(game.acting())
                found.append((seed, list(line)))
            line.append((agent, move.action or ""))
            left -= 1
    return found[:: max(1, len(found) // _POSITIONS)]


def _shown(step: Step | None) -> str:
    if step is None:
        return "the end"
    return f"{step.observation.text!r} then {step.action!r} paying {dict(step.rewards)}"
