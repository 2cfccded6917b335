"""MATPO: the planner's number for everybody who worked for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.batch import per_token
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.matpo import MATPO
from marl_llm.errors import EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """GRPO of the planners, then down every line of calls."""
    lengths = batch.lengths
    returns, spoken = {}, set()
    for i in range(len(batch)):
        key = (batch.episode[i], batch.agent[i])
        returns[key] = returns.get(key, 0.0) + batch.reward[i]
        if lengths[i] > 0:
            spoken.add(key)
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        top = i
        while batch.parent[top] >= 0:
            top = batch.parent[top]
        if lengths[i] == 0 or batch.depth[top] > 0:
            continue
        peers = {
            (batch.episode[j], batch.agent[j])
            for j in range(len(batch))
            if batch.depth[j] == 0
            and batch.group[j] == batch.group[top]
            and batch.agent[j] == batch.agent[top]
        } & spoken
        values = [returns[key] for key in sorted(peers)]
        if len(values) > 1 and np.ptp(values) > 0:
            mine = returns[batch.episode[top], batch.agent[top]]
            out[i] = (mine - np.mean(values)) / (np.std(values, ddof=1) + estimator.epsilon)
    return out


PLAIN = {"matpo": plain}


@pytest.fixture
def query(make_batch):
    """Outcomes 1 and 0; the first planner's worker has a helper, and is paid badly itself."""
    batch = make_batch(
        [1, -5, 3, 0, 7],
        episode=[0, 0, 0, 1, 1],
        agent=[0, 1, 2, 0, 1],
        role=[0, 1, 1, 0, 1],
        lengths=[2, 5, 1, 3, 4],
    )
    return replace(
        batch,
        turn=np.array([0, 1, 2, 0, 1]),
        parent=np.array([-1, 0, 1, -1, 3]),
        depth=np.array([0, 1, 2, 0, 1]),
    )


def test_worked_value(query):
    # Planners 1 and 0: mean 1/2, std √(1/2): ±.5/.707108 = ±.707106, for workers of any depth too.
    credit = MATPO().estimate(query)
    np.testing.assert_allclose(credit.advantage, [0.707106] * 3 + [-0.707106] * 2, atol=1e-6)
    assert credit.weight.tolist() == [1] * 5


def test_a_worker_that_says_more_than_its_planner_is_paid_to_its_last_token(query):
    # A planner's masked row, copied, would end after the planner's own two tokens.
    worker = per_token(MATPO().estimate(query), query)[2:7]
    assert np.all(worker == worker[0])
    assert worker[0] > 0.7


@LAW
@given(SEEDS)
def test_nobody_calls_and_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got, expected = MATPO().estimate(batch), GRPO().estimate(batch)
    assert got.advantage.tobytes() == expected.advantage.tobytes()
    assert got.stats == expected.stats | {"orphans": 0.0}


@LAW
@given(SEEDS)
def test_against_a_loop(random_calls, seed):
    batch = random_calls(np.random.default_rng(seed))
    got = MATPO().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(MATPO(), batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_what_workers_are_paid_does_not_matter(random_calls, seed):
    batch = random_calls(np.random.default_rng(seed))
    richer = replace(batch, reward=np.where(batch.depth > 0, 100 * batch.reward, batch.reward))
    got, expected = MATPO().estimate(richer), MATPO().estimate(batch)
    assert got.advantage.tobytes() == expected.advantage.tobytes()


def test_planners_can_be_compared_by_a_signal(query):
    # Under a schedule of its own each planner is alone.
    batch = query.with_signals({"event": query.episode})
    assert not MATPO(by=("group", "agent", "event")).estimate(batch).advantage.any()


def test_workers_without_their_planner_are_left_out(query, take_rows):
    batch = take_rows(query, [0, 1, 2, 4])
    credit = MATPO().estimate(batch)
    assert credit.weight.tolist() == [1, 1, 1, 0]
    assert credit.stats["orphans"] == 1
    with pytest.raises(EpisodeError, match="all 2 turns were called by turns that are not in"):
        MATPO().estimate(take_rows(query, [1, 4]))


def test_a_planner_alone_can_be_refused_workers_are_not_asked(query, take_rows):
    estimator = MATPO(singleton="error")
    estimator.estimate(query)
    with pytest.raises(EpisodeError, match="1 turns have nobody"):
        estimator.estimate(take_rows(query, [0, 1, 2]))
