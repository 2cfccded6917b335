"""MAGRPO: siblings, with and without a tree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.magrpo import MAGRPO, path_weights
from marl_llm.credit.rloo import RLOO
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def grow(rng, make_batch, *, trees=2):
    """Trees of one agent, up to three turns deep; every leaf is an episode."""
    rows, nodes = [], 0

    def branch(tree, path):
        nonlocal nodes
        for _ in range(int(rng.integers(1, 4))):
            node = (nodes, float(rng.integers(0, 3)))
            nodes += 1
            if len(path) == 2 or rng.random() < 0.3:
                rows.append((tree, [*path, node]))
            else:
                branch(tree, [*path, node])

    for tree in range(trees):
        branch(tree, [])
    return make_batch(
        [pay for _, path in rows for _, pay in path],
        group=[tree for tree, path in rows for _ in path],
        episode=[e for e, (_, path) in enumerate(rows) for _ in path],
        signals={"node": [node for _, path in rows for node, _ in path]},
    )


def plain_nodes(estimator, batch):
    """Nodes as dictionaries: pay, children, return; one agent only."""
    pay, children, row_of = {}, {}, {}
    node = batch.signals["node"].tolist()
    for episode in np.unique(batch.episode):
        rows = np.flatnonzero(batch.episode == episode)
        above = ("root", batch.group[rows[0]])
        for row in rows[np.argsort(batch.agent_turn[rows])]:
            pay[node[row]] = batch.reward[row]
            children.setdefault(above, set()).add(node[row])
            row_of.setdefault(node[row], []).append(row)
            above = node[row]

    def worth(at):
        below = children.get(at, ())
        return pay[at] + (np.mean([worth(child) for child in below]) if below else 0.0)

    out = np.zeros(len(batch))
    for siblings in children.values():
        values = np.array([worth(at) for at in siblings])
        scaled = (values - values.mean()) / max(values.std(), estimator.epsilon)
        for at, advantage in zip(siblings, scaled, strict=True):
            out[row_of[at]] = advantage
    return out


def plain(estimator, batch):
    """Turns of one number in the group; the modes differ without the z-scoring, which is on."""
    lengths = batch.lengths
    to_go, later, siblings = {}, {}, {}
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        later[me] = to_go[i] = batch.reward[i] + later.get(me, 0.0)
        if lengths[i]:
            cell = (batch.group[i], batch.agent[i], batch.agent_turn[i])
            siblings.setdefault(cell, []).append(i)
    out = np.zeros(len(batch))
    for rows in siblings.values():
        mean = sum(to_go[i] for i in rows) / len(rows)
        spread = (sum((to_go[i] - mean) ** 2 for i in rows) / len(rows)) ** 0.5
        for i in rows:
            out[i] = (to_go[i] - mean) / max(spread, estimator.epsilon)
    return out


PLAIN = {"magrpo": plain}


@pytest.fixture
def tree(make_batch):
    """Two replies paid .2 and .6; each goes on with two: 1 and 0, .5 and .7. Four episodes."""
    return make_batch(
        [0.2, 1, 0.2, 0, 0.6, 0.5, 0.6, 0.7],
        episode=[0, 0, 1, 1, 2, 2, 3, 3],
        signals={"node": [0, 1, 0, 2, 3, 4, 3, 5]},
    )


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        # Returns of the first replies: .2 + 1/2 = .7, .6 + .6 = 1.2.
        ({"mode": "mean"}, [-0.25, 0.25], [0.5, -0.5, -0.1, 0.1]),
        ({"mode": "rloo"}, [-0.5, 0.5], [1, -1, -0.2, 0.2]),
        ({"mode": "max"}, [-0.5, 0], [0, -1, -0.2, 0]),
        ({"mode": "raw"}, [0.7, 1.2], [1, 0, 0.5, 0.7]),
        ({"mode": "mean", "normalise": True}, [-1, 1], [1, -1, -1, 1]),
    ],
)
def test_worked_values(tree, options, first, second):
    credit = MAGRPO(**{"siblings": "node", "normalise": False, **options}).estimate(tree)
    np.testing.assert_allclose(credit.advantage[[0, 2, 4, 6]], np.repeat(first, 2), atol=1e-12)
    np.testing.assert_allclose(credit.advantage[[1, 3, 5, 7]], second, atol=1e-12)
    assert credit.weight.tolist() == [0.5, 1] * 4


@LAW
@given(SEEDS)
def test_with_z_scores_all_modes_are_one(random_batch, make_batch, seed):
    rng = np.random.default_rng(seed)
    for batch, siblings in ((random_batch(rng), "turn"), (grow(rng, make_batch), "node")):
        expected = MAGRPO(siblings=siblings).estimate(batch).advantage
        for mode in ("raw", "max", "rloo"):
            got = MAGRPO(siblings=siblings, mode=mode).estimate(batch).advantage
            np.testing.assert_allclose(got, expected, atol=1e-6)


@LAW
@given(SEEDS)
def test_against_a_tree_of_dictionaries(make_batch, seed):
    batch = grow(np.random.default_rng(seed), make_batch)
    estimator = MAGRPO(siblings="node")
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain_nodes(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_the_paths_behind_a_node_share_its_weight(make_batch, seed):
    batch = grow(np.random.default_rng(seed), make_batch)
    node = batch.signals["node"].astype(np.int64)
    agents = batch.agents()
    siblings = np.ones(len(batch))
    before = {(e, k): at for e, k, at in zip(batch.episode, batch.agent_turn, node, strict=True)}
    above = [
        before.get((e, k - 1), -1 - g)
        for e, k, g in zip(batch.episode, batch.agent_turn, batch.group, strict=True)
    ]
    for i in range(len(batch)):
        siblings[i] = len({node[j] for j in range(len(batch)) if above[j] == above[i]})
    weight = path_weights(node, siblings, agents)
    for at in np.unique(node):
        rows = node == at
        assert weight[rows].sum() == pytest.approx(1 / siblings[rows][0])


@LAW
@given(SEEDS)
def test_without_forks_and_with_one_turn_it_is_what_it_came_from(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=1)
    unique = replace(batch, signals={"node": np.arange(len(batch))})
    loo = RLOO().estimate(batch).advantage
    for siblings in ("turn", "node"):
        got = MAGRPO(siblings=siblings, mode="rloo", normalise=False).estimate(unique)
        np.testing.assert_allclose(got.advantage, loo, atol=1e-12)
        got = MAGRPO(siblings=siblings).estimate(unique)
        expected = GRPO(ddof=0, epsilon=0.0).estimate(batch).advantage
        np.testing.assert_allclose(got.advantage, expected, atol=1e-9)


def test_a_copied_episode_changes_nothing(tree, add_copies):
    # Episode 0 twice: its last turn is one decision still.
    twice = add_copies(tree, [0, 1])
    got = MAGRPO(siblings="node", normalise=False).estimate(twice)
    expected = MAGRPO(siblings="node", normalise=False).estimate(tree)
    np.testing.assert_allclose(got.advantage[:8], expected.advantage, atol=1e-12)
    assert got.weight[[1, 9]].tolist() == [0.5, 0.5]


def test_a_tree_needs_its_nodes(make_batch):
    with pytest.raises((ConfigError, EpisodeError), match="node"):
        MAGRPO(siblings="node").estimate(make_batch([0, 1]))


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'rloo'"):
        MAGRPO(mode="loo")
