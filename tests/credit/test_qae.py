"""QAE: the gate that a quantile makes, and how interpolation opens it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.baselines import Pool
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.qae import QAE, quantiles
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
BOTH = pytest.mark.parametrize("interpolation", ["inverted_cdf", "linear"])


def advantage(batch, **options):
    return QAE(**options).estimate(batch).advantage


def plain(estimator, batch):
    """The formula, group by group and agent by agent."""
    lengths = batch.lengths
    out = np.zeros(len(batch))
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            mine = (batch.group == group) & (batch.agent == agent)
            earned = {}
            for episode in np.unique(batch.episode[mine]):
                rows = mine & (batch.episode == episode)
                if lengths[rows].sum():
                    earned[episode] = batch.reward[rows].sum()
            values = list(earned.values())
            if len(values) < 2 or np.ptp(values) == 0:
                continue
            middle = np.quantile(values, estimator.level, method=estimator.interpolation)
            for episode, value in earned.items():
                rows = mine & (batch.episode == episode) & (lengths > 0)
                out[rows] = (value - middle) / (np.std(values, ddof=1) + 1e-6)
    return out


PLAIN = {"qae": plain}


@pytest.mark.parametrize(
    ("reward", "interpolation", "expected"),
    [
        # n = 8, p = 5/8: mean .625, squares 8 * .625 * .375 = 1.875, std √(1.875/7) = .517549. The
        # 4th of 0 0 0 1 1 1 1 1 is 1: a zero gets -1/.517550.
        ([0, 0, 0, 1, 1, 1, 1, 1], "inverted_cdf", [-1.932180] * 3 + [0] * 5),
        # Place .4 * 7 = 2.8, between a 0 and a 1: .8. Both are non-zero: the gate leaks.
        ([0, 0, 0, 1, 1, 1, 1, 1], "linear", [-1.545744] * 3 + [0.386436] * 5),
        # n = 4, p = 1/2: std √(1/3) = .577350; the 2nd of 0 0 1 1 is 0; 1/.577351.
        ([1, 0, 0, 1], "inverted_cdf", [1.732048, 0, 0, 1.732048]),
        # Place 1.2: .2; .8/.577351 and -.2/.577351.
        ([1, 0, 0, 1], "linear", [1.385638, -0.346410, -0.346410, 1.385638]),
        # p = 1/8: squares 7/8, std √(1/8) = .353553; 1/.353554. And the mirror image.
        ([1, 0, 0, 0, 0, 0, 0, 0], "inverted_cdf", [2.828419] + [0] * 7),
        ([0, 1, 1, 1, 1, 1, 1, 1], "inverted_cdf", [-2.828419] + [0] * 7),
    ],
)
def test_worked_values(make_batch, reward, interpolation, expected):
    got = advantage(make_batch(reward), interpolation=interpolation)
    np.testing.assert_allclose(got, expected, atol=5e-7)


@pytest.mark.parametrize("level", [0.2, 0.4, 0.6])
def test_the_gate_is_exact_for_every_share_of_successes(make_batch, level):
    for n in range(2, 16):
        for wins in range(1, n):
            got = advantage(make_batch([1] * wins + [0] * (n - wins)), level=level)
            hard = wins <= n * (1 - level) + 1e-9  # p ≤ 1 - K
            assert np.all(got[:wins] > 0) == hard, (n, wins)
            assert np.all(got[wins:] < 0) == (not hard), (n, wins)
            assert not got[wins:].any() if hard else not got[:wins].any(), (n, wins)


def test_interpolation_opens_the_gate(make_batch):
    """The published code, whose quantile lies between a 0 and a 1, pays and charges both."""
    assert np.all(advantage(make_batch([0] * 3 + [1] * 5), interpolation="linear") != 0)


def test_rounding_does_not_take_the_next_value():
    # 20 * .55 is 11.000000000000002, and the 11th of 0..19 is 10.
    pool = Pool(np.zeros(20, dtype=int), np.ones(20), np.array([20.0]))
    assert quantiles(np.arange(20.0)[::-1], pool, 0.55, "inverted_cdf").tolist() == [10]


@BOTH
def test_who_is_not_counted_and_empty_cells(interpolation):
    # Cell 0: 5 and 1, the 9 is not counted; cell 1: nobody; cell 2: 7 alone.
    x, cell = np.array([9.0, 5, 1, 3, 7]), np.array([0, 0, 0, 1, 2])
    pool = Pool(cell, np.array([0.0, 1, 1, 0, 1]), np.array([2.0, 0, 1]))
    got = quantiles(x, pool, 0.5, interpolation)
    assert got.tolist() == [1.0 if interpolation == "inverted_cdf" else 3.0, 0, 7]


@BOTH
@LAW
@given(SEEDS, st.sampled_from([0.15, 0.4, 0.5, 0.85]))
def test_it_equals_the_loop(random_batch, interpolation, seed, level):
    batch = random_batch(np.random.default_rng(seed))
    estimator = QAE(level=level, interpolation=interpolation)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_a_level_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    np.testing.assert_allclose(
        advantage(batch, level=None), GRPO().estimate(batch).advantage, atol=1e-12
    )


def test_equal_rewards_give_exact_zeros(make_batch):
    assert not advantage(make_batch([0.1] * 10)).any()


def test_alone_can_stay_raw(f1):
    assert advantage(f1, singleton="raw")[-1] == pytest.approx(2.0 / 1.000001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, "qae.level must be above 0 and below 1, got 1.0; null takes the mean"),
        ({"interpolation": "lower"}, "qae.interpolation has no option 'lower'"),
        ({"unit": "token"}, "qae.unit"),
        ({"epsilon": -1}, "qae.epsilon"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        QAE(**options)
