"""GRAFT and graph TD with mean returns: value differences on merged rollouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.graft import GRAFT, GraphTDMCReading
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=15, deadline=None)
VALUES = GRAFT(gamma=1.0, scale=False, epsilon=0.0)


def advantage(estimator, batch):
    return estimator.estimate(batch).advantage


@pytest.fixture
def rollouts(tell):
    """0-1-success, 0-2-1-failure, 0-2-0-failure."""
    return tell(["01", "021", "020"], ["ab", "cbd", "cea"], [[0, 1], [0, 0, 0], [0, 0, 0]])


@pytest.fixture
def four(tell):
    """Four rollouts over states 0 to 3, of which the first and the last succeed."""
    return tell(
        ["012", "01", "031", "03"],
        ["abc", "ad", "efb", "eg"],
        [[0, 0, 1], [0, 0], [0, 0, 0], [0, 1]],
    )


def edges(batch):
    """(row, its state, the next sampled row or None, what was earned on the way) of each agent."""
    out = []
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            way = []
            for i in sorted(rows, key=lambda i: batch.agent_turn[i]):
                if batch.lengths[i]:
                    state = (batch.group[i], batch.role[i], batch.state_key[i])
                    way.append([i, state, None, 0.0])
                    if len(way) > 1:
                        way[-2][2] = i
                if way:
                    way[-1][3] += batch.reward[i]
            out += way
    return out


def by_bellman(links, gamma):
    """State values after sweeps over a dictionary until nothing moves."""
    state = {i: u for i, u, _, _ in links}
    value, moved = dict.fromkeys(state.values(), 0.0), 1.0
    while moved > 1e-10:
        seen = {u: [] for u in value}
        for _, u, then, r in links:
            seen[u].append(r + (0.0 if then is None else gamma * value[state[then]]))
        better = {u: sum(x) / len(x) for u, x in seen.items()}
        moved = max((abs(better[u] - value[u]) for u in value), default=0.0)
        value = better
    return value


def by_returns(links, gamma):
    """State values as means of what followed."""
    to_go, seen = {}, {u: [] for _, u, _, _ in links}
    for i, u, then, r in reversed(links):
        to_go[i] = r + (0.0 if then is None else gamma * to_go[then])
        seen[u].append(to_go[i])
    return {u: float(np.mean(x)) for u, x in seen.items()}


def plain(estimator, batch):
    """Differences of the values of states, 0 at states that were visited once."""
    gamma, links = estimator.gamma, edges(batch)
    if isinstance(estimator, GraphTDMCReading):
        value, scale = by_returns(links, gamma), False
    else:
        if estimator.sink == "discounted":
            links = [[i, u, v, gamma * r if v is None else r] for i, u, v, r in links]
        value, scale = by_bellman(links, gamma), estimator.scale
    state = {i: u for i, u, _, _ in links}
    ahead, here = {}, {}
    for i, u, then, r in links:
        ahead[i] = r + (0.0 if then is None else gamma * value[state[then]])
        here.setdefault(u, []).append(ahead[i])
    out = np.zeros(len(batch))
    for i, u, _, _ in links:
        if len(here[u]) > 1:
            out[i] = ahead[i] - value[u]
            if scale:
                spread = np.std(here[u], ddof=estimator.ddof)
                out[i] = out[i] / (spread + estimator.epsilon) if spread > 1e-9 else 0.0
    return out


PLAIN = {"graft": plain, "graft_values": plain, "graph_td_mc_reading": plain}


def test_worked_values(rollouts):
    # A success at the end earns γ · 1 = .95. V(1) = (.95 + 0)/2 = .475,
    # V(2) = .95 (V(1) + V(0))/2 = .360563, V(0) = .95 (V(1) + 2 V(2) + 0)/4 = .284080.
    estimator = GRAFT(gamma=0.95, scale=False, epsilon=0.0)
    credit = estimator.estimate(rollouts)
    expected = [0.167170, 0.475, 0.058455, 0.090687, -0.475, 0.058455, -0.090687, -0.284080]
    np.testing.assert_allclose(credit.advantage, expected, atol=5e-7)
    # As it is, a success is worth 1 in front of its last turn: V(1) = .5, and all else grows alike.
    plainly = GRAFT(gamma=0.95, scale=False, epsilon=0.0, sink="plain")
    np.testing.assert_allclose(advantage(plainly, rollouts), np.array(expected) / 0.95, atol=1e-6)
    assert credit.stats["states"] == 3
    assert credit.stats["singleton_share"] == 0
    assert credit.stats["open_regions"] == 0


def test_scaled_worked_values(rollouts):
    # Two edges leave state 1: ±.475 is ±1/√2 in units of their std.
    got = advantage(GRAFT(gamma=0.95, epsilon=0.0), rollouts)
    r = 0.5**0.5
    np.testing.assert_allclose(got[[1, 4]], [r, -r])
    np.testing.assert_allclose(got[[3, 6]], [r, -r])
    # Four leave state 0: .167170, twice .058455, -.284080: squares .115482, std .196199.
    np.testing.assert_allclose(
        got[[0, 2, 5, 7]], np.array([0.167170, 0.058455, 0.058455, -0.284080]) / 0.196199, atol=2e-5
    )


def test_bellman_and_mean_returns_differ(four):
    # State 3 was visited twice, with returns 0 and 1: its mean return is .5. But one of its edges
    # leads to state 1, worth 1/3 (visits: success, failure, failure), so Bellman has
    # V(3) = (1/3 + 1)/2 = 2/3. State 2 was visited once, and its turn gets 0.
    # Rows: 0-1 a, 1-2 b, 2-end c | 0-1 a, 1-end d | 0-3 e, 3-1 f, 1-end b | 0-3 e, 3-end g.
    got = advantage(GraphTDMCReading(), four)
    np.testing.assert_allclose(
        got,
        [-1 / 6, 2 / 3, 0, -1 / 6, -1 / 3, 0, -1 / 6, -1 / 3, 0, 1 / 2],
        atol=1e-12,
    )
    # With V(0) = (1/3 + 1/3 + 2/3 + 2/3)/4 = 1/2.
    np.testing.assert_allclose(
        advantage(VALUES, four),
        [-1 / 6, 2 / 3, 0, -1 / 6, -1 / 3, 1 / 6, -1 / 3, -1 / 3, 1 / 6, 1 / 3],
        atol=1e-9,
    )


def test_mean_returns_add_up_along_an_episode(four):
    # V(0) = (1 + 0 + 0 + 1)/4; state 2, visited once, is worth its own return, so nothing is lost.
    got = np.bincount(four.episode, advantage(GraphTDMCReading(), four))
    np.testing.assert_allclose(got, [0.5, -0.5, -0.5, 0.5])


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@LAW
@given(SEEDS)
def test_against_plain(random_batch, gamma, seed):
    batch = random_batch(np.random.default_rng(seed), groups=2, max_turns=5, silent=0.2)
    for estimator in (
        GraphTDMCReading(gamma=gamma),
        GRAFT(gamma=gamma, scale=False, epsilon=0.0, sink="plain"),
        GRAFT(gamma=gamma, scale=False, epsilon=0.0),
        GRAFT(gamma=gamma, epsilon=0.01),
    ):
        expected = plain(estimator, batch)
        np.testing.assert_allclose(advantage(estimator, batch), expected, atol=1e-6)


@pytest.mark.parametrize("scale", [False, True])
@LAW
@given(SEEDS)
def test_credit_at_a_state_adds_up_to_zero(random_batch, scale, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=6)
    got = advantage(GRAFT(gamma=0.95, scale=scale, epsilon=1e-6, tolerance=1e-3), batch)
    # However roughly the values were found.
    key = batch.group * 1000 + batch.role * 500 + batch.state_key
    np.testing.assert_allclose(np.bincount(key, got), 0.0, atol=1e-9)


@LAW
@given(SEEDS)
def test_graph_gae_would_add_nothing(random_batch, seed):
    """At the fixed point, the mean of the next steps' errors is 0 at every state."""
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    error = advantage(GRAFT(gamma=0.95, scale=False, epsilon=0.0), batch)
    state = np.unique(batch.group * 1000 + batch.role * 500 + batch.state_key, return_inverse=True)
    mean = np.bincount(state[1], error) / np.bincount(state[1])
    np.testing.assert_allclose(mean, 0.0, atol=1e-8)


def test_states_that_never_repeat(make_batch):
    batch = make_batch([0, 1, 0, 0], episode=[0, 0, 1, 1], state_key=[1, 2, 3, 4])
    for estimator in (VALUES, GRAFT(gamma=0.95, epsilon=0.0), GraphTDMCReading()):
        credit = estimator.estimate(batch)
        assert not credit.advantage.any()
        assert credit.stats["singleton_share"] == 1
    # Returns 1 and 0: ±.5, in units of their std ±1/√2.
    for estimator in (VALUES, GraphTDMCReading()):
        got = advantage(replace(estimator, fallback="trajectory"), batch)
        assert got.tolist() == [0.5, 0.5, -0.5, -0.5]
    got = advantage(GRAFT(gamma=0.95, epsilon=0.0, fallback="trajectory"), batch)
    np.testing.assert_allclose(got, np.array([1, 1, -1, -1]) * 0.5**0.5)


def test_the_return_falls_back_by_the_same_settings(make_batch):
    batch = make_batch([0, 1, 0, 0], episode=[0, 0, 1, 1], state_key=[1, 2, 3, 4])
    scaled = GRAFT(gamma=0.95, ddof=0, epsilon=0.0, fallback="trajectory")
    # Returns 1 and 0: the population's std is .5.
    assert advantage(scaled, batch).tolist() == [1, 1, -1, -1]
    alone = make_batch([0, 2], episode=[0, 0], state_key=[1, 2])
    for estimator in (scaled, VALUES, GraphTDMCReading()):
        estimator = replace(estimator, fallback="trajectory")
        assert not advantage(estimator, alone).any()
        assert advantage(replace(estimator, singleton="raw"), alone).tolist() == [2, 2]


def test_only_a_state_of_ones_own_falls_back(four):
    got = advantage(GraphTDMCReading(fallback="trajectory"), four)
    # Row 2 is the only visit of state 2; its episode earned 1 against a mean of .5.
    expected = advantage(GraphTDMCReading(), four)
    expected[2] = 0.5
    np.testing.assert_allclose(got, expected)


@LAW
@given(SEEDS)
def test_with_one_turn_they_are_the_group_rules(random_batch, seed):
    """One state, one turn: its value is the mean return."""
    batch = random_batch(np.random.default_rng(seed), max_turns=1, silent=0.0)
    batch = replace(batch, state_key=0 * batch.state_key)
    centred = advantage(DrGRPO(by=("group", "role")), batch)
    for estimator in (VALUES, GraphTDMCReading()):
        np.testing.assert_allclose(advantage(estimator, batch), centred, atol=1e-9)
    scaled = advantage(GRPO(by=("group", "role")), batch)
    got = advantage(GRAFT(gamma=1.0, epsilon=1e-6), batch)
    np.testing.assert_allclose(got, scaled, atol=1e-9)


def test_a_dummy_gets_nothing_if_edges_are_one_agents_doing(make_batch):
    # Agent 0 decides for 1 or 0 at turn 0; agent 1 says something without effect at turn 1, agent 0
    # closes at turn 2. Both are paid the same.
    won = [1, 1, 0, 0]
    batch = make_batch(
        [x for r in won for x in (0, r, r)],
        episode=np.repeat(np.arange(4), 3),
        agent=[0, 1, 0] * 4,
        state_key=[x for r in won for x in (0, 10 + r, 20 + r)],
    )
    batch = replace(batch, turn=np.tile(np.arange(3), 4))
    for estimator in (VALUES, GraphTDMCReading()):
        team = advantage(replace(estimator, follow="episode"), batch).reshape(4, 3)
        np.testing.assert_allclose(team[:, 0], np.array(won) - 0.5)
        np.testing.assert_allclose(team[:, 1:], 0.0, atol=1e-12)
    # On edges to its own next turn, an agent's own states say the same here.
    own = advantage(VALUES, batch).reshape(4, 3)
    np.testing.assert_allclose(own[:, 0], np.array(won) - 0.5)


def test_luck_of_others_lies_on_the_edge_to_ones_own_next_turn(make_batch):
    # Agent 0 does the same twice; agent 1 then wins or loses for both.
    won = [1, 0]
    batch = make_batch(
        [x for r in won for x in (0, r, r)],
        episode=np.repeat(np.arange(2), 3),
        agent=[0, 1, 0] * 2,
        state_key=[x for r in won for x in (0, 10, 20 + r)],
    )
    batch = replace(batch, turn=np.tile(np.arange(3), 2))
    own = advantage(GraphTDMCReading(), batch).reshape(2, 3)
    np.testing.assert_allclose(own, [[0.5, 0.5, 0], [-0.5, -0.5, 0]])
    team = advantage(replace(GraphTDMCReading(), follow="episode"), batch).reshape(2, 3)
    np.testing.assert_allclose(team, [[0, 0.5, 0], [0, -0.5, 0]])


def test_event_schedules_can_be_kept_apart(four):
    batch = four.with_signals({"event": four.episode % 2})
    credit = GraphTDMCReading(by=("group", "role", "event")).estimate(batch)
    assert credit.stats["states"] == 7  # 0 to 3 of the even episodes; 0, 1 and 3 of the odd ones


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GRAFT, {"gamma": 1.5, "epsilon": 0.0}, "graft.gamma"),
        (GRAFT, {"gamma": 1.0, "epsilon": 0.0, "sink": "zero"}, "graft.sink"),
        (GRAFT, {"gamma": 1.0, "epsilon": 0.0, "tolerance": 0.0}, "graft.tolerance"),
        (GraphTDMCReading, {"follow": "role"}, "graph_td_mc_reading.follow"),
        (GraphTDMCReading, {"fallback": "raw"}, "graph_td_mc_reading.fallback"),
        (GraphTDMCReading, {"anchor": "state_key"}, r"write \[state_key\]"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
