"""AgentPRM by Monte Carlo: Q as a mean over visits, and the clock of its discount."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.agentprm import AgentPRMMonteCarlo
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
Q = AgentPRMMonteCarlo(centred=False)


def walks(make_batch, outcomes, turns=3):
    """Episodes that pass the same states by the same actions, and end as they do."""
    reward = np.zeros((len(outcomes), turns))
    reward[:, -1] = outcomes
    return make_batch(
        reward.ravel(),
        episode=np.repeat(np.arange(len(outcomes)), turns),
        state_key=np.tile(np.arange(turns), len(outcomes)),
    )


def acted(rng, batch, actions=2):
    """The batch with some action at every turn."""
    return replace(batch, action_key=rng.integers(0, actions, len(batch)))


def plain(estimator, batch):
    """The formula, turn by turn."""
    lengths = batch.lengths
    total, count = {}, {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
        count[me] = count.get(me, 0) + 1
    visit = []
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        t = batch.agent_turn[i]
        if estimator.clock == "end":
            t = count[me] - 1 - t
        visit.append((estimator.gamma**t * (2 * total[me] - 1) + 1) / 2)
    advantage = np.zeros(len(batch))
    for i in range(len(batch)):
        if not lengths[i]:
            continue
        here = [
            j
            for j in range(len(batch))
            if lengths[j]
            and (batch.group[j], batch.state_key[j]) == (batch.group[i], batch.state_key[i])
        ]
        same = [visit[j] for j in here if batch.action_key[j] == batch.action_key[i]]
        advantage[i] = sum(same) / len(same) - sum(visit[j] for j in here) / len(here)
    return advantage


PLAIN = {"agentprm_mc": plain}


def test_worked_value(make_batch):
    # Outcomes 1, -1, 1: mean 1/3. After two turns .9801/3 = .3267, mapped (1 + .3267)/2 = .66335;
    # after one .99/3 = .33, .665; at the start 1/3, .666667.
    got = Q.estimate(walks(make_batch, [1, 0, 1])).advantage
    np.testing.assert_allclose(got, [2 / 3, 0.665, 0.66335] * 3)


@pytest.mark.parametrize("clock", ["start", "end"])
@LAW
@given(SEEDS, st.floats(0.5, 1))
def test_against_a_plain_loop(random_batch, clock, seed, gamma):
    rng = np.random.default_rng(seed)
    batch = acted(rng, random_batch(rng))
    estimator = AgentPRMMonteCarlo(gamma=gamma, clock=clock)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_every_state_sums_to_zero_and_q_is_a_share_of_success(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = acted(rng, random_batch(rng, binary=True, max_turns=1))
    credit = AgentPRMMonteCarlo().estimate(batch)
    state = batch.group * 1000 + batch.state_key
    assert np.all(np.abs(np.bincount(state, credit.advantage)) < 1e-9)
    assert np.all((credit.components["q"] >= 0) & (credit.components["q"] <= 1))


def test_the_coded_clock_draws_late_turns_to_the_middle(make_batch):
    """A sure success is worth less the later the turn, where a discount would say: the earlier."""
    batch = walks(make_batch, [1])
    start = Q.estimate(batch).advantage
    end = replace(Q, clock="end").estimate(batch).advantage
    np.testing.assert_allclose(start, [1, 0.995, 0.99005])
    np.testing.assert_allclose(end, start[::-1])
    # A sure failure is 0 at the start, and seems better and better.
    np.testing.assert_allclose(Q.estimate(walks(make_batch, [0])).advantage, [0, 0.005, 0.00995])


def test_without_a_discount_it_is_q_minus_v_of_the_returns(make_batch):
    # At one state, action 0 earned 1 and 0, action 1 earned 1: Q = .5, .5, 1, V = 2/3.
    batch = replace(make_batch([1, 0, 1]), action_key=np.array([0, 0, 1]))
    got = AgentPRMMonteCarlo(gamma=1.0).estimate(batch).advantage
    np.testing.assert_allclose(got, [-1 / 6, -1 / 6, 1 / 3])
    # Returns on another scale, with failure and success said, are the same.
    scaled = AgentPRMMonteCarlo(gamma=1.0, failure=-1.0, success=3.0)
    got = scaled.estimate(replace(batch, reward=np.array([3.0, -1, 3]))).advantage
    np.testing.assert_allclose(got, [-1 / 6, -1 / 6, 1 / 3])


def test_no_signal(make_batch):
    # Nothing else was tried at any state; and equal returns, without a discount.
    assert not AgentPRMMonteCarlo().estimate(walks(make_batch, [1, 0, 1])).advantage.any()
    batch = replace(make_batch([1 / 3] * 3), action_key=np.array([0, 0, 1]))
    assert not AgentPRMMonteCarlo(gamma=1.0).estimate(batch).advantage.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.5}, "agentprm_mc.gamma"),
        ({"clock": "begin"}, "agentprm_mc.clock has no option 'begin'"),
        ({"success": 0.0}, "agentprm_mc.success must be above agentprm_mc.failure, got 0.0 and 0"),
        ({"by": ("state",)}, "agentprm_mc.by"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        AgentPRMMonteCarlo(**options)
