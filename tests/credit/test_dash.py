"""DASH, two readings: segments signed by where they lead, and factors that keep signs and mass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.dash import DashFactorReading, DashReading, drift_weight, tokens_past
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
SIGNED = {"a_plus": 1.0, "a_minus": 0.5, "growth": 0.25, "w_max": 1.5}


def traces(batch):
    """The tokens of each agent in each episode, in playing order."""
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            rows = rows[np.argsort(batch.agent_turn[rows])]
            spans = [np.arange(batch.offsets[i], batch.offsets[i + 1]) for i in rows]
            yield np.concatenate([*spans, np.zeros(0, dtype=int)])


def plain(estimator, batch):
    """The signed form, by a walk along each trace."""
    base = np.repeat(plain_outcome(batch), batch.lengths)
    out = np.zeros(len(base))
    for trace in traces(batch):
        past = 0
        for t in trace:
            label = batch.signals["commitment"][t]
            if label > 0:
                out[t], past = abs(base[t]) * estimator.a_plus, 0
                continue
            weight = min(1 + estimator.growth * past, estimator.w_max)
            out[t] = -abs(base[t]) * estimator.a_minus * weight if label < 0 else base[t]
            past += 1
    return out


def plain_factors(estimator, batch):
    """The form that keeps the mass, by a sum over each trace."""
    base = np.repeat(plain_outcome(batch), batch.lengths)
    k, out = estimator.k, np.zeros(len(base))
    for trace in traces(batch):
        u = [1 + k * batch.signals["commitment"][t] * np.sign(base[t]) for t in trace]
        total = sum(u)
        for t, share in zip(trace, u, strict=True):
            out[t] = base[t] * share * len(trace) / total
    return out


PLAIN = {"dash_reading": plain, "dash_factor_reading": plain_factors}


def test_signed_worked_value():
    # A = .8: three good tokens +.8; then -.4 · min(1 + .25 n, 1.5): n = 0, 1, 2, 3.
    commitment = np.array([1, 1, 1, -1, -1, -1, -1])
    past = tokens_past(commitment, np.array([0, 7]))
    assert past.tolist() == [-1, -1, -1, 0, 1, 2, 3]
    weight = drift_weight(past[3:], 0.25, 1.5)
    np.testing.assert_allclose(-0.8 * 0.5 * weight, [-0.4, -0.5, -0.6, -0.6])


def test_good_steps_of_a_lost_episode_are_praised(make_batch):
    # Two episodes, A = ±1/√2; the lost one was right for two tokens and then drifted for two.
    batch = make_batch([0.0, 1.0], lengths=[4, 1], signals={"commitment": [1, 1, -1, -1, 0]})
    got = DashReading(**SIGNED, epsilon=0.0).estimate(batch).advantage
    a = 1 / np.sqrt(2)
    np.testing.assert_allclose(got, [a, a, -a / 2, -a * 0.625, a])


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        # 10 toward, 20 away, 10 the same, A = a: u = 1.5, .5, 1, token mean 35/40 = .875.
        (1.0, [1.5 / 0.875, 0.5 / 0.875, 1 / 0.875]),
        # A = -a: u = .5, 1.5, 1, token mean 45/40 = 1.125.
        (-1.0, [-0.5 / 1.125, -1.5 / 1.125, -1 / 1.125]),
    ],
)
def test_factors_worked_value(make_batch, reward, expected):
    batch = make_batch(
        [0.0, 0.0, reward, 0.0], episode=[0, 0, 0, 1], lengths=[10, 20, 10, 1],
        signals={"commitment": np.repeat([1, -1, 0, 0], [10, 20, 10, 1])},
    )  # fmt: skip
    got = DashFactorReading(k=0.5, epsilon=0.0).estimate(batch).advantage[[0, 10, 30]]
    np.testing.assert_allclose(got, np.array(expected) / np.sqrt(2))


def test_against_the_plain_formulas(random_batch):
    signed, factors = DashReading(**SIGNED), DashFactorReading(k=0.4)
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed))
        for estimator, slow in ((signed, plain), (factors, plain_factors)):
            got = estimator.estimate(batch).advantage
            np.testing.assert_allclose(got, slow(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS, st.floats(0, 0.99))
def test_factors_keep_sign_and_mass(random_batch, seed, k):
    batch = random_batch(np.random.default_rng(seed))
    credit = DashFactorReading(k=k).estimate(batch)
    base = credit.components["response"]
    assert np.all(credit.advantage * base >= 0)
    for trace in traces(batch):
        assert credit.advantage[trace].sum() == pytest.approx(base[trace].sum(), abs=1e-9)


@LAW
@given(SEEDS)
def test_signs_follow_the_commitment(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = DashReading(**SIGNED).estimate(batch)
    commitment = batch.signals["commitment"]
    some = (commitment != 0) & (credit.components["response"] != 0)
    assert np.all(np.sign(credit.advantage[some]) == commitment[some])


def test_no_constant_of_the_paper_is_made_up():
    with pytest.raises(TypeError, match="a_plus"):
        DashReading()
    with pytest.raises(TypeError, match="'k'"):
        DashFactorReading()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DashReading(**SIGNED | {"w_max": 0.5}), "dash_reading.w_max"),
        (lambda: DashReading(**SIGNED | {"a_minus": -1.0}), "dash_reading.a_minus"),
        (lambda: DashFactorReading(k=1.0), "dash_factor_reading.k"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
