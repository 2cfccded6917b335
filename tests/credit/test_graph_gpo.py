"""GraphGPO: how near a step comes to a success, against the others from its state."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit import baselines, graphs
from marl_llm.credit.graph_gpo import GraphGPO, nearness
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
WHOLE = GRPO(by=("group", "role"))
STEP = GraphGPO(episode_weight=0.0)


def advantage(estimator, batch):
    return estimator.estimate(batch).advantage


def plain_term(estimator, batch):
    """The graph term, by a search backwards from the successes of every group and role."""
    lengths = batch.lengths
    out = np.zeros(len(batch))
    for cell in {*zip(batch.group, batch.role, strict=True)}:
        rows = np.flatnonzero((batch.group == cell[0]) & (batch.role == cell[1]))
        edges = []
        for episode in np.unique(batch.episode[rows]):
            way = [i for i in rows if batch.episode[i] == episode]
            way = sorted(way, key=lambda i: batch.agent_turn[i])
            won = sum(batch.reward[i] for i in way) > estimator.success_above
            way = [i for i in way if lengths[i]]
            for i, then in zip(way, [*way, None][1:], strict=True):
                ahead = ("won" if won else "lost") if then is None else batch.state_key[then]
                edges.append((i, batch.state_key[i], ahead))
        distance = {"won": 0}
        queue = deque(["won"])
        while queue:
            near = queue.popleft()
            for _, u, v in edges:
                if v == near and u not in distance:
                    distance[u] = distance[near] + 1
                    queue.append(u)
        if len(distance) == 1:
            continue
        far = max(distance.values()) + 1
        worth = {i: estimator.omega ** distance.get(v, far) for i, _, v in edges}
        for i, u, _ in edges:
            same = [estimator.scale * worth[j] for j, w, _ in edges if w == u]
            if np.ptp(same) > 0:
                x = estimator.scale * worth[i]
                out[i] = (x - np.mean(same)) / (np.std(same, ddof=1) + estimator.epsilon)
    return out


def plain(estimator, batch):
    """Both terms."""
    whole = estimator.episode_weight * plain_outcome(batch, by=("group", "role"))
    return whole + estimator.graph_weight * plain_term(estimator, batch)


PLAIN = {"graph_gpo": plain}


def test_nearness_worked_values():
    # 0-1-success, 0-2-1-3, 0-2-0-2, where 3 and the last 2 are states like others: 1 is one step
    # from the success, 0 and 2 are two, 3 is beyond them all: three.
    source, target = np.array([0, 1, 0, 2, 1, 0, 2, 0]), np.array([1, -1, 2, 1, 3, 2, 0, 2])
    won = np.array([1, 1, 0, 0, 0, 0, 0, 0]) > 0
    d = graphs.distances(source, target, won, 4)
    left = graphs.after(d, target, np.where(won, 0.0, np.inf))
    worth, known = nearness(left, d[source], 0 * source, omega=0.1, scale=10.0)
    np.testing.assert_allclose(worth, [1, 10, 0.1, 1, 0.01, 0.1, 0.1, 0.1])
    assert known.all()
    # From state 0: 1, .1, .1, .1, std .45; from 1: 10, .01; from 2: 1, .1.
    here = baselines.Pool(source, np.ones(8), np.bincount(source, minlength=4).astype(float))
    got = baselines.standardise(worth, here, ddof=1, epsilon=1e-6)
    expected = [1.499997, 0.707107, -0.499999, 0.707106, -0.707107, -0.499999, -0.707106, -0.499999]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_worked_values(tell):
    batch = tell(["01", "021", "020"], ["ab", "cbd", "cea"], [[0, 10], [0, 0, 0], [0, 0, 0]])
    credit = GraphGPO(epsilon=0.0).estimate(batch)
    # Episodes: 10, 0, 0 are 1.154701, -.577350, -.577350.
    whole = np.repeat([1.154701, -0.577350, -0.577350], [2, 3, 3])
    np.testing.assert_allclose(credit.components["episode"], whole, atol=5e-7)
    # State 0: to 1 (one left) 1, twice to 2 (two left) .1, to a failure (three) .01: mean .3025,
    # squares .486506 + 2 · .041006 + .085556, std √(.654075/3) = .466931.
    # State 1: 10 and .01; state 2: to 1 and to 0, 1 and .1.
    r = 0.5**0.5
    expected = [1.493797, r, -0.433683, r, -r, -0.433683, -r, -0.626431]
    np.testing.assert_allclose(credit.components["graph"], expected, atol=5e-6)
    np.testing.assert_allclose(credit.advantage, whole + expected, atol=5e-6)
    assert credit.stats["success_share"] == pytest.approx(2 / 8)


@LAW
@given(SEEDS, st.sampled_from([0.1, 0.5]), st.sampled_from([0.0, 1.0]))
def test_against_plain(random_batch, seed, omega, success_above):
    batch = random_batch(np.random.default_rng(seed), groups=2, max_turns=5)
    estimator = GraphGPO(omega=omega, success_above=success_above)
    credit = estimator.estimate(batch)
    term = plain_term(estimator, batch)
    np.testing.assert_allclose(credit.components["graph"], term, atol=1e-7)
    np.testing.assert_allclose(credit.advantage, plain(estimator, batch), atol=1e-7)


@LAW
@given(SEEDS)
def test_a_state_adds_up_to_zero(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=5)
    key = batch.group * 1000 + batch.role * 500 + batch.state_key
    np.testing.assert_allclose(np.bincount(key, advantage(STEP, batch)), 0.0, atol=1e-9)


@LAW
@given(SEEDS)
def test_constants_cancel(random_batch, seed):
    # C, and a constant cost per step (one more factor ω), cancel in the division.
    batch = random_batch(np.random.default_rng(seed), max_turns=5)
    free = replace(STEP, epsilon=0.0)
    np.testing.assert_allclose(
        advantage(replace(free, scale=1.0), batch), advantage(free, batch), atol=1e-7
    )


@LAW
@given(SEEDS)
def test_without_a_success_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = GraphGPO(success_above=1e6).estimate(batch)
    np.testing.assert_allclose(credit.advantage, advantage(WHOLE, batch), atol=1e-12)
    assert credit.stats["visits_without_success"] == np.sum(batch.lengths > 0)
    off = GraphGPO(graph_weight=0.0).estimate(batch)
    np.testing.assert_allclose(off.advantage, advantage(WHOLE, batch), atol=1e-12)


def test_a_good_step_of_a_failed_episode_and_a_long_way_to_a_success(tell):
    # 0-1-success, 0-2-1-success and 0-1-failure: going to 1 is praised in the failed episode, too,
    # and the way round by 2 is blamed although it succeeds.
    batch = tell(["01", "021", "01"], ["ab", "cbd", "ac"], [[0, 1], [0, 0, 1], [0, 0]])
    got = advantage(STEP, batch)
    assert got[5] > 0 > got[2]


def test_states_that_never_repeat_leave_the_episode(random_batch):
    batch = random_batch(np.random.default_rng(0))
    batch = replace(batch, state_key=np.arange(len(batch)))
    credit = GraphGPO().estimate(batch)
    assert credit.stats["singleton_share"] == 1
    assert not credit.components["graph"].any()
    np.testing.assert_allclose(credit.advantage, advantage(WHOLE, batch))


def test_bad_settings():
    for options in ({"omega": 1.5}, {"scale": -1.0}, {"graph_weight": -1.0}, {"ddof": 2}):
        with pytest.raises(ConfigError, match=f"graph_gpo.{next(iter(options))}"):
            GraphGPO(**options)
