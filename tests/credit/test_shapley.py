"""Shapley values, exact and by drawn orders, and the estimator that reads them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.shapley import (
    Shapley,
    coalitions,
    sampled_shapley_values,
    shapley_values,
)
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """Each agent's share minus the mean of its like in the group."""
    lengths = batch.lengths
    share = batch.signals["shapley_value"]
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        speak = {}
        for j in np.argsort(batch.agent_turn, kind="stable").tolist():
            if (
                lengths[j] > 0
                and batch.group[j] == batch.group[i]
                and batch.agent[j] == batch.agent[i]
            ):
                speak.setdefault(batch.episode[j], share[j])
        if lengths[i] > 0 and len(speak) > 1:
            out[i] = share[i] - np.mean(list(speak.values()))
    return out


PLAIN = {"shapley": plain}


def by_orders(worth):
    """The mean of what each agent adds, over all orders."""
    n = len(worth).bit_length() - 1
    out = np.zeros(n)
    orders = list(permutations(range(n)))
    for order in orders:
        members = 0
        for i in order:
            out[i] += worth[members | 1 << i] - worth[members]
            members |= 1 << i
    return out / len(orders)


def asked(worth):
    """Coalitions as members to the entries of a table."""
    n = len(worth).bit_length() - 1
    return lambda members: worth[members @ (1 << np.arange(n))]


# A planner, a worker, a tool: alone .2 0 0; in pairs pw .6, pt .5, wt .1; all 1.
TEAM = np.array([0, 0.2, 0, 0.6, 0, 0.5, 0.1, 1])


def test_worked_value():
    # Planner: 1/3 (.2 - 0) + 1/6 (.6 - 0) + 1/6 (.5 - 0) + 1/3 (1 - .1) = .55. Worker: 1/3 * 0
    # + 1/6 (.6 - .2) + 1/6 (.1 - 0) + 1/3 (1 - .5) = .25. Tool: the rest of 1, .2.
    np.testing.assert_allclose(shapley_values(TEAM), [0.55, 0.25, 0.2])
    assert coalitions(2).tolist() == [
        [False, False],
        [True, False],
        [False, True],
        [True, True],
    ]


@LAW
@given(SEEDS, st.integers(1, 5))
def test_against_all_orders(seed, n):
    worth = np.random.default_rng(seed).normal(size=2**n)
    np.testing.assert_allclose(shapley_values(worth), by_orders(worth), atol=1e-12)


@LAW
@given(SEEDS, st.integers(1, 6))
def test_laws_of_the_shapley_value(seed, n):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, 2**n))
    value = shapley_values(first)
    # Efficiency, additivity, and many games at once.
    assert value.sum() == pytest.approx(first[-1] - first[0])
    np.testing.assert_allclose(shapley_values(first + second), value + shapley_values(second))
    both = shapley_values(np.stack([first, second]))
    np.testing.assert_allclose(both, [value, shapley_values(second)], atol=1e-12)
    # Another agent, who changes nothing, gets nothing and takes nothing.
    np.testing.assert_allclose(shapley_values(np.tile(first, 2)), [*value, 0], atol=1e-12)
    # Two agents that do the same get the same.
    size = coalitions(n).sum(axis=1)
    np.testing.assert_allclose(shapley_values(size**2.0), np.full(n, n))


@LAW
@given(SEEDS, st.booleans())
def test_drawn_orders_add_up_and_are_unbiased(seed, mirrored):
    rng = np.random.default_rng(seed)
    worth = rng.normal(size=16)
    few = [sampled_shapley_values(asked(worth), 4, 1, rng, mirrored=mirrored) for _ in range(400)]
    np.testing.assert_allclose(np.sum(few, axis=1), worth[-1] - worth[0])
    error = 5 * np.std(few, axis=0).max() / np.sqrt(400)
    np.testing.assert_allclose(np.mean(few, axis=0), shapley_values(worth), atol=error)


def test_a_coalition_is_played_once_and_mirrors_leave_less_noise():
    seen = []

    def worth(members):
        seen.extend(map(tuple, members.tolist()))
        return members.sum(axis=1) ** 2.0

    # What agent i adds to k others is 2k + 1; an order and its mirror have k and n - 1 - k others
    # before i, so that their mean is exactly n.
    got = sampled_shapley_values(worth, 5, 3, np.random.default_rng(0))
    assert got.tolist() == [5] * 5
    assert len(seen) == len(set(seen))


def test_a_table_of_another_size_is_refused():
    for size in (3, 512):
        with pytest.raises(ConfigError, match=f"got {size} values"):
            shapley_values(np.zeros(size))


def test_shares_are_compared_within_the_group(make_batch):
    batch = make_batch([9, 9, 9], signals={"shapley_value": [0.5, 0.25, 0]})
    assert Shapley().estimate(batch).advantage.tolist() == [0.25, 0, -0.25]
    lost = batch.with_signals({"shapley_value": np.array([0.5, np.nan, 0])})
    credit = Shapley().estimate(lost)
    assert credit.advantage.tolist() == [0.25, 0, -0.25]
    assert credit.stats["missing_labels"] == 1
    lost = batch.with_signals({"shapley_value": np.array([0.75, np.nan, 0.25])})
    assert Shapley().estimate(lost).advantage.tolist() == [0.25, 0, -0.25]


@LAW
@given(SEEDS)
def test_the_whole_return_as_a_share_is_dr_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    total = DrGRPO().estimate(batch).components["return"]
    got = Shapley().estimate(batch.with_signals({"shapley_value": total})).advantage
    np.testing.assert_allclose(got, DrGRPO().estimate(batch).advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = Shapley().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(Shapley(), batch), atol=1e-12)


def test_an_agent_counts_by_the_first_turn_that_is_known(make_batch):
    # Shares 1 and 3, the former unknown at the agent's first turn: the mean is 2, not 3.
    batch = make_batch([0.0] * 3, episode=[0, 0, 1], group=[0] * 3)
    batch = batch.with_signals({"shapley_value": np.array([np.nan, 1.0, 3.0])})
    assert Shapley().estimate(batch).advantage.tolist() == [0, -1, 1]
