"""VAPO: λ by length, and targets that the critic cannot bend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae_token import TokenGAE
from marl_llm.credit.returns import to_go_tokens
from marl_llm.credit.vapo import VAPO, adaptive_lambda
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Every agent by itself: its own λ, then token after token from its last one."""
    lengths = batch.lengths
    advantage, value = np.zeros(len(batch.logprobs)), batch.signals["token_value"]
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        behind = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        length = sum(lengths[mine])
        lam = max(0.0, 1 - 1 / (estimator.alpha * length)) if length else 0.0
        paid, carry = 0.0, 0.0
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            paid += batch.reward[k]
            for t in range(batch.offsets[k + 1] - 1, batch.offsets[k] - 1, -1):
                carry = paid + behind - value[t] + lam * carry
                advantage[t], behind, paid = carry, value[t], 0.0
    return advantage


PLAIN = {"vapo": plain}


def test_lambda_by_length():
    # 1 - 1/(.05 * 40) = .5; 1 - 1/5 = .8; 1 - 1/50 = .98; at 20 tokens 0, and below it no less.
    got = adaptive_lambda(np.array([40, 100, 1000, 20, 5, 0]), 0.05)
    np.testing.assert_allclose(got, [0.5, 0.8, 0.98, 0, 0, 0])


def test_worked_values(make_batch):
    # Four tokens in two turns, α .5: λ = 1 - 1/2 = .5. δ = 0, 0, 0, .5 gives .0625, .125, .25, .5;
    # the targets are the return whatever V says.
    signals = {"token_value": [0.5] * 4}
    batch = make_batch([0, 1], episode=[0, 0], lengths=[3, 1], signals=signals)
    got = VAPO(alpha=0.5).estimate(batch)
    assert got.advantage.tolist() == [0.0625, 0.125, 0.25, 0.5]
    assert got.targets.tolist() == [1, 1, 1, 1]


@LAW
@given(SEEDS, st.floats(0.05, 2))
def test_it_equals_the_loop(random_batch, seed, alpha):
    batch = random_batch(np.random.default_rng(seed), silent=0.3)
    estimator = VAPO(alpha=alpha)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_targets_are_the_returns_whatever_the_critic_says(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = replace(
        batch,
        terminated=batch.terminated | batch.truncated,
        truncated=np.zeros(len(batch), dtype=bool),
    )
    to_go = to_go_tokens(batch.reward, batch.offsets, batch.agents())
    np.testing.assert_allclose(VAPO().estimate(batch).targets, to_go, atol=1e-9)


@LAW
@given(SEEDS)
def test_without_its_ideas_it_is_gae_over_tokens(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    # A share that covers everything is λ = 1; one that covers nothing is λ = 0.
    for alpha, lam in ((1e12, 1.0), (1e-9, 0.0)):
        got = VAPO(alpha=alpha, lam_critic=lam).estimate(batch)
        expected = TokenGAE(lam=lam).estimate(batch)
        np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-9)
        np.testing.assert_allclose(got.targets, expected.targets, atol=1e-9)


@LAW
@given(st.lists(st.integers(1, 10**6), min_size=2), st.floats(0.001, 10))
def test_longer_responses_look_further(lengths, alpha):
    lam = adaptive_lambda(np.sort(lengths), alpha)
    assert np.all(np.diff(lam) >= 0)
    assert np.all((lam >= 0) & (lam < 1))


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"vapo.alpha must be finite and >="):
        VAPO(alpha=0.0)
    with pytest.raises(ConfigError, match=r"vapo.lam_critic"):
        VAPO(lam_critic=2.0)
