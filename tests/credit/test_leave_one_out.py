"""Leave one agent out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.leave_one_out import LeaveOneOut
from marl_llm.credit.shapley import shapley_values

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """What the agent got in all, minus the signal."""
    lengths = batch.lengths
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i] > 0:
            mine = (batch.episode == batch.episode[i]) & (batch.agent == batch.agent[i])
            out[i] = sum(batch.reward[mine]) - batch.signals["return_without"][i]
    return out


PLAIN = {"leave_one_out": plain}


def credits(make_batch, worth):
    """Of the n agents of one episode that share v(all)."""
    n = len(worth).bit_length() - 1
    without = [worth[-1 - (1 << i)] for i in range(n)]
    batch = make_batch(
        [worth[-1]] * n,
        episode=[0] * n,
        agent=range(n),
        role=[0] * n,
        signals={"return_without": without},
    )
    return LeaveOneOut().estimate(batch).advantage


def test_worked_value(make_batch):
    # Worth of all 1, of the pairs without planner, worker, tool .1 .5 .6: 1 - .1, 1 - .5, 1 - .6.
    worth = np.array([0, 0.2, 0, 0.6, 0, 0.5, 0.1, 1])
    np.testing.assert_allclose(credits(make_batch, worth), [0.9, 0.5, 0.4])


def test_both_needed_get_all_twice_and_both_doing_the_same_get_nothing(make_batch):
    assert credits(make_batch, np.array([0.0, 0, 0, 1])).tolist() == [1, 1]
    assert credits(make_batch, np.array([0.0, 1, 1, 1])).tolist() == [0, 0]


@LAW
@given(SEEDS)
def test_where_agents_add_up_it_is_the_shapley_value(make_batch, seed):
    part = np.random.default_rng(seed).normal(size=3)
    worth = (np.arange(8)[:, None] >> np.arange(3)) % 2 @ part
    np.testing.assert_allclose(credits(make_batch, worth), shapley_values(worth), atol=1e-12)


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = LeaveOneOut().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(LeaveOneOut(), batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_nobody_is_missed_and_nobody_gets_anything(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    total = LeaveOneOut().estimate(batch).components["return"]
    credit = LeaveOneOut().estimate(batch.with_signals({"return_without": total}))
    assert not credit.advantage.any()


def test_a_replay_that_failed_gives_nothing(make_batch):
    batch = make_batch([1, 1]).with_signals({"return_without": np.array([np.nan, 0.25])})
    credit = LeaveOneOut().estimate(batch)
    assert credit.advantage.tolist() == [0, 0.75]
    assert credit.stats["missing_labels"] == 1
