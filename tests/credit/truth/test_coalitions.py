"""Shapley values, against the mean over all orders in which agents may join."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.truth.coalitions import shapley, tail, threshold_game


def plain(worth):
    n = len(worth).bit_length() - 1
    value, orders = np.zeros(n), list(permutations(range(n)))
    for order in orders:
        there = 0
        for agent in order:
            value[agent] += worth[there | 1 << agent] - worth[there]
            there |= 1 << agent
    return value / len(orders)


@pytest.mark.parametrize(
    ("trained", "default", "least", "expected"),
    [
        # AND of two halves: v(both) = ¼, each alone 0. Symmetric: an eighth each.
        ((0.5, 0.5), 0.0, 2, (0.125, 0.125)),
        # v(∅) = .04, v(one) = .1, v(both) = .25: .21 to share.
        ((0.5, 0.5), 0.2, 2, (0.105, 0.105)),
        ((0.9, 0.6, 0.5), 0.1, 2, (0.325333, 0.223333, 0.173333)),
    ],
)
def test_worked_values(trained, default, least, expected):
    worth = threshold_game(trained, default, least)
    np.testing.assert_allclose(shapley(worth), expected, atol=1e-6)


def test_an_agent_as_good_as_its_replacement_is_worth_nothing():
    assert shapley(threshold_game((0.9, 0.2, 0.5), 0.2, 2))[1] == pytest.approx(0, abs=1e-15)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_it_is_the_mean_over_all_orders_and_shares_out_everything(seed, n):
    worth = np.random.default_rng(seed).normal(size=2**n)
    np.testing.assert_allclose(shapley(worth), plain(worth))
    assert shapley(worth).sum() == pytest.approx(worth[-1] - worth[0])
    both = np.stack((worth, 2 * worth), axis=1)
    np.testing.assert_allclose(shapley(both), np.stack((plain(worth), 2 * plain(worth)), axis=1))


def test_the_tail_is_a_sum_over_who_succeeds():
    chances = (0.1, 0.7, 0.4)
    for least in range(5):
        expected = sum(
            np.prod([p if x else 1 - p for p, x in zip(chances, who, strict=True)])
            for who in product((0, 1), repeat=3)
            if sum(who) >= least
        )
        assert tail(chances, least) == pytest.approx(expected)
