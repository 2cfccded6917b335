"""GAE over tokens, also as MT-PPO: worked values, what must not leak, and its extremes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.gae_token import TokenGAE
from marl_llm.credit.mt_ppo import MTPPO
from marl_llm.credit.returns import to_go_tokens
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Token after token from each agent's last one."""
    gamma, lam = estimator.gamma, estimator.lam
    advantage, value = np.zeros(len(batch.logprobs)), batch.signals["token_value"]
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        behind = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        paid, carry = 0.0, 0.0
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            paid += batch.reward[k]
            for t in range(batch.offsets[k + 1] - 1, batch.offsets[k] - 1, -1):
                carry = paid + gamma * behind - value[t] + gamma * lam * carry
                advantage[t], behind, paid = carry, value[t], 0.0
    return advantage


PLAIN = {"gae_token": plain, "mt_ppo": plain}


def ended(batch):
    return replace(
        batch,
        terminated=batch.terminated | batch.truncated,
        truncated=np.zeros(len(batch), dtype=bool),
    )


def test_worked_values(make_batch):
    # δ = .1, .2, .2; A_3 = .2, A_2 = .2 + .95*.2 = .39, A_1 = .1 + .95*.39 = .4705.
    batch = make_batch([1], lengths=[3], signals={"token_value": [0.5, 0.6, 0.8]})
    got = TokenGAE(lam=0.95).estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.4705, 0.39, 0.2])
    np.testing.assert_allclose(got.targets, [0.9705, 0.99, 1.0])


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        # δ = .6 - .5, .2 + .7 - .6, .8 - .7, 1 - .8 = .1, .3, .1, .2. Back from the end: .2;
        # .1 + .19 = .29; .3 + .2755 = .5755; .1 + .546725 = .646725.
        (0.95, [0.646725, 0.5755, 0.29, 0.2]),
        (1.0, [0.7, 0.6, 0.3, 0.2]),
    ],
)
def test_turn_rewards_lie_on_the_last_tokens(make_batch, lam, expected):
    signals = {"token_value": [0.5, 0.6, 0.7, 0.8]}
    batch = make_batch([0.2, 1], episode=[0, 0], lengths=[2, 2], signals=signals)
    np.testing.assert_allclose(MTPPO(lam=lam).estimate(batch).advantage, expected)


def test_other_agents_words_do_not_exist(make_batch):
    # δ = .2, .1, .2, .3 at λ .9: .3; .2 + .27 = .47; .1 + .423 = .523; .2 + .4707 = .6707. The 9
    # between the two turns neither leaks in nor costs a step of decay.
    batch = make_batch(
        [0, 0, 1],
        episode=[0, 0, 0],
        agent=[0, 1, 0],
        lengths=[2, 1, 2],
        signals={"token_value": [0.2, 0.4, 9, 0.5, 0.7]},
    )
    got = TokenGAE(lam=0.9).estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.6707, 0.523, -9, 0.47, 0.3])
    np.testing.assert_allclose(got.targets, [0.8707, 0.923, 0, 0.97, 1], atol=1e-12)


def test_the_reward_of_a_silent_turn_is_not_lost(make_batch):
    # The forfeit of -1 lies on the last token that was sampled: δ = 0, -1 - 0.
    signals = {"token_value": [0, 0]}
    batch = make_batch([0, -1], episode=[0, 0], lengths=[2, 0], signals=signals)
    assert TokenGAE(lam=0.5).estimate(batch).advantage.tolist() == [-0.5, -1]


def test_an_episode_cut_short_goes_on_in_value(make_batch):
    # γ .5: δ = .5*2 - 1 = 0 where V goes on; 0 - 1 where the episode ended. The values of the next
    # episode, 100, stay there.
    signals = {"token_value": [1, 1, 100], "value_next": [77, 2, 77]}
    batch = make_batch([0, 0, 0], signals=signals, truncated=[1])
    assert TokenGAE(gamma=0.5).estimate(batch).advantage.tolist() == [-1, 0, -100]


def test_a_missing_bootstrap_is_named(make_batch):
    batch = make_batch([0, 0], signals={"token_value": [1, 1]}, truncated=[1])
    with pytest.raises(EpisodeError, match=r"turn 0 of episode 1.*'value_next'"):
        TokenGAE().estimate(batch)
    # Not to be had is as bad as not attached; where the episode ended, nobody asks.
    there = batch.with_signals({"value_next": np.array([np.nan, 0.5])})
    assert TokenGAE().estimate(there).advantage.tolist() == [-1, -0.5]
    with pytest.raises(EpisodeError, match=r"turn 0 of episode 1.*'value_next'"):
        TokenGAE().estimate(batch.with_signals({"value_next": np.array([0.5, np.nan])}))


def test_token_rewards_are_added_if_asked(make_batch):
    signals = {"token_value": [0, 0], "token_reward": [0.5, 0.25]}
    batch = make_batch([1], lengths=[2], signals=signals)
    assert TokenGAE().estimate(batch).advantage.tolist() == [1, 1]
    assert TokenGAE(token_rewards=True).estimate(batch).advantage.tolist() == [1.75, 1.25]


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_it_equals_the_loop(random_batch, seed, gamma, lam):
    batch = random_batch(np.random.default_rng(seed), silent=0.3)
    estimator = TokenGAE(gamma=gamma, lam=lam)
    got, expected = estimator.estimate(batch), plain(estimator, batch)
    np.testing.assert_allclose(got.advantage, expected, atol=1e-12)
    np.testing.assert_allclose(got.targets, expected + batch.signals["token_value"], atol=1e-12)


@LAW
@given(SEEDS)
def test_extremes_of_lambda(random_batch, seed):
    batch = ended(random_batch(np.random.default_rng(seed)))
    value = batch.signals["token_value"]
    to_go = to_go_tokens(batch.reward, batch.offsets, batch.agents(), 0.9)
    full = TokenGAE(gamma=0.9, lam=1.0).estimate(batch)
    np.testing.assert_allclose(full.advantage, to_go - value, atol=1e-9)
    np.testing.assert_allclose(full.targets, to_go, atol=1e-9)
    # The sum of the undiscounted one-step errors telescopes to return minus the first value.
    error = TokenGAE(lam=0.0).estimate(batch).advantage
    whole = TokenGAE(lam=1.0).estimate(batch).advantage
    agent = np.repeat(batch.agents().of, batch.lengths)
    for one in np.unique(agent):
        first = whole[agent == one][0]  # rows of an agent stand in playing order here
        assert error[agent == one].sum() == pytest.approx(first, abs=1e-9)


@LAW
@given(SEEDS)
def test_with_one_token_per_turn_it_is_gae_over_turns(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    n = len(batch)
    value = {"value": rng.normal(size=n), "value_next": batch.signals["value_next"]}
    short = replace(
        batch,
        offsets=np.arange(n + 1),
        logprobs=np.zeros(n),
        signals=value | {"token_value": value["value"]},
    )
    got = TokenGAE(gamma=0.9, lam=0.8).estimate(short)
    expected = GAE(gamma=0.9, lam=0.8).estimate(short)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)
    np.testing.assert_allclose(got.targets, expected.targets, atol=1e-12)


@LAW
@given(SEEDS)
def test_a_perfect_critic_leaves_nothing(random_batch, seed):
    batch = ended(random_batch(np.random.default_rng(seed)))
    to_go = to_go_tokens(batch.reward, batch.offsets, batch.agents())
    seen = replace(batch, signals={"token_value": to_go})
    np.testing.assert_allclose(TokenGAE(lam=0.7).estimate(seen).advantage, 0, atol=1e-12)


def test_targets_come_before_the_whitening(random_batch):
    batch = random_batch(np.random.default_rng(0))
    raw, white = TokenGAE().estimate(batch), TokenGAE(whiten=True).estimate(batch)
    assert raw.targets.tobytes() == white.targets.tobytes()
    assert white.advantage.mean() == pytest.approx(0, abs=1e-12)
    assert white.advantage.var(ddof=1) == pytest.approx(1)
    np.testing.assert_allclose(sum(white.components.values()), white.advantage, atol=1e-12)


@pytest.mark.parametrize("whiten", [False, True])
def test_memory_is_a_few_columns(random_batch, whiten):
    # Turns of very unequal lengths, which padding would blow up; copies would be counted too.
    batch = random_batch(np.random.default_rng(0), silent=0.0)
    lengths = np.arange(len(batch)) * 50
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    rng = np.random.default_rng(1)
    value = {"token_value": rng.normal(size=offsets[-1]), "value_next": np.zeros(len(batch))}
    long = replace(batch, offsets=offsets, logprobs=np.zeros(offsets[-1]), signals=value)
    tracemalloc.start()
    try:
        TokenGAE(whiten=whiten).estimate(long)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * long.logprobs.nbytes


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TokenGAE, {"lam": 1.2}, r"gae_token.lam must be in"),
        (TokenGAE, {"gamma": float("nan")}, r"gae_token.gamma"),
        (TokenGAE, {"ddof": 3}, r"gae_token.ddof"),
        (MTPPO, {"lam": -0.1}, r"mt_ppo.lam must be in"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
