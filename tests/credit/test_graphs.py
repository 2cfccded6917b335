"""Merged rollouts: edges, Bellman values against a linear solver, distances against a search."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import graphs
from marl_llm.errors import EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
NODES = (("group", "role"), ("state_key",))
# Rollouts 0-1-success, 0-2-1-failure, 0-2-0-failure.
SOURCE = np.array([0, 1, 0, 2, 1, 0, 2, 0])
TARGET = np.array([1, -1, 2, 1, -1, 2, 0, -1])
WON = np.array([0, 1, 0, 0, 0, 0, 0, 0])


def solve(source, target, reward, region, states, gamma):
    """The same equations as a dense linear system."""
    matrix, right = np.eye(states), np.zeros(states)
    counts = np.bincount(source, minlength=states)
    for u, v, r in zip(source, target, reward, strict=True):
        right[u] += r / counts[u]
        if v != graphs.END:
            matrix[u, v] -= gamma / counts[u]
    return np.linalg.solve(matrix, right)


def walks(rng, regions=3, episodes=4, states=5):
    """Edges of random walks that all end, regions apart."""
    source, target, region = [], [], []
    for where in range(regions):
        for _ in range(episodes):
            path = (where * states + rng.integers(0, states, rng.integers(1, 9))).tolist()
            source += path
            target += [*path[1:], graphs.END]
            region += [where] * len(path)
    return np.array(source), np.array(target), np.array(region), regions * states


def test_bellman_worked_values():
    # γ = .95, a success is a sink worth 1, so that its edge earns γ · 1 = .95.
    # V(1) = (.95 + 0)/2 = .475; V(2) = .95 (V(1) + V(0))/2; V(0) = .95 (V(1) + 2 V(2))/4:
    # V(0) (1 - .95²/4) = .95 (.475 + .95 · .475)/4 = .219984, V(0) = .219984/.774375 = .284080;
    # V(2) = .475 · .759080 = .360563.
    value, still = graphs.bellman(
        SOURCE, TARGET, 0.95 * WON, 0 * SOURCE, 3, gamma=0.95, tolerance=1e-12
    )
    np.testing.assert_allclose(value, [0.284080, 0.475, 0.360563], atol=5e-7)
    assert not still.any()
    step = 0.95 * WON + 0.95 * graphs.after(value, TARGET) - value[SOURCE]
    np.testing.assert_allclose(
        step,
        [0.16717, 0.475, 0.058455, 0.090687, -0.475, 0.058455, -0.090687, -0.28408],
        atol=5e-7,
    )


@LAW
@given(SEEDS, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_bellman_against_a_solver(seed, gamma):
    rng = np.random.default_rng(seed)
    source, target, region, states = walks(rng)
    reward = rng.normal(size=len(source))
    value, still = graphs.bellman(
        source, target, reward, region, states, gamma=gamma, tolerance=1e-13
    )
    visited = np.bincount(source, minlength=states) > 0
    expected = solve(source, target, reward, region, states, gamma)
    np.testing.assert_allclose(value[visited], expected[visited], atol=1e-9)
    assert not value[~visited].any()
    assert not still.any()


@LAW
@given(SEEDS)
def test_a_region_stops_for_itself(seed):
    rng = np.random.default_rng(seed)
    source, target, region, states = walks(rng)
    reward = rng.normal(size=len(source))
    louder = np.where(region == 0, reward, 1e6 * reward)
    settings_ = {"gamma": 1.0, "tolerance": 1e-4}
    first, _ = graphs.bellman(source, target, reward, region, states, **settings_)
    second, _ = graphs.bellman(source, target, louder, region, states, **settings_)
    mine = np.unique(source[region == 0])
    assert first[mine].tobytes() == second[mine].tobytes()


def test_standing_still_takes_no_time():
    # A thousand turns at one state, then a success: γ = 1 makes it worth 1 in the first sweep.
    source = np.zeros(1000, dtype=np.int64)
    target = np.append(np.zeros(999, dtype=np.int64), graphs.END)
    reward = np.append(np.zeros(999), 1.0)
    value, still = graphs.bellman(
        source, target, reward, 0 * source, 1, gamma=1.0, tolerance=1e-12, sweeps=8
    )
    np.testing.assert_allclose(value, 1.0)
    assert not still.any()


def test_sweeps_are_limited():
    # Two states that send each other back a thousand times before the end.
    source = np.tile([0, 1], 1000)
    target = np.append(source[1:], graphs.END)
    reward = np.append(np.zeros(1999), 1.0)
    _, still = graphs.bellman(
        source, target, reward, 0 * source, 2, gamma=1.0, tolerance=1e-12, sweeps=16
    )
    assert still.tolist() == [True]


def test_distances_worked_values():
    # From 1 one edge to the success, from 0 and 2 two. State 3 is a dead end.
    source = np.append(SOURCE, 3)
    target = np.append(TARGET, graphs.END)
    d = graphs.distances(source, target, np.append(WON, 0) > 0, 4)
    assert d.tolist() == [2, 1, 2, np.inf]


@LAW
@given(SEEDS)
def test_distances_against_a_search(seed):
    rng = np.random.default_rng(seed)
    source, target, _, states = walks(rng)
    success = rng.random(len(source)) < 0.3
    expected = np.full(states, np.inf)
    queue = deque((int(u), 1) for u in source[(target == graphs.END) & success])
    while queue:
        u, d = queue.popleft()
        if expected[u] == np.inf:
            expected[u] = d
            queue.extend((int(v), d + 1) for v in source[target == u])
    np.testing.assert_array_equal(graphs.distances(source, target, success, states), expected)


def test_a_shorter_copy_changes_no_distance():
    again = np.concatenate((SOURCE, SOURCE)), np.concatenate((TARGET, TARGET))
    once = graphs.distances(SOURCE, TARGET, WON > 0, 3)
    assert np.array_equal(graphs.distances(*again, np.tile(WON, 2) > 0, 3), once)


def test_edges_lead_to_the_agents_own_next_turn(make_batch):
    batch = make_batch([1, 2, 4, 8], episode=[0] * 4, agent=[0, 1, 0, 1], state_key=[5, 9, 6, 9])
    batch = replace(batch, turn=np.arange(4))
    graph = graphs.merge(batch, *NODES, "agent")
    state = {row: int(s) for row, s in zip(graph.rows, graph.source, strict=True)}
    assert state[1] == state[3] != state[0]
    assert dict(zip(graph.rows, graph.target, strict=True)) == {
        0: state[2], 1: state[3], 2: graphs.END, 3: graphs.END,
    }  # fmt: skip
    assert dict(zip(graph.rows, graph.reward, strict=True)) == {0: 1, 1: 2, 2: 4, 3: 8}


def test_edges_lead_to_whoever_moves_next(make_batch):
    # Both are paid 3 in all; it counts once, at the end.
    batch = make_batch([0, 3, 3, 0], episode=[0] * 4, agent=[0, 1, 0, 1], state_key=[5, 9, 6, 7])
    batch = replace(batch, turn=np.arange(4))
    graph = graphs.merge(batch, *NODES, "episode")
    assert graph.rows.tolist() == [0, 1, 2, 3]
    assert graph.target.tolist() == [*graph.source[1:], graphs.END]
    assert graph.reward.tolist() == [0, 0, 0, 3]
    assert graph.region.tolist() == [0, 0, 0, 0]


def test_roles_never_share_a_node(make_batch):
    # The same number as a state key, which a parser gone wrong might give to two roles.
    batch = make_batch([1, 2], agent=[0, 1], state_key=[5, 5])
    assert graphs.merge(batch, *NODES, "agent").states == 2
    assert graphs.merge(batch, ("group",), ("state_key",), "agent").states == 1


def test_a_silent_turn_is_no_edge(make_batch):
    # What a silent turn earned belongs to the edge before it; before the first turn, to nobody.
    batch = make_batch(
        [100, 1, 10, 2, 20], episode=[0] * 5, state_key=[1, 2, 3, 4, 5], lengths=[0, 1, 0, 1, 0]
    )
    graph = graphs.merge(batch, *NODES, "agent")
    assert graph.rows.tolist() == [1, 3]
    assert graph.reward.tolist() == [11, 22]
    assert graph.target.tolist() == [graph.source[1], graphs.END]


def test_rewards_stay_in_their_episode(make_batch):
    batch = make_batch([1, 5, 7], episode=[0, 1, 1], state_key=[1, 2, 3], lengths=[1, 0, 1])
    assert graphs.merge(batch, *NODES, "agent").reward.tolist() == [1, 7]


def test_a_team_must_be_paid_alike(make_batch):
    batch = make_batch([1, 2], episode=[0, 0], agent=[0, 1])
    batch = replace(batch, turn=np.arange(2))
    with pytest.raises(EpisodeError, match=r"returns from 1 to 2; follow: episode needs a team"):
        graphs.merge(batch, *NODES, "episode")


def test_a_team_must_take_turns(make_batch):
    batch = make_batch([1, 1], episode=[0, 0], agent=[0, 1])
    with pytest.raises(EpisodeError, match="several agents move at turn 0 of episode 0"):
        graphs.merge(batch, *NODES, "episode")
