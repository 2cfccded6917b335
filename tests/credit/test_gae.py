"""GAE over turns: worked values, ends of episodes, and its two extremes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.mars import Mars
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def chain(make_batch, reward, value, **more):
    return make_batch(reward, episode=[0] * len(reward), signals={"value": value}, **more)


def plain(estimator, batch):
    """Turn by turn from each agent's last one."""
    gamma, lam, value = estimator.gamma, estimator.lam, batch.signals["value"]
    ahead, out = {}, np.zeros(len(batch))
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        if me not in ahead:
            ahead[me] = (batch.signals["value_next"][i] if batch.truncated[i] else 0.0), 0.0
        behind, later = ahead[me]
        out[i] = batch.reward[i] + gamma * behind - value[i] + gamma * lam * later
        ahead[me] = value[i], out[i]
    return np.where(batch.lengths > 0, out, 0.0)


PLAIN = {"gae": plain}


def test_worked_values(make_batch):
    # δ = .1, .2, .2; A_3 = .2, A_2 = .2 + .95*.2 = .39, A_1 = .1 + .95*.39 = .4705.
    batch = chain(make_batch, [0, 0, 1], [0.5, 0.6, 0.8])
    got = GAE(gamma=1.0, lam=0.95).estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.4705, 0.39, 0.2])
    np.testing.assert_allclose(got.targets, [0.9705, 0.99, 1.0])


def test_both_discounts(make_batch):
    # γ .5, λ .5: δ_2 = 8 - 4 = 4, δ_1 = 1 + .5*4 - 2 = 1; A_1 = 1 + .25*4 = 2.
    batch = chain(make_batch, [1, 8], [2, 4])
    assert GAE(gamma=0.5, lam=0.5).estimate(batch).advantage.tolist() == [2, 4]


def test_other_agents_turns_do_not_exist(make_batch):
    # δ = .2, .1, .2, .3 at λ .9: .3; .2 + .27 = .47; .1 + .423 = .523; .2 + .4707 = .6707. The
    # other agent's value of 9 in the middle neither leaks in nor costs a step of decay.
    batch = make_batch(
        [0, 0, 0, 0, 1],
        episode=[0] * 5,
        agent=[0, 0, 1, 0, 0],
        signals={"value": [0.2, 0.4, 9, 0.5, 0.7]},
    )
    got = GAE(gamma=1.0, lam=0.9).estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.6707, 0.523, -9, 0.47, 0.3])
    np.testing.assert_allclose(got.targets, [0.8707, 0.923, 0, 0.97, 1])


def test_an_episode_cut_short_goes_on_in_value(make_batch):
    # The second episode was cut: δ = 0 + 2 - 1 = 1 instead of -1; value_next is read there only.
    signals = {"value": [1, 1], "value_next": [77, 2]}
    batch = make_batch([0, 0], signals=signals, truncated=[1])
    assert GAE().estimate(batch).advantage.tolist() == [-1, 1]


def test_a_missing_bootstrap_is_named(make_batch):
    batch = make_batch([0, 0], signals={"value": [1, 1]}, truncated=[1])
    with pytest.raises(EpisodeError, match=r"turn 0 of episode 1.*'value_next'"):
        GAE().estimate(batch)
    # An agent who left before the end is as unfinished.
    left = replace(batch, truncated=np.zeros(2, dtype=bool))
    with pytest.raises(EpisodeError, match="value_next"):
        GAE().estimate(left)


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_it_equals_the_loop(random_batch, seed, gamma, lam):
    batch = random_batch(np.random.default_rng(seed))
    estimator = GAE(gamma=gamma, lam=lam)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_extremes_of_lambda(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    ended = replace(
        batch,
        terminated=batch.terminated | batch.truncated,
        truncated=np.zeros(len(batch), dtype=bool),
    )
    to_go = Mars().estimate(ended).components["return"]
    value = ended.signals["value"]
    # λ = 1: return minus V, and targets are the returns; with V = 0 the return to go itself.
    full = GAE(lam=1.0).estimate(ended)
    np.testing.assert_allclose(full.advantage, to_go - value, atol=1e-9)
    np.testing.assert_allclose(full.targets, to_go, atol=1e-9)
    blind = replace(ended, signals={"value": np.zeros(len(batch))})
    np.testing.assert_allclose(GAE(lam=1.0).estimate(blind).advantage, to_go, atol=1e-9)
    # λ = 0: the one-step error.
    agents = ended.agents()
    following = np.append(value[agents.order][1:], 0)[np.argsort(agents.order)]
    error = ended.reward + 0.9 * np.where(agents.after > 0, following, 0) - value
    got = GAE(gamma=0.9, lam=0.0).estimate(ended)
    np.testing.assert_allclose(got.advantage, error, atol=1e-9)


@LAW
@given(SEEDS)
def test_a_perfect_critic_leaves_nothing(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    ended = replace(batch, terminated=batch.terminated | batch.truncated)
    to_go = Mars().estimate(ended).components["return"]
    got = GAE(lam=0.7).estimate(replace(ended, signals={"value": to_go}))
    np.testing.assert_allclose(got.advantage, 0, atol=1e-12)


def test_whitening_leaves_the_targets(random_batch):
    batch = random_batch(np.random.default_rng(0))
    plain, white = GAE().estimate(batch), GAE(whiten=True).estimate(batch)
    np.testing.assert_array_equal(plain.targets, white.targets)
    tokens = np.repeat(white.advantage, batch.lengths)
    assert tokens.mean() == pytest.approx(0, abs=1e-12)
    assert tokens.var(ddof=1) == pytest.approx(1)


def test_a_value_over_tokens_is_refused(make_batch):
    batch = make_batch([0, 0], lengths=[2, 3], signals={"value": [0] * 5})
    with pytest.raises(EpisodeError, match="'value' has 5 values; one per turn is needed, 2"):
        GAE().estimate(batch)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"gae.lam must be in"):
        GAE(lam=1.2)
    with pytest.raises(ConfigError, match=r"gae.gamma"):
        GAE(gamma=float("inf"))
