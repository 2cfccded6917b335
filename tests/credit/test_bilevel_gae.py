"""Bi-level GAE: both levels by hand, turns without reward, and the methods that it contains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.bilevel_gae import BilevelGAE
from marl_llm.credit.gae import GAE
from marl_llm.credit.gae_token import TokenGAE
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
VALUES = {"token_value": [0.1, 0.2, 0.3, 0.4, 0.5]}


def plain(estimator, batch):
    """Turn after turn from each agent's last one; in each, token after token from its last one."""
    lengths = batch.lengths
    gamma, gamma_high, lam = estimator.gamma, estimator.gamma_high, estimator.lam
    advantage, value = np.zeros(len(batch.logprobs)), batch.signals["token_value"]
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        behind = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        paid, high = 0.0, 0.0
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            paid += batch.reward[k]
            if not lengths[k]:
                continue
            last = batch.offsets[k + 1] - 1
            high = paid + gamma_high * behind - value[last] + gamma_high * lam * high
            advantage[last], behind, paid = high, value[last], 0.0
            for t in range(last - 1, batch.offsets[k] - 1, -1):
                error = gamma * value[t + 1] - value[t]
                advantage[t] = error + gamma * lam * advantage[t + 1]
    return advantage


PLAIN = {"bilevel_gae": plain}


def test_worked_values(make_batch):
    # Γ .95: the last turn ends with 1 - .5 = .5, the first with 1 + .95*.5 - .3 + .95*.5 = 1.65.
    # Inside, every token adds the .1 by which V rises: 1.85, 1.75, 1.65 and .6, .5.
    batch = make_batch([1, 1], episode=[0, 0], lengths=[3, 2], signals=VALUES)
    got = BilevelGAE().estimate(batch)
    np.testing.assert_allclose(got.advantage, [1.85, 1.75, 1.65, 0.6, 0.5])
    np.testing.assert_allclose(got.targets, [1.95, 1.95, 1.95, 1, 1])


def test_a_turn_without_reward_is_still_a_turn(make_batch):
    # 0 + .95*.5 - .3 + .95*.5 = .65 at its end. Found by its reward, it would have melted into the
    # last turn, and got .9, .8, .7.
    batch = make_batch([0, 1], episode=[0, 0], lengths=[3, 2], signals=VALUES)
    got = BilevelGAE().estimate(batch).advantage
    np.testing.assert_allclose(got, [0.85, 0.75, 0.65, 0.6, 0.5])
    melted = make_batch([1], lengths=[5], signals=VALUES)
    np.testing.assert_allclose(BilevelGAE().estimate(melted).advantage, [0.9, 0.8, 0.7, 0.6, 0.5])


def test_a_last_turn_without_reward_ends_the_episode(make_batch):
    batch = make_batch([1, 0], episode=[0, 0], lengths=[3, 2], signals=VALUES)
    # The last turn ends with -.5, the first with 1 + .95*.5 - .3 - .95*.5 = .7.
    got = BilevelGAE().estimate(batch).advantage
    np.testing.assert_allclose(got, [0.9, 0.8, 0.7, -0.4, -0.5])


def test_a_silent_turn_is_skipped_and_its_reward_kept(make_batch):
    silent = make_batch([0.25, 0.75, 1], episode=[0] * 3, lengths=[3, 0, 2], signals=VALUES)
    got = BilevelGAE(lam=0.9).estimate(silent).advantage
    heard = make_batch([1, 1], episode=[0, 0], lengths=[3, 2], signals=VALUES)
    np.testing.assert_allclose(got, BilevelGAE(lam=0.9).estimate(heard).advantage)


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_it_equals_the_loop(random_batch, seed, gamma, gamma_high, lam):
    batch = random_batch(np.random.default_rng(seed), silent=0.3)
    estimator = BilevelGAE(gamma=gamma, gamma_high=gamma_high, lam=lam)
    got, expected = estimator.estimate(batch), plain(estimator, batch)
    np.testing.assert_allclose(got.advantage, expected, atol=1e-12)
    np.testing.assert_allclose(got.targets, expected + batch.signals["token_value"], atol=1e-12)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_with_one_turn_there_is_one_level(random_batch, seed, gamma_high):
    batch = random_batch(np.random.default_rng(seed), max_turns=1)
    ended = replace(
        batch,
        terminated=np.ones(len(batch), dtype=bool),
        truncated=np.zeros(len(batch), dtype=bool),
    )
    got = BilevelGAE(gamma=0.9, gamma_high=gamma_high, lam=0.8).estimate(ended)
    expected = TokenGAE(gamma=0.9, lam=0.8).estimate(ended)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_undiscounted_the_levels_are_one_recursion(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = BilevelGAE(gamma=1.0, gamma_high=1.0, lam=1.0).estimate(batch)
    expected = TokenGAE(gamma=1.0, lam=1.0).estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-9)


@LAW
@given(SEEDS)
def test_with_one_token_per_turn_it_is_gae_over_turns(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    n = len(batch)
    value = batch.signals["value"]
    short = replace(
        batch,
        offsets=np.arange(n + 1),
        logprobs=np.zeros(n),
        signals={"value": value, "token_value": value, "value_next": batch.signals["value_next"]},
    )
    got = BilevelGAE(gamma=0.3, gamma_high=0.9, lam=0.8).estimate(short)
    expected = GAE(gamma=0.9, lam=0.8).estimate(short)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)


def test_targets_come_before_the_whitening(random_batch):
    batch = random_batch(np.random.default_rng(0))
    raw, white = BilevelGAE().estimate(batch), BilevelGAE(whiten=True).estimate(batch)
    assert raw.targets.tobytes() == white.targets.tobytes()
    assert white.advantage.var(ddof=1) == pytest.approx(1)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"bilevel_gae.gamma_high must be in"):
        BilevelGAE(gamma_high=1.5)
