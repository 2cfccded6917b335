"""GTPO over turns: returns to go, scaled by the spread of the group's turns."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import baselines, returns
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.gtpo_turn import GTPOTurn
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
BY_NUMBER = ("group", "agent", "agent_turn")


def plain(estimator, batch):
    """Returns from the end of each agent on, then pool by pool."""
    lengths = batch.lengths
    by_number = "agent_turn" in estimator.by
    to_go, later = {}, defaultdict(float)
    for i in np.lexsort((-batch.agent_turn, batch.agent, batch.episode)):
        key = batch.episode[i], batch.agent[i]
        later[key] = to_go[i] = batch.reward[i] + estimator.gamma * later[key]
    pools = defaultdict(list)
    for i in range(len(batch)):
        if lengths[i] > 0:
            number = batch.agent_turn[i] if by_number else 0
            pools[batch.group[i], batch.agent[i], number].append(i)
    out = np.zeros(len(batch))
    for rows in pools.values():
        x = np.array([to_go[i] for i in rows])
        if len(rows) > 1:
            out[rows] = (x - x.mean()) / (x.std(ddof=1) + estimator.epsilon)
    return out


PLAIN = {"gtpo_turn": plain}


def test_worked_value(four_rollouts):
    # γ = .9: G = 1.01 .9 1 | .2 0 | .18 .2 0 | .9 1; sum 5.39, mean .539. Squares 4.7605 (that of
    # 1.01 is 1.0201, of .18 .0324), minus 10 · .539² = 2.9052 leaves 1.8473; std √(1.8473/9) =
    # .45305. (1.01 - .539)/.45305 = 1.0396, and so on.
    expected = [
        1.0396, 0.7968, 1.0175, -0.7483, -1.1897, -0.7924, -0.7483, -1.1897, 0.7968, 1.0175,
    ]  # fmt: skip
    got = GTPOTurn().estimate(four_rollouts())
    np.testing.assert_allclose(got.advantage, expected, atol=1e-4)


def test_worked_value_by_turn_number(four_rollouts):
    # Third turns: G = 1 and 0, mean .5, std √.5: ±.7071.
    got = GTPOTurn(by=BY_NUMBER).estimate(four_rollouts()).advantage
    np.testing.assert_allclose(got[[2, 7]], [0.7071, -0.7071], atol=1e-4)


@LAW
@given(SEEDS, st.floats(0, 1), st.booleans())
def test_as_a_plain_loop_does_it(random_batch, seed, gamma, by_number):
    batch = random_batch(np.random.default_rng(seed))
    by = BY_NUMBER if by_number else ("group", "agent")
    estimator = GTPOTurn(gamma=gamma, by=by)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_every_pool_sums_to_0(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = GTPOTurn().estimate(batch).advantage
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            assert abs(got[(batch.group == group) & (batch.agent == agent)].sum()) < 1e-9


@LAW
@given(SEEDS)
def test_an_outcome_alone_counted_by_agent_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    sparse = replace(batch, reward=np.where(batch.agents().after == 0, batch.reward, 0.0))
    got = GTPOTurn(gamma=1.0, unit="agent").estimate(sparse).advantage
    np.testing.assert_allclose(got, GRPO().estimate(sparse).advantage, atol=1e-12)


@pytest.mark.parametrize("by", [("group", "agent"), BY_NUMBER])
def test_trap_of_the_turn_number(make_batch, by):
    """Whoever goes on after turn 0 gets .3 more for it, in half of the episodes.

    Going on is worth .3. Rewards compared per turn number and summed up afterwards hide it, since
    everybody who has a turn 1 gets .3 there; returns do not.
    """
    episode = [0, 0, 1, 2, 2, 3]
    batch = make_batch([0.3, 0.3, 0.3, 0.3, 0.3, 0.3], episode=episode)
    goes_on, stops = [0, 3], [2, 5]
    agents = batch.agents()
    numbers = baselines.pool(batch, agents, BY_NUMBER, "turn")
    first_compared = returns.to_go(baselines.centre(batch.reward, numbers), agents)
    assert first_compared[goes_on].tolist() == first_compared[stops].tolist() == [0.0, 0.0]
    credit = GTPOTurn(gamma=1.0, by=by).estimate(batch)
    gap = credit.components["return"] + credit.components["baseline"]
    np.testing.assert_allclose(gap[goes_on] - gap[stops], 0.3)
    assert np.all(credit.advantage[goes_on] > credit.advantage[stops])


def test_equal_returns_give_exact_zeros(make_batch):
    assert not GTPOTurn().estimate(make_batch([0.1] * 7)).advantage.any()


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"gtpo_turn\.gamma"):
        GTPOTurn(gamma=1.5)
