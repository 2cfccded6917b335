"""ReBel: beliefs as states, and a reward for those that are true."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.gigpo import GiGPO
from marl_llm.credit.rebel import ReBel
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """Three returns, three baselines."""
    lengths = batch.lengths
    gamma, weight = estimator.gamma, estimator.step_weight
    belief, paid = batch.signals["belief_key"], batch.signals["belief_reward"]
    total, later = defaultdict(float), defaultdict(lambda: (0.0, 0.0))
    to_go, believed = {}, {}
    for i in np.lexsort((-batch.agent_turn, batch.agent, batch.episode)):
        key = batch.episode[i], batch.agent[i]
        total[key] += batch.reward[i]
        to_go[i] = batch.reward[i] + gamma * later[key][0]
        believed[i] = paid[i] * (lengths[i] > 0) + gamma * later[key][1]
        later[key] = to_go[i], believed[i]
    cells, same = defaultdict(dict), defaultdict(list)
    for i in range(len(batch)):
        if lengths[i] > 0:
            cell, key = (batch.group[i], batch.agent[i]), (batch.episode[i], batch.agent[i])
            cells[cell][key] = total[key]
            same[(*cell, belief[i])].append(i)
    out = np.zeros(len(batch))
    for (*cell, _), rows in same.items():
        group = list(cells[tuple(cell)].values())
        for i in rows:
            if len(group) > 1:
                out[i] = total[batch.episode[i], batch.agent[i]] - np.mean(group)
            for x in (to_go, believed):
                out[i] += weight * (x[i] - np.mean([x[j] for j in rows]))
    return out


PLAIN = {"rebel": plain}


@pytest.fixture
def beliefs(four_rollouts):
    """Find 0, place 1, pick up 2; a won game pays 10."""
    signals = {
        "belief_key": [0, 0, 1, 0, 0, 0, 2, 0, 0, 2],
        "belief_reward": [0.3, 0.2, 0.4, 0.1, 0.1, 0.2, 0.3, 0.1, 0.3, 0.3],
    }
    return four_rollouts([0, 0, 10, 0, 0, 0, 0, 0, 0, 10], signals)


def test_worked_value(beliefs):
    # "Find" has seven turns. G: 9.025 9.5 0 0 0 0 9.5, mean 4.0036; B: .851 .58 .195 .1 .5753 .1
    # .585, mean .4266. The first turn: 5 + .5 (5.0214 + .4244) = 7.7229. "Pick up" has G 0 and 10,
    # B .395 and .3: -5 + .5 (-5 + .0475) = -7.4763. "Place" is alone.
    expected = [
        7.7229, 7.8249, 5, -7.1176, -7.1651, -6.9275, -7.4763, -7.1651, 7.8274, 7.4763,
    ]  # fmt: skip
    np.testing.assert_allclose(ReBel().estimate(beliefs).advantage, expected, atol=1e-4)


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 2))
def test_as_a_plain_loop_does_it(random_batch, seed, gamma, weight):
    batch = random_batch(np.random.default_rng(seed))
    estimator = ReBel(gamma=gamma, step_weight=weight)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_the_step_terms_only_the_episode_is_left(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = ReBel(step_weight=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, DrGRPO().estimate(batch).advantage, atol=1e-12)


@LAW
@given(SEEDS, st.booleans())
def test_without_belief_rewards_it_is_gigpo_at_beliefs(random_batch, seed, scale):
    batch = random_batch(np.random.default_rng(seed))
    batch = batch.with_signals({"belief_reward": np.zeros(len(batch))})
    mode = "mean_std_norm" if scale else "mean_norm"
    gigpo = GiGPO(anchor=("belief_key",), step_weight=0.5, unit="agent", mode=mode)
    got = ReBel(mode=mode).estimate(batch).advantage
    np.testing.assert_allclose(got, gigpo.estimate(batch).advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_every_belief_sums_to_0_apart(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    parts = ReBel().estimate(batch).components
    for group in np.unique(batch.group):
        for belief in np.unique(batch.signals["belief_key"]):
            rows = (batch.group == group) & (batch.signals["belief_key"] == belief)
            assert abs(parts["step"][rows].sum()) < 1e-9
            assert abs(parts["belief"][rows].sum()) < 1e-9


def test_a_large_outcome_does_not_drown_the_beliefs(beliefs):
    louder = replace(beliefs, reward=100 * beliefs.reward)
    for mode in ("mean_norm", "mean_std_norm"):
        quiet, loud = (ReBel(mode=mode).estimate(batch) for batch in (beliefs, louder))
        np.testing.assert_array_equal(quiet.components["belief"], loud.components["belief"])


def test_a_missing_belief_reward_counts_as_the_mean(beliefs):
    paid = np.array(beliefs.signals["belief_reward"])
    lost = np.where(np.arange(10) == 9, np.nan, paid)  # the other "pick up" got .3
    credit = ReBel().estimate(beliefs.with_signals({"belief_reward": lost}))
    np.testing.assert_allclose(credit.advantage, ReBel().estimate(beliefs).advantage)
    assert credit.stats["missing_labels"] == 1


def test_a_belief_without_any_reward_takes_the_mean_of_the_group(beliefs):
    # "Place" was stated once. The others' mean is 1.9/9; 0 would make the turns before it poor.
    paid = np.array(beliefs.signals["belief_reward"])
    lost = beliefs.with_signals({"belief_reward": np.where(np.arange(10) == 2, np.nan, paid)})
    mean = beliefs.with_signals({"belief_reward": np.where(np.arange(10) == 2, 1.9 / 9, paid)})
    got, expected = ReBel().estimate(lost).advantage, ReBel().estimate(mean).advantage
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"rebel\.mode"):
        ReBel(mode="std")
