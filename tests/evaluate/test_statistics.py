"""Intervals: values worked by hand, coverage, and the cases that a plain bootstrap gets wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.evaluate.statistics import (
    Interval,
    bootstrap_correlation,
    bootstrap_mean,
    paired_difference,
    verdict,
    wilson,
)


def test_wilson_worked():
    # p = 8/10, z = 1.959964, z² = 3.841459
    # centre = (0.8 + 3.841459/20) / 1.3841459 = 0.992073/1.3841459 = 0.716740
    # half = 1.959964 √(0.16/10 + 3.841459/400) / 1.3841459 = 1.959964·0.160011/1.3841459 = 0.226577
    interval = wilson(0.8, 10)
    assert interval.value == 0.8
    assert interval.low == pytest.approx(0.490163, abs=1e-5)
    assert interval.high == pytest.approx(0.943317, abs=1e-5)


def test_wilson_of_none_and_all():
    # p = 0: low = 0, high = (z²/n)/(1 + z²/n) = z²/(n + z²) = 3.841459/13.841459 = 0.277533
    none, every = wilson(0.0, 10), wilson(1.0, 10)
    assert none.low == pytest.approx(0.0, abs=1e-12)
    assert none.high == pytest.approx(0.277533, abs=1e-6)
    assert every.low == pytest.approx(1 - 0.277533, abs=1e-6)
    assert every.high == pytest.approx(1.0, abs=1e-12)


def test_wilson_moves_with_its_bounds():
    share, chips = wilson(0.75, 12), wilson(1.0, 12, bounds=(-2.0, 2.0))
    assert chips.low == pytest.approx(-2 + 4 * share.low)
    assert chips.high == pytest.approx(-2 + 4 * share.high)


@given(st.integers(1, 300), st.integers(0, 300), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_holds_its_mean_and_stays_inside(n, wins, level):
    interval = wilson(min(wins, n) / n, n, level=level)
    assert 0 <= interval.low <= interval.value <= interval.high <= 1


def test_wilson_covers():
    # Exact coverage at n = 40, p = 0.3, summed over the binomial: near 95 %, not a simulation.
    n, p = 40, 0.3
    weight, covered = (1 - p) ** n, 0.0
    for wins in range(n + 1):
        interval = wilson(wins / n, n)
        covered += weight * (interval.low <= p <= interval.high)
        weight *= (n - wins) / (wins + 1) * p / (1 - p)
    assert 0.93 < covered < 0.98


def test_bootstrap_is_near_the_normal_interval_and_repeats():
    values = np.random.default_rng(0).normal(2.0, 1.0, size=400)
    interval = bootstrap_mean(values, seed=3)
    error = values.std() / np.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    assert bootstrap_mean(values, seed=3) == interval
    assert bootstrap_mean(values, seed=4) != interval


def test_bootstrap_of_two_values_worked():
    # The resampled mean of {0, 1} is 0, 1/2, 1 with 1/4, 1/2, 1/4, so the 2.5 % point is 0.
    interval = bootstrap_mean([0.0, 1.0], seed=0)
    assert (interval.value, interval.low, interval.high, interval.n) == (0.5, 0.0, 1.0, 2)


def test_ten_wins_prove_no_certainty():
    assert bootstrap_mean([1.0] * 10, seed=0, bounds=(0, 1)).low == pytest.approx(
        0.722467, abs=1e-5
    )
    assert bootstrap_mean([1.0] * 10, seed=0).low == 1.0


def test_bootstrap_covers():
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(300):
        interval = bootstrap_mean(rng.exponential(size=60), seed=trial, resamples=400)
        hits += interval.low <= 1.0 <= interval.high
    assert 0.88 <= hits / 300 <= 0.98


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(1)
    deal = rng.normal(0, 10, size=100)
    second = deal + rng.normal(0, 0.1, size=100)
    first = deal + 0.5 + rng.normal(0, 0.1, size=100)
    difference = paired_difference(first, second, seed=0)
    assert difference.low < 0.5 < difference.high
    assert difference.high - difference.low < 0.1
    apart = bootstrap_mean(first, seed=0)
    assert apart.high - apart.low > 3.0


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.1, 0.3, "new is better than old: +0.200 [+0.100, +0.300], 50 pairs, 95% interval"),
        (-0.3, -0.1, "old is better than new: -0.200 [-0.300, -0.100], 50 pairs, 95% interval"),
        (-0.1, 0.2, "no difference found between new and old: +0.050 [-0.100, +0.200], 50 pairs, "
         "95% interval"),
        (0.0, 0.2, "no difference found between new and old: +0.100 [+0.000, +0.200], 50 pairs, "
         "95% interval"),
    ],
)  # fmt: skip
def test_verdict(low, high, words):
    assert verdict(Interval((low + high) / 2, low, high, 50), "new", "old") == words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wilson(0.5, 0), "at least 1 unit, got 0"),
        (lambda: wilson(1.5, 3), "got 1.5"),
        (lambda: wilson(0.5, 3, level=95), "level must be inside"),
        (lambda: bootstrap_mean([1.0], seed=0), "at least 2 units"),
        (lambda: bootstrap_mean([1.0, np.nan], seed=0), "finite, got nan"),
        (lambda: paired_difference([1.0, 2.0], [1.0], seed=0), "got 2 and 1"),
    ],
)
def test_bad_input_says_what_to_do(call, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        call()


def paired_units(seed=0, units=100, size=5, share=0.6):
    """Pairs with correlation `share`, in units that move both up and down together."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=units * size)
    y = share * x + np.sqrt(1 - share**2) * rng.normal(size=units * size)
    return x, y, np.repeat(np.arange(units), size)


def test_correlation_worked_and_as_numpy_has_it():
    # x̄ = 2, ȳ = 2: (1·0 + 0·1 + 1·1) / √(2·2) = 1/2 with y = 2, 1, 3.
    worked = bootstrap_correlation(
        np.array([1.0, 2, 3]), np.array([2.0, 1, 3]), np.array([0, 1, 2]), seed=0
    )
    assert worked.value == pytest.approx(0.5)
    x, y, unit = paired_units()
    found = bootstrap_correlation(x, y, unit, seed=0)
    assert found.value == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.n == 100
    error = (1 - 0.36) / np.sqrt(500)  # of independent pairs
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.25)


def test_correlation_within_units_knows_nothing_of_differences_between_them():
    x, y, unit = paired_units()
    apart = 10.0 * np.random.default_rng(1).normal(size=100)[unit]
    within = bootstrap_correlation(x, y, unit, seed=0, within=True)
    moved = bootstrap_correlation(x + apart, y - apart, unit, seed=0, within=True)
    assert moved.value == pytest.approx(within.value)
    assert within.value == pytest.approx(0.6, abs=0.1)
    assert bootstrap_correlation(x + apart, y - apart, unit, seed=0).value < -0.9


def test_correlation_of_what_does_not_vary_is_none():
    x, _, unit = paired_units()
    flat = bootstrap_correlation(np.full(500, 0.1), x, unit, seed=0)
    assert (flat.value, flat.low, flat.high) == (0, 0, 0)
    assert bootstrap_correlation(x, x, unit, seed=0).low == pytest.approx(1)


@pytest.mark.parametrize(
    ("x", "unit", "words"),
    [
        ([1.0, 2.0], [0, 0], "at least 2 units"),
        ([1.0, np.nan], [0, 1], "finite"),
        ([1.0], [0, 1], "one length"),
    ],
)
def test_correlations_that_cannot_be(x, unit, words):
    with pytest.raises(ConfigError, match=words):
        bootstrap_correlation(np.array(x), np.array(x), np.array(unit), seed=0)
