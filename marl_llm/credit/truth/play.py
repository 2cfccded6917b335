"""Playing a process: many episodes at once, again with the same luck, or on from a stored turn.

Everything that is drawn hangs on uniform numbers, the **luck** of an episode, so that a replay with
one action drawn anew, a group with a common schedule of events, and a tree whose episodes share a
trunk are the same play with other luck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from marl_llm.credit.segments import Array
from marl_llm.credit.truth.process import Process
from marl_llm.errors import ConfigError

MAX_PATHS = 2_000_000


@dataclass(frozen=True, slots=True)
class Luck:
    """The uniform numbers in [0, 1) of E episodes of at most T turns."""

    start: Array  # [E]
    action: Array  # [E, T]
    chance: Array  # [E, T]


def draw_luck(process: Process, rng: np.random.Generator, episodes: int) -> Luck:
    """Luck of its own for each episode."""
    shape = (episodes, len(process.layers))
    return Luck(rng.random(episodes), rng.random(shape), rng.random(shape))


@dataclass(frozen=True, slots=True)
class Play:
    """What happened in E episodes of at most T turns; an episode that is over has state -1."""

    state: Array  # [E, T] int
    action: Array  # [E, T] int
    branch: Array  # [E, T] int: which of the things that may follow did
    pay: Array  # [E, T, P]
    probability: Array | None = None  # [E] of each episode, where all of them are listed


def play(process: Process, luck: Luck) -> Play:
    """Episodes of the process's own policy.

    Args:
        process: the tables.
        luck: of E episodes.
    """
    shape = luck.action.shape
    state, action, branch = (np.full(shape, -1) for _ in range(3))
    pay = np.zeros((*shape, process.pay.shape[-1]))
    begun = _draw(np.broadcast_to(process.start, (shape[0], len(process))), luck.start)
    for turn, step in enumerate(steps(process, begun, luck)):
        rows = step.rows
        state[rows, turn], action[rows, turn] = step.state, step.action
        branch[rows, turn], pay[rows, turn] = step.branch, step.pay
    return Play(state, action, branch, pay)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the episodes that are not over."""

    rows: Array  # [R] int: which
    state: Array  # [R] int
    action: Array  # [R] int
    branch: Array  # [R] int
    pay: Array  # [R, P]


def steps(
    process: Process, state: Array, luck: Luck, policy: Array | None = None
) -> Iterator[Step]:
    """Plays on, turn by turn, until everybody is done.

    Args:
        process: the tables.
        state: where each episode stands, [E] int; S = at the end.
        luck: of the turns to come.
        policy: [S, A], in place of the process's own.
    """
    policy = process.policy if policy is None else policy
    state = state.copy()
    for turn in range(luck.action.shape[1]):
        rows = np.flatnonzero(state < len(process))
        if not len(rows):
            return
        at = state[rows]
        action = _draw(policy[at], luck.action[rows, turn])
        branch = _draw(process.chance[at, action], luck.chance[rows, turn])
        state[rows] = process.after[at, action, branch]
        yield Step(rows, at, action, branch, process.pay[at, action, branch])


def _draw(chances: Array, uniform: Array) -> Array:
    """A number by its probability, [R] int; what has probability 0 is never drawn.

    Args:
        chances: [R, K], rows sum to 1 but for rounding.
        uniform: in [0, 1), [R].
    """
    below = np.cumsum(chances, axis=1)
    below[below > 1 - 1e-9] = 1.0  # so that rounding never leads past the last possible one
    return np.sum(uniform[:, None] >= below, axis=1)


def paid(
    process: Process, state: Array, luck: Luck, agent: Array, policy: Array | None = None
) -> Array:
    """What agents are paid when play goes on from given states, [E].

    Args:
        process: the tables.
        state: where each episode stands, [E] int.
        luck: of the turns to come.
        agent: whose pay, [E] int.
        policy: [S, A], in place of the process's own.
    """
    total, column = np.zeros(len(state)), process.payee(agent)
    for step in steps(process, state, luck, policy):
        total[step.rows] += step.pay[np.arange(len(step.rows)), column[step.rows]]
    return total


def all_plays(process: Process) -> Play:
    """Every possible episode once, with its probability.

    Args:
        process: the tables.

    Raises:
        ConfigError: there are more than `MAX_PATHS`.
    """
    length = len(process.layers)
    state = np.flatnonzero(process.start > 0)
    probability = process.start[state]
    empty = np.full((len(state), length), -1)
    parts = [empty, empty, empty, np.zeros((len(state), length, process.pay.shape[-1]))]
    for turn in range(length):
        live, over = np.flatnonzero(state < len(process)), np.flatnonzero(state == len(process))
        each = process.policy[state[live], :, None] * process.chance[state[live]]
        row, action, branch = np.nonzero(each > 0)
        at = state[live[row]]
        parts = [x[np.concatenate((over, live[row]))] for x in parts]
        for x, new in zip(
            parts, (at, action, branch, process.pay[at, action, branch]), strict=True
        ):
            x[len(over) :, turn] = new
        probability = np.concatenate((
            probability[over], probability[live[row]] * each[row, action, branch]
        ))  # fmt: skip
        state = np.concatenate((state[over], process.after[at, action, branch]))
        if len(state) > MAX_PATHS:
            raise ConfigError(f"{process.name} has more than {MAX_PATHS:,} episodes; sample them")
    states, actions, branches, pay = parts
    return Play(states, actions, branches, pay, probability)
