"""AgentPRM by temporal difference: a promise, and the progress towards it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.agentprm import AgentPRMTemporal
from marl_llm.credit.gae import GAE
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The formula, turn by turn, from each agent's last to its first."""
    lengths = batch.lengths
    promise = batch.signals["value"]
    ahead, advantage = {}, np.zeros(len(batch))
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        end = 0.0 if batch.terminated[i] else batch.signals["value_next"][i]
        then, later = ahead.get(me, (end, 0.0))
        progress = batch.reward[i] + estimator.gamma * then - promise[i]
        ahead[me] = promise[i], progress + estimator.gamma * estimator.lam * later
        if lengths[i]:
            advantage[i] = ahead[me][1]
    return advantage


PLAIN = {"agentprm_td": plain}


def test_worked_value(make_batch):
    # Progress .3, -.1, .5; A_3 = .5, A_2 = -.1 + .95·.5 = .375, A_1 = .3 + .95·.375 = .65625.
    batch = make_batch([0, 0, 1], episode=[0] * 3, signals={"value": [0.3, 0.6, 0.5]})
    credit = AgentPRMTemporal(gamma=1.0, lam=0.95).estimate(batch)
    np.testing.assert_allclose(credit.advantage, [0.65625, 0.375, 0.5])
    np.testing.assert_allclose(credit.components["progress"], [0.3, -0.1, 0.5])
    np.testing.assert_allclose(credit.targets, [0.95625, 0.975, 1.0])


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_against_a_plain_loop(random_batch, seed, gamma, lam):
    batch = random_batch(np.random.default_rng(seed))
    estimator = AgentPRMTemporal(gamma=gamma, lam=lam)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_progress_telescopes(random_batch, seed):
    """Undiscounted, an agent's progress sums to its return, what is to come, minus the promise."""
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    progress = AgentPRMTemporal(gamma=1.0).estimate(batch).components["progress"]
    agents, signals = batch.agents(), batch.signals
    first, last = agents.before == 0, agents.after == 0
    gained = batch.reward + np.where(last & ~batch.terminated, signals["value_next"], 0.0)
    gained -= np.where(first, signals["value"], 0.0)
    np.testing.assert_allclose(
        np.bincount(agents.of, progress), np.bincount(agents.of, gained), atol=1e-9
    )


@LAW
@given(SEEDS)
def test_it_is_gae_and_with_lambda_zero_progress_alone(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    for options in ({"lam": 0.7}, {"lam": 0.7, "whiten": True}):
        got = AgentPRMTemporal(**options).estimate(batch).advantage
        np.testing.assert_array_equal(got, GAE(**options).estimate(batch).advantage)
    parts = AgentPRMTemporal(lam=0.0).estimate(batch).components
    assert not parts["later"].any()


def test_a_promise_that_is_kept_gives_exactly_nothing(make_batch):
    batch = make_batch([0, 0, 1], episode=[0] * 3, signals={"value": [1, 1, 1]})
    assert not AgentPRMTemporal().estimate(batch).advantage.any()


@pytest.mark.parametrize("name", ["gamma", "lam"])
def test_bad_settings(name):
    with pytest.raises(ConfigError, match=f"agentprm_td.{name}"):
        AgentPRMTemporal(**{name: 2.0})
