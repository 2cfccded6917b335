"""REINFORCE++ and its baseline form, against worked values and a loop over tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.batch import per_token
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Token by token from each agent's last one, then one mean and one variance."""
    lengths = batch.lengths
    to_go, ahead = np.zeros(len(batch.logprobs)), {}
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        paid, later = batch.reward[i], ahead.get(me, 0.0)
        if not lengths[i]:
            ahead[me] = paid + later
        for t in range(batch.offsets[i + 1] - 1, batch.offsets[i] - 1, -1):
            to_go[t] = paid + later
            paid, later = 0.0, estimator.gamma * to_go[t]
            ahead[me] = later
    return plain_white(estimator, to_go, to_go)


def plain_baseline(estimator, batch):
    """Agent by agent, then one mean and one variance over the tokens; "subtract" only."""
    lengths = batch.lengths
    centred = plain_outcome(batch, scale=False)
    tokens = [centred[i] for i in range(len(batch)) for _ in range(lengths[i])]
    return np.where(lengths > 0, plain_white(estimator, centred, tokens), 0.0)


def plain_white(estimator, x, tokens):
    if len(tokens) <= estimator.ddof:
        return np.zeros(len(x))
    mean = sum(tokens) / len(tokens)
    variance = sum((value - mean) ** 2 for value in tokens) / (len(tokens) - estimator.ddof)
    return np.array([(value - mean) / (variance + estimator.epsilon) ** 0.5 for value in x])


PLAIN = {"reinforce_pp": plain, "reinforce_pp_baseline": plain_baseline}


def test_worked_values(f1):
    # 15 tokens: sum 1 + 3 + .5*2 + .5*3 + 2 = 8.5, mean .566667; squares 4 + .25*5 + 4 = 9.25, less
    # 15 * .566667² = 4.816667, over 14: .316667. (1 - .566667)/√.316667 = .770054.
    got = ReinforcePP().estimate(f1).advantage
    rows = [0.770054, -1.006993, -1.006993, 0.770054, -0.118470, -0.118470, 2.547100]
    np.testing.assert_allclose(got, np.repeat(rows, f1.lengths), atol=1e-6)


@pytest.mark.parametrize(
    ("shift_mean", "expected"),
    [
        # x = ±.5 in group a, else 0: mean (.5 - 1.5 - 1 + 1.5)/15 = -.033333, variance .159524;
        # a group without signal gets .033333/√.159524 = .083458.
        ("subtract", [1.335322, -1.168407, -1.168407, 1.335322, 0.083458, 0.083458, 0.083458]),
        # Less .033333: the .050124 that masked whitening without a shift leaves.
        ("restore", [1.301988, -1.201740, -1.201740, 1.301988, 0.050124, 0.050124, 0.050124]),
        # .5/√.159524 = 1.251864.
        ("keep", [1.251864, -1.251864, -1.251864, 1.251864, 0, 0, 0]),
    ],
)
def test_worked_values_with_a_baseline(f1, shift_mean, expected):
    got = ReinforcePPBaseline(shift_mean=shift_mean).estimate(f1).advantage
    np.testing.assert_allclose(got, expected, atol=2e-6)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_it_equals_the_loop(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed), silent=0.3)
    for estimator, slow in (
        (ReinforcePP(gamma=gamma), plain),
        (ReinforcePPBaseline(), plain_baseline),
    ):
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, slow(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS, st.sampled_from([0, 1]))
def test_tokens_have_mean_zero_and_variance_one(random_batch, seed, ddof):
    batch = random_batch(np.random.default_rng(seed))
    for estimator in (ReinforcePP(ddof=ddof, gamma=0.9), ReinforcePPBaseline(ddof=ddof)):
        got = per_token(estimator.estimate(batch), batch)
        assert got.mean() == pytest.approx(0, abs=1e-9)
        assert got.var(ddof=ddof) == pytest.approx(1, abs=1e-5)


@LAW
@given(SEEDS)
def test_undiscounted_tokens_of_a_turn_agree(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = ReinforcePP().estimate(batch).advantage
    first = np.repeat(got[batch.offsets[:-1]], batch.lengths)
    np.testing.assert_allclose(got, first, atol=1e-12)


@LAW
@given(SEEDS)
def test_the_baseline_form_is_dr_grpo_in_other_units(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    centred = DrGRPO().estimate(batch).advantage
    spread = np.repeat(centred, batch.lengths).std(ddof=1)
    got = ReinforcePPBaseline(shift_mean="keep", epsilon=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, centred / spread, atol=1e-9)


def test_equal_rewards_give_exact_zeros(make_batch):
    batch = make_batch([0.1] * 10, lengths=range(1, 11))
    for estimator in (ReinforcePP(), ReinforcePPBaseline()):
        assert not estimator.estimate(batch).advantage.any()


def test_a_batch_of_one_token_is_no_error(make_batch):
    assert ReinforcePP().estimate(make_batch([3.0])).advantage.tolist() == [0]


def test_alone_can_stay_raw(f1):
    # x of the row alone is 2 instead of 0.
    parts = ReinforcePPBaseline(singleton="raw").estimate(f1).components
    centred = parts["return"] + parts["baseline"]
    assert centred.tolist() == [0.5, -0.5, -0.5, 0.5, 0, 0, 2]


def test_a_discount_favours_the_last_tokens(make_batch):
    batch = make_batch([1.0, 0.0], lengths=[3, 1])
    got = ReinforcePP(gamma=0.5, ddof=0, epsilon=0.0).estimate(batch).advantage
    # G = .25, .5, 1 and 0: mean .4375, squares .0625 + .25 + 1 - 4 * .4375² = .546875, over 4.
    np.testing.assert_allclose(got, (np.array([0.25, 0.5, 1, 0]) - 0.4375) / np.sqrt(0.546875 / 4))


def test_longer_replies_weigh_more(f1):
    longer = replace(f1, offsets=f1.offsets + np.array([0] + [10] * 7), logprobs=np.zeros(25))
    before, after = (ReinforcePP().estimate(b).advantage for b in (f1, longer))
    # Ten more tokens on a row of return 1 pull the mean up: the tokens of a row of 0 fall.
    assert after[11] < before[1]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ReinforcePP, {"gamma": 1.1}, "reinforce_pp.gamma must be in"),
        (ReinforcePP, {"ddof": 2}, "reinforce_pp.ddof"),
        (ReinforcePPBaseline, {"shift_mean": False}, "shift_mean has no option False"),
        (ReinforcePPBaseline, {"by": ("role", "grup")}, "did you mean 'group'"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
