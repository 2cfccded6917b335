"""The test whether chance alone brought an event."""

from __future__ import annotations

import numpy as np

from marl_llm.credit.turnover import event_depends_on_action


def drawn(rng, n, depends):
    """States 0 and 1; both actions and events lean to the state's number, and to each other."""
    state = rng.integers(0, 2, n)
    action = rng.random(n) < 0.2 + 0.6 * state
    event = rng.random(n) < 0.2 + 0.4 * state + depends * action
    return event.astype(np.int64), action.astype(np.int64), state


def test_chance_is_told_from_what_an_action_brought_about():
    rng = np.random.default_rng(0)
    event, action, state = drawn(rng, 400, depends=0.3)
    assert event_depends_on_action(event, action, state, rng, permutations=199) == 1 / 200
    # A common cause is no part in it: only states that are alike are compared.
    event, action, state = drawn(rng, 400, depends=0.0)
    assert event_depends_on_action(event, action, state, rng, permutations=199) > 0.05
    everywhere = np.zeros_like(state)
    assert event_depends_on_action(event, action, everywhere, rng, permutations=199) == 1 / 200


def test_false_alarms_are_as_rare_as_the_p_value_says():
    rng = np.random.default_rng(1)
    p = np.array([
        event_depends_on_action(*drawn(rng, 60, depends=0.0), rng, permutations=39)
        for _ in range(100)
    ])  # fmt: skip
    # 10 of 100 are expected at most, with a standard deviation of 3.
    assert np.sum(p <= 0.1) <= 19
    assert np.sum(p <= 0.5) >= 25


def test_nothing_to_tell():
    rng = np.random.default_rng(0)
    none = np.zeros(0, dtype=np.int64)
    assert event_depends_on_action(none, none, none, rng) == 1
    once = np.arange(5)
    assert event_depends_on_action(once % 2, once, once, rng, permutations=9) == 1
