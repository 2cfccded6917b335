"""DN-MOPD: teachers whose feedback differs in spread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dn_mopd import DNMOPD, domain_weights
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
GAP = np.array([0.1, -0.1, 0.2, -0.2, 1, -1, 0.5, -0.5])


def advantage(batch, **options):
    return DNMOPD(**options).estimate(batch).advantage


@pytest.fixture
def two(make_batch):
    """Two roles of four tokens, whose teachers differ in spread; sampled at -.5 nats."""
    return make_batch(
        [0, 0], role=[0, 1], lengths=[4, 4],
        signals={"teacher_logprob": GAP - 0.5, "old_logprob": np.full(8, -0.5)},
    )  # fmt: skip


def plain(estimator, batch):
    """The formula, role by role."""
    role = np.repeat(batch.role, batch.lengths)
    teacher = batch.signals["teacher_logprob"]
    gap, feedback = teacher - batch.logprobs, teacher - batch.signals["old_logprob"]
    out = feedback.copy()
    for domain in np.unique(role):
        mine = role == domain
        if mine.sum() > 1 and gap[mine].std() > 0:
            weight = gap.std() / gap[mine].std()
            out[mine] *= min(max(weight, estimator.low), estimator.high)
    return out


PLAIN = {"dn_mopd": plain}


def test_worked_values(two):
    # Squares .01 + .01 + .04 + .04 = .1, over 4: σ = .158114; 2.5 over 4: .790569; 2.6 over 8:
    # .570088. w = 3.605551 and .721110.
    w = np.repeat([3.605551, 0.721110], 4)
    np.testing.assert_allclose(advantage(two), w * GAP, atol=1e-6)
    assert DNMOPD().estimate(two).stats["clipped_domains"] == 0


def test_the_spread_is_against_the_sampler_and_the_feedback_against_the_old_policy(two):
    # The old policy liked all tokens .3 nats more than the sampler did: the weights stay.
    moved = two.with_signals({"old_logprob": np.full(8, -0.2)})
    w = np.repeat([3.605551, 0.721110], 4)
    np.testing.assert_allclose(advantage(moved), w * (GAP - 0.3), atol=1e-6)
    # A constant between teacher and sampler is no spread.
    np.testing.assert_allclose(
        advantage(replace(two, logprobs=two.logprobs - 9.0)), advantage(two), atol=1e-12
    )


def test_weights_are_clipped(two):
    credit = DNMOPD(high=2.0, low=0.9).estimate(two)
    np.testing.assert_allclose(credit.advantage, np.repeat([2.0, 0.9], 4) * GAP)
    assert credit.stats["clipped_domains"] == 2


def test_domains_without_a_spread_are_left_as_they_are():
    # Domain 0 says the same of both tokens, domain 1 has one token, domain 2 none.
    gap, domain = np.array([0.3, 0.3, 5.0]), np.array([0, 0, 1])
    assert domain_weights(gap, domain, 3, 0.25, 4.0).tolist() == [1, 1, 1]
    assert domain_weights(np.zeros(0), np.zeros(0, dtype=int), 0, 0.25, 4.0).shape == (0,)
    # Not even by limits that 1 is outside of.
    assert domain_weights(gap, domain, 3, 2.0, 4.0).tolist() == [1, 1, 1]


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    np.testing.assert_allclose(advantage(batch), plain(DNMOPD(), batch), atol=1e-9)


@LAW
@given(SEEDS, st.floats(0.5, 2))
def test_within_the_limits_every_role_is_as_loud(random_batch, seed, factor):
    """A teacher whose log-ratios are k times as large is divided by k."""
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    role = np.repeat(batch.role, batch.lengths)
    teacher = batch.signals["teacher_logprob"]
    loud = np.where(role == 1, batch.logprobs + factor * (teacher - batch.logprobs), teacher)
    batch = batch.with_signals({"teacher_logprob": loud, "old_logprob": batch.logprobs})
    got = advantage(batch, low=0.0, high=1e9)
    whole = (loud - batch.logprobs).std()
    for each in np.unique(role):
        assert got[role == each].std() == pytest.approx(whole)


@LAW
@given(SEEDS)
def test_one_domain_is_plain_distillation(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    expected = batch.signals["teacher_logprob"] - batch.signals["old_logprob"]
    np.testing.assert_allclose(advantage(batch, by=()), expected, atol=1e-12)
    np.testing.assert_allclose(advantage(batch, low=1.0, high=1.0), expected, atol=1e-12)


def test_a_teacher_that_agrees_says_nothing(two):
    agreed = two.with_signals({"teacher_logprob": two.signals["old_logprob"]})
    assert not advantage(replace(agreed, reward=np.array([5.0, -5.0]))).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": ("roles",)}, "did you mean 'role'"),
        ({"low": 5.0}, r"dn_mopd\.low is 5\.0, above dn_mopd\.high, 4\.0"),
        ({"high": float("inf")}, r"dn_mopd\.high"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        DNMOPD(**options)
