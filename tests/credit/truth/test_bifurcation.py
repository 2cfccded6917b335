"""Bifurcations: closed forms against enumeration and against the solved process."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from marl_llm.credit.truth.bifurcation import (
    additive_value,
    all_good,
    any_good,
    at_least,
    bifurcations,
    even_bad,
    parity_value,
    threshold_value,
    weighted,
)
from marl_llm.credit.truth.play import all_plays
from marl_llm.credit.truth.process import solve
from marl_llm.errors import ConfigError

WEIGHTS = (0.5, 0.2, 0.2, 0.1)


def plain(rule, made, count, p, flip):
    """Expected outcome after some choices, summed over all that may follow."""
    total = 0.0
    for rest in product((0, 1), repeat=count - len(made)):
        chance = np.prod([p if x else 1 - p for x in rest])
        outcome = rule((*made, *rest))
        total += chance * ((1 - flip) * outcome + flip * (1 - outcome))
    return total


def prefixes(count):
    return [made for k in range(count + 1) for made in product((0, 1), repeat=k)]


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("flip", [0.0, 0.2])
def test_closed_forms_are_sums_over_all_choices(p, flip):
    count = 4
    for made in prefixes(count):
        left, good = count - len(made), sum(made)
        for least in range(count + 1):
            assert threshold_value(left, least - good, p, flip) == pytest.approx(
                plain(at_least(least), made, count, p, flip)
            )
        earned = float(np.dot(WEIGHTS[: len(made)], made))
        assert additive_value(earned, sum(WEIGHTS[len(made) :]), p, flip) == pytest.approx(
            plain(weighted(WEIGHTS), made, count, p, flip)
        )
        assert parity_value(left, len(made) - good, p, flip) == pytest.approx(
            plain(even_bad, made, count, p, flip)
        )


def test_worked_values():
    # At least 2 of 4, p ½, a fifth turned round: P = 11/16, .6 · .6875 + .2 = .6125. After a good
    # choice at least 1 of 3: P = 7/8, .6 · .875 + .2 = .725.
    assert threshold_value(4, 2, 0.5, 0.2) == pytest.approx(0.6125)
    assert threshold_value(3, 1, 0.5, 0.2) == pytest.approx(0.725)
    # ½ (1 + .4²) = .58.
    assert parity_value(2, 0, 0.7) == pytest.approx(0.58)
    assert parity_value(0, 0, 0.5) == 1
    assert parity_value(0, 1, 0.5) == 0


@pytest.mark.parametrize(
    ("rule", "count"),
    [(all_good, 2), (any_good, 2), (at_least(2), 4), (weighted(WEIGHTS), 4), (even_bad, 3)],
)
@pytest.mark.parametrize("flip", [0.0, 0.2])
def test_the_process_has_the_values_of_the_closed_forms(rule, count, flip):
    places = range(1, 2 * count, 2)
    process = bifurcations(rule, turns=2 * count + 1, at=places, p=0.3, flip=flip)
    solution = solve(process)
    for number, (turn, made) in enumerate(process.states):
        assert len(made) == sum(place < turn for place in places)
        expected = plain(rule, made, count, 0.3, flip)
        assert solution.value[number] == pytest.approx(expected)
        if turn not in places:  # nuisance: not nearly, but exactly
            assert not solution.advantage[number].any()
            assert not solution.decisive[number]
        for action in (0, 1) if turn in places else ():
            gain = plain(rule, (*made, action), count, 0.3, flip) - expected
            assert solution.advantage[number, action] == pytest.approx(gain, abs=1e-12)


def test_credits_of_an_episode_sum_to_what_it_came_to():
    process = bifurcations(at_least(2), turns=5, at=(0, 1, 3), p=(0.3, 0.5, 0.8), flip=0.2)
    solution = solve(process)
    plays = all_plays(process)
    assert plays.probability.sum() == pytest.approx(1)
    credit = solution.advantage[plays.state, plays.action].sum(axis=1)
    last = solution.action_value[plays.state[:, -1], plays.action[:, -1]]
    np.testing.assert_allclose(credit, last - solution.values[0, 0])
    assert plays.probability @ credit == pytest.approx(0)


@pytest.mark.parametrize(
    ("rule", "choices", "expected"),
    [
        # AND: V is ¼, then ½, then 0. The first choice of a failed episode deserves credit.
        (all_good, (1, 0), (0.25, -0.5)),
        # OR: V is ¾, then ½, then 1.
        (any_good, (0, 1), (-0.25, 0.5)),
        (any_good, (1, 1), (0.25, 0.0)),
    ],
)
def test_signs_within_an_episode(rule, choices, expected):
    process = bifurcations(rule, turns=2, at=(0, 1))
    solution = solve(process)
    state = process.find(0, (0, ()))
    for action, credit in zip(choices, expected, strict=True):
        assert solution.advantage[state, action] == pytest.approx(credit)
        state = int(process.after[state, action, 0])


def test_weights_of_both_signs_against_a_threshold():
    """Four turns push by ±2, ±1, ∓1 and ±1; the outcome is whether they come to 2 or more."""
    weights = np.array([2, 1, -1, 1])

    def enough(choices):
        return float(weights @ (2 * np.array(choices) - 1) >= 2)

    process = bifurcations(enough, turns=4, at=range(4))
    solution = solve(process)
    # After +2 the rest must come to 0 or more, 4 of 8 ways; after -2 it cannot. Then -1: the other
    # two must be +1, 1 of 4; then +1: 1 of 2; then +1.
    assert solution.values[0, 0] == pytest.approx(0.25)
    state = process.find(0, (0, ()))
    for action, credit in zip((1, 0, 0, 1), (0.25, -0.25, 0.25, 0.5), strict=True):
        assert solution.advantage[state, action] == pytest.approx(credit)
        state = int(process.after[state, action, 0])


def test_choices_that_leave_the_same_open_are_one_state():
    # Before, good, bad; and after two: won, or lost, in whatever way.
    process = bifurcations(all_good, turns=3, at=(0, 1))
    assert [layer.stop - layer.start for layer in process.layers] == [1, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": (5, 2)}, "ascending turns below 8"),
        ({"at": (2, 8)}, "ascending turns below 8"),
        ({"p": 1.5}, r"one probability in \[0, 1\]"),
        ({"p": (0.5,)}, "for all of 2 turns or one for each"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        bifurcations(all_good, **options)
