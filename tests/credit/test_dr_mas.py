"""Dr. MAS: statistics per agent, over turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_mas import DrMAS
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """Every turn of agent a at query q once in mean and std."""
    lengths = batch.lengths
    total = {}
    for e, a, r in zip(batch.episode, batch.agent, batch.reward, strict=True):
        total[e, a] = total.get((e, a), 0.0) + r
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        same = [
            total[batch.episode[j], batch.agent[j]]
            for j in range(len(batch))
            if lengths[j] > 0
            and batch.group[j] == batch.group[i]
            and batch.agent[j] == batch.agent[i]
        ]
        if lengths[i] > 0 and len(same) > 1 and np.ptp(same) > 0:
            mine = total[batch.episode[i], batch.agent[i]]
            out[i] = (mine - np.mean(same)) / (np.std(same, ddof=1) + estimator.epsilon)
    return out


PLAIN = {"dr_mas": plain}


@pytest.fixture
def team(make_batch):
    """Rewards 1 0 1 1 of four episodes; solver turns in 0 1 1 2 3, verifier turns in 0 1 2."""
    return make_batch(
        [1, 0, 0, 1, 1, 1, 0, 1], episode=[0, 1, 1, 2, 3, 0, 1, 2], agent=[0] * 5 + [1] * 3
    )


def test_worked_value(team):
    # Solver: mean 3/5, squares 3 * .16 + 2 * .36 = 1.2, std √(1.2/4) = .547723:
    # .4/.547724 = .730296, -.6/.547724 = -1.095443. Verifier: mean 2/3, squares 2/9 + 4/9 = 2/3,
    # std √(1/3) = .577350: .333333/.577351 = .577349, -.666667/.577351 = -1.154699.
    got = DrMAS().estimate(team).advantage
    solver = [0.730295, -1.095443, -1.095443, 0.730295, 0.730295]
    np.testing.assert_allclose(got, [*solver, 0.577349, -1.154699, 0.577349], atol=2e-6)


def test_agents_are_brought_to_one_scale(team):
    # The mean square within an agent is (n - 1)/n with the std over n - 1: 4/5 and 2/3.
    got = DrMAS(epsilon=0.0).estimate(team).advantage
    assert np.mean(got[:5] ** 2) == pytest.approx(0.8)
    assert np.mean(got[5:] ** 2) == pytest.approx(2 / 3)
    assert got[:5].sum() == pytest.approx(0, abs=1e-12)
    # In units of the whole team, agents' squares differ: (σ_a² + (mean_a - mean)²)/σ².
    pooled = GRPO(by=("group",), unit="turn", mix_roles=True, epsilon=0.0, ddof=0)
    team_wide = pooled.estimate(team).advantage
    assert np.mean(team_wide[:5] ** 2) == pytest.approx((0.24 + 0.025**2) / 0.234375)


def test_an_agent_that_is_called_once_gets_nothing_not_its_raw_return(make_batch):
    batch = make_batch([1, 0, 1], episode=[0, 1, 0], agent=[0, 0, 1])
    assert DrMAS().estimate(batch).advantage[2] == 0
    raw = DrMAS(singleton="raw").estimate(batch).advantage[2]
    assert raw == pytest.approx(1 / (1 + 1e-6))


@LAW
@given(SEEDS)
def test_counting_agents_once_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = DrMAS(unit="agent").estimate(batch)
    assert got.advantage.tobytes() == GRPO().estimate(batch).advantage.tobytes()


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), binary=True)
    got = DrMAS().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(DrMAS(), batch), atol=1e-9)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"dr_mas.epsilon"):
        DrMAS(epsilon=-1.0)
