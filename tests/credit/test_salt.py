"""SALT: transitions that several episodes share get the mean of their advantages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit import baselines
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.salt import SALT, alike
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
WHOLE = GRPO(by=("group", "role"))


def advantage(estimator, batch):
    return estimator.estimate(batch).advantage


def plain(estimator, batch):
    """The mean over all turns that make the same step, turn by turn."""
    lengths = batch.lengths
    whole = plain_outcome(batch, by=("group", "role"))
    steps = {}
    for i in np.flatnonzero(lengths > 0):
        mine = (batch.episode == batch.episode[i]) & (batch.agent == batch.agent[i])
        later = np.flatnonzero(mine & (lengths > 0) & (batch.agent_turn > batch.agent_turn[i]))
        then = min(later, key=lambda j: batch.agent_turn[j], default=None)
        steps[i] = (
            batch.group[i],
            batch.role[i],
            batch.state_key[i],
            batch.action_key[i],
            None if then is None else batch.state_key[then],
        )
    out = np.zeros(len(batch))
    for i, step in steps.items():
        same = [whole[j] for j, other in steps.items() if other == step]
        out[i] = 0.0 if estimator.fallback == "zero" and len(same) == 1 else np.mean(same)
    return out


PLAIN = {"salt": plain}


def test_merging_worked_values():
    # 0-1-success, 0-1-3, 0-2-3 with 1, -.5 and -.5: only 0-1 was made twice, (1 - .5)/2 = .25.
    source, target = np.array([0, 1, 0, 1, 0, 2]), np.array([1, 4, 1, 3, 2, 3])
    whole = np.array([1, 1, -0.5, -0.5, -0.5, -0.5])
    same = alike(source, np.zeros(6, dtype=np.int64), target)
    got = baselines.mean(whole, same)[same.cell]
    assert got.tolist() == [0.25, 1, 0.25, -0.5, -0.5, -0.5]


def test_worked_values(tell):
    # Returns 1, 0, 0: 1.154701, -.577350, -.577350. Merged first steps: .288675.
    batch = tell(["01", "01", "02"], ["ab", "ac", "db"], [[0, 1], [0, 0], [0, 0]])
    credit = SALT(epsilon=0.0).estimate(batch)
    expected = [0.288675, 1.154701, 0.288675, -0.577350, -0.577350, -0.577350]
    np.testing.assert_allclose(credit.advantage, expected, atol=5e-7)
    assert credit.stats["merged_share"] == pytest.approx(1 / 3)
    got = advantage(SALT(epsilon=0.0, fallback="zero"), batch)
    np.testing.assert_allclose(got, [0.288675, 0, 0.288675, 0, 0, 0], atol=5e-7)


def test_a_step_is_where_it_leads(tell):
    # The same action at the same state, once to state 1 and once to state 2.
    batch = tell(["01", "02"], ["ab", "ac"], [[0, 1], [0, 0]])
    np.testing.assert_allclose(advantage(SALT(), batch), advantage(WHOLE, batch))
    # All ends are one state: equal last steps are merged, whatever came of them.
    batch = tell(["0", "0"], ["a", "a"], [[1], [0]])
    assert advantage(SALT(), batch).tolist() == [0, 0]


@pytest.mark.parametrize("fallback", ["trajectory", "zero"])
@LAW
@given(SEEDS)
def test_against_plain(random_batch, fallback, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, max_turns=5)
    batch = replace(batch, action_key=rng.integers(0, 2, len(batch)))
    estimator = SALT(fallback=fallback)
    np.testing.assert_allclose(advantage(estimator, batch), plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_merging_makes_no_credit(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    cell = 10 * batch.group + batch.role
    np.testing.assert_allclose(
        np.bincount(cell, advantage(SALT(), batch)),
        np.bincount(cell, advantage(WHOLE, batch)),
        atol=1e-9,
    )


@LAW
@given(SEEDS)
def test_states_that_never_repeat_are_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = replace(batch, state_key=np.arange(len(batch)))
    credit = SALT().estimate(batch)
    np.testing.assert_allclose(credit.advantage, advantage(WHOLE, batch), atol=1e-12)
    assert credit.stats["singleton_share"] == 1
    assert credit.stats["merged_share"] == 0
    assert not advantage(SALT(fallback="zero"), batch).any()


def test_roles_are_not_merged(make_batch):
    batch = make_batch([1, 0, 0, 1], episode=[0, 0, 1, 1], agent=[0, 1, 0, 1], state_key=[5] * 4)
    np.testing.assert_allclose(advantage(SALT(), batch)[[0, 2]], [0, 0])
    # Agent 0's two steps are merged with each other, and never with agent 1's.
    assert SALT().estimate(batch).stats["states"] == 2


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"salt\.epsilon"):
        SALT(epsilon=-1.0)
    with pytest.raises(ConfigError, match=r"salt\.fallback"):
        SALT(fallback="shrunk")
