"""Bifurcations: of T turns only some matter, and how much is known in closed form.

BIF(T, B, p, rule): at each turn of B the agent chooses well with probability p or badly; all other
turns are nuisance, with actions that do nothing. The rule makes one outcome of the K = |B| choices:
all good (AND), one good (OR), at least m (THRESH), a weighted sum (ADD), an even number of bad ones
(PARITY), or any other table of 2^K outcomes. With probability `flip` the outcome R becomes 1 - R.

    V after k choices,  A_t = V(after) - V(before),  0 at nuisance turns,  Σ_t A_t = E[R|end] - V_0

A sign-preserving rule cannot be right here: with AND, p = .5 and choices (good, bad), the credits
are +.25 and -.5 in one failed episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import comb

import numpy as np

from marl_llm.credit.segments import Array
from marl_llm.credit.truth.process import Choice, Decision, Process, expand
from marl_llm.errors import ConfigError

Rule = Callable[[tuple[int, ...]], float]  # choices (1 = good), in the order of turns -> outcome


def all_good(choices: tuple[int, ...]) -> float:
    """AND."""
    return float(all(choices))


def any_good(choices: tuple[int, ...]) -> float:
    """OR: two turns buy the same thing, and the second gets nothing for it."""
    return float(any(choices))


def at_least(least: int) -> Rule:
    """THRESH: at least so many good choices."""
    return lambda choices: float(sum(choices) >= least)


def weighted(weights: Sequence[float]) -> Rule:
    """ADD: the sum of the weights of good choices."""
    return lambda choices: float(np.dot(weights, choices))


def even_bad(choices: tuple[int, ...]) -> float:
    """PARITY: an even number of bad choices."""
    return float((len(choices) - sum(choices)) % 2 == 0)


def threshold_value(left: int, missing: int, p: float, flip: float = 0.0) -> float:
    """Expected outcome of THRESH; AND and OR are special cases.

        V = (1 - 2η) · Σ_{j ≥ max(0, m-c)}^{n} C(n, j) p^j (1-p)^(n-j) + η

    Args:
        left: n, choices still to come.
        missing: m - c, good ones still needed; 0 or less = won already.
        p: probability of a good choice.
        flip: η, probability that the outcome is turned round.
    """
    chance = sum(
        comb(left, j) * p**j * (1 - p) ** (left - j) for j in range(max(0, missing), left + 1)
    )
    return (1 - 2 * flip) * chance + flip


def additive_value(earned: float, coming: float, p: float, flip: float = 0.0) -> float:
    """Expected outcome of ADD.

        V = (1 - 2η) · (w_earned + p · w_coming) + η

    Args:
        earned: sum of the weights of good choices made.
        coming: sum of the weights still to be decided.
        p: probability of a good choice.
        flip: η, probability that the outcome is turned round.
    """
    return (1 - 2 * flip) * (earned + p * coming) + flip


def parity_value(left: int, bad: int, p: float, flip: float = 0.0) -> float:
    """Expected outcome of PARITY.

        V = (1 - 2η) · ½ [1 + (-1)^bad · (2p-1)^n] + η,   with (2p-1)^0 = 1 also at p = ½

    Args:
        left: n, choices still to come.
        bad: bad choices made.
        p: probability of a good choice.
        flip: η, probability that the outcome is turned round.
    """
    even = 0.5 * (1 + (-1) ** bad * (2 * p - 1) ** left)
    return (1 - 2 * flip) * even + flip


def outcomes(rule: Rule, count: int) -> Array:
    """The rule as a table, [2, 2, ...] with one axis per choice."""
    table = np.empty((2,) * count)
    for choices in product((0, 1), repeat=count):
        table[choices] = rule(choices)
    return table


def bifurcations(
    rule: Rule,
    *,
    turns: int = 8,
    at: Sequence[int] = (2, 5),
    p: float | Sequence[float] = 0.5,
    flip: float = 0.0,
    nuisance: int = 3,
    owner: Callable[[int], str] = lambda turn: "solver",
    default: float = 0.0,
    name: str = "bifurcations",
) -> Process:
    """The family as a process.

    Choices that leave the same outcomes open lead to the same state, which the agent can tell: with
    AND, all that came after a bad choice.

    Args:
        rule: the outcome.
        turns: T.
        at: B, the turns that matter, ascending.
        p: probability of a good choice, one for all or one for each.
        flip: η, probability that the outcome is turned round.
        nuisance: equivalent actions of the other turns.
        owner: the agent of each turn; agents have a role each, of their own name.
        default: probability of a good choice when the agent is replaced.
        name: how to call it.

    Raises:
        ConfigError: turns out of range or order, or probabilities outside [0, 1].
    """
    places = tuple(at)
    if not places or list(places) != sorted({t for t in places if 0 <= t < turns}):
        raise ConfigError(f"{name}: at must be ascending turns below {turns}, got {places}")
    good = (p,) * len(places) if isinstance(p, int | float) else tuple(p)
    if len(good) != len(places) or not all(0 <= x <= 1 for x in (*good, flip, default)):
        raise ConfigError(
            f"{name}: one probability in [0, 1] for all of {len(places)} turns or one for each is "
            f"needed, got p={p}, flip={flip}, default={default}"
        )
    table = outcomes(rule, len(places))
    state_of = _merged(table)
    agents = {owner(turn): owner(turn) for turn in range(turns)}

    def decide(state: tuple[int, tuple[int, ...]]) -> Decision:
        turn, made = state
        matters = turn in places
        count = 2 if matters else nuisance
        chance = (1 - good[len(made)], good[len(made)]) if matters else (1 / count,) * count
        stand_in = (1 - default, default) if matters else chance

        def then(action: int) -> tuple[tuple[float, float, object], ...]:
            choices = state_of[(*made, action)] if matters else made
            if turn + 1 < turns:
                return ((1.0, 0.0, (turn + 1, choices)),)
            value = float(table[choices])
            ends = ((1 - flip, value, None), (flip, 1 - value, None))
            return ends if flip else ends[:1]

        choices = tuple(Choice(x, then(action)) for action, x in enumerate(chance))
        return Decision(agent=owner(turn), choices=choices, knob=turn, default=stand_in)

    return expand(name, {(0, ()): 1.0}, decide, agents=agents)  # type: ignore[arg-type]


def _merged(table: Array) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For all choices made so far, the first ones after which the same outcomes are open."""
    first: dict[tuple[int, bytes], tuple[int, ...]] = {}
    return {
        made: first.setdefault((k, table[made].tobytes()), made)
        for k in range(table.ndim + 1)
        for made in product((0, 1), repeat=k)
    }
