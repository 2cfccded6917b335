"""UCAS: certainty of the reply, then of the token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.batch import per_token
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.ucas import UCAS, modulation, unit_range
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def advantage(batch, **options):
    return UCAS(**options).estimate(batch).advantage


def plain(estimator, batch):
    """The formula, cell by cell, row by row, token by token."""
    certainty, logit = batch.signals["certainty"], batch.signals["logit"]
    low, high = logit.min(), logit.max()
    out = np.zeros(len(logit))
    cells = {}
    for i in range(len(batch)):
        members = cells.setdefault((batch.group[i], batch.agent[i]), {})
        members.setdefault(batch.episode[i], []).append(i)
    for members in cells.values():
        rows = {
            episode: [t for i in turns for t in range(batch.offsets[i], batch.offsets[i + 1])]
            for episode, turns in members.items()
        }
        heard = [episode for episode in members if rows[episode]]
        earned = [sum(batch.reward[i] for i in members[episode]) for episode in heard]
        sure = [certainty[rows[episode]].sum() for episode in heard]
        for k, episode in enumerate(heard):
            a = z = 0.0
            if len(heard) > 1:
                a = (earned[k] - np.mean(earned)) / (np.std(earned, ddof=1) + estimator.epsilon)
                z = (sure[k] - np.mean(sure)) / (np.std(sure, ddof=1) + estimator.epsilon)
            a *= np.exp(-estimator.positive * z if a > 0 else estimator.negative * z)
            for t in rows[episode]:
                out[t] = a - estimator.penalty * (logit[t] - low) / (high - low)
                if a > 0:
                    out[t] = max(out[t], 0.0)
    return out


PLAIN = {"ucas": plain}


@pytest.fixture
def two(make_batch):
    """A right reply that was unsure and a wrong one that was sure, of three tokens each."""
    return make_batch(
        [1, 0],
        lengths=[3, 3],
        signals={"certainty": [2, 3, 1, 4, 4, 2], "logit": [10, 20, 15, 30, 12, 18]},
    )


def test_worked_values(two):
    # A = ±.707106. Certainty 6 and 10: z = ∓.707107; exp(.25 * .707107) = 1.193365,
    # exp(.35 * .707107) = 1.280803: .843835 and -.905663. Logits from 10 to 30: u = 0, .5, .25, 1,
    # .1, .4.
    np.testing.assert_allclose(
        advantage(two),
        [0.843835, 0.818835, 0.831335, -0.955663, -0.910663, -0.925663],
        atol=1e-6,
    )


def test_parts_of_the_formula():
    got = modulation(np.array([1.0, 1, -1, -1, 0]), np.array([2.0, -2, 2, -2, 0]), 0.25, 0.35)
    np.testing.assert_allclose(got, np.exp([-0.5, 0.5, 0.7, -0.7, 0]))
    assert unit_range(np.array([3.0, 1, 2])).tolist() == [1, 0, 0.5]
    assert unit_range(np.array([4.0, 4])).tolist() == [0.5, 0.5]
    assert unit_range(np.zeros(0)).shape == (0,)


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), groups=2)
    np.testing.assert_allclose(advantage(batch), plain(UCAS(), batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_no_sign_flips(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    before = per_token(GRPO().estimate(batch), batch)
    got = advantage(batch, penalty=5.0)
    assert np.all(got[before > 0] >= 0)
    assert np.all(got[before <= 0] <= 0)


@LAW
@given(SEEDS)
def test_switched_off_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = advantage(batch, positive=0.0, negative=0.0, penalty=0.0)
    np.testing.assert_allclose(got, per_token(GRPO().estimate(batch), batch), atol=1e-12)


def test_a_group_without_signal_still_pays_for_its_logits(make_batch):
    """Equal rewards do not give 0, by the formula: the card says so."""
    batch = make_batch([1, 1], signals={"certainty": [1, 2], "logit": [0, 4]})
    assert advantage(batch).tolist() == [0, -0.05]


def test_a_token_is_measured_against_the_whole_batch(two, make_batch):
    """The range of logits is that of all groups, so that a loud one mutes the others' penalties."""
    loud = make_batch(
        [1, 0, 0],
        group=[0, 0, 1],
        lengths=[3, 3, 1],
        signals={"certainty": [2, 3, 1, 4, 4, 2, 1], "logit": [10, 20, 15, 30, 12, 18, 1000]},
    )
    np.testing.assert_allclose(advantage(loud)[3], -0.905663 - 0.05 * 20 / 990, atol=1e-6)


def test_a_sum_favours_long_replies_and_a_mean_does_not(make_batch):
    # Equally sure at each token, 1 and 3 tokens long: z = ∓.707 of the sum, 0 of the mean.
    batch = make_batch([1, 0], lengths=[1, 3], signals={"certainty": [2] * 4, "logit": [0] * 4})
    by_sum, by_mean = (advantage(batch, certainty=how, penalty=0.0) for how in ("sum", "mean"))
    np.testing.assert_allclose(by_mean, [0.707106] + [-0.707106] * 3, atol=1e-6)
    np.testing.assert_allclose(by_sum / by_mean, np.exp([0.25 * 2**-0.5] + [0.35 * 2**-0.5] * 3))


def test_the_vocabulary_is_lost_in_no_sum(make_batch):
    # Certainty 2 against 0 over 1 and 3 tokens: z = ±.707107. With ln 10 = 2.3 more at each token
    # 4.3 against 6.9: the signs change.
    batch = make_batch(
        [1, 0], lengths=[1, 3], signals={"certainty": [2, 0, 0, 0], "logit": [0] * 4}
    )
    few, many = (advantage(batch, vocabulary=size, penalty=0.0)[0] for size in (1, 10))
    np.testing.assert_allclose([few, many], 0.707106 * np.exp([-0.176777, 0.176777]), atol=1e-6)


def test_other_agents_certainty_is_not_ones_own(two):
    silent = replace(two, reward=np.array([1.0, 1.0]))
    assert advantage(silent, penalty=0.0).tolist() == [0] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positive": -0.1}, "ucas.positive"),
        ({"penalty": float("nan")}, "ucas.penalty"),
        ({"certainty": "max"}, "ucas.certainty has no option 'max'"),
        ({"vocabulary": 0}, "ucas.vocabulary"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        UCAS(**options)
