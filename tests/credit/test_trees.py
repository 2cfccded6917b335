"""Prefixes, and values of forked decisions, against loops that look at every pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import returns, trees
from marl_llm.errors import EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def values(batch, average="episodes"):
    total = returns.totals(batch.reward, batch.agents())
    return trees.values(trees.grow(batch), batch, total, average)


def plain(batch, average="episodes"):
    """V behind and in front of every sampled row, by walking down from each state."""
    lengths = batch.lengths
    n = len(batch)
    total = returns.totals(batch.reward, batch.agents())
    node = batch.signals["node"]
    in_order = np.argsort(batch.turn, kind="stable")
    rows_of = {e: [i for i in in_order if batch.episode[i] == e] for e in set(batch.episode)}
    order = [[i for i in rows if lengths[i] > 0] for rows in rows_of.values()]
    paths = [
        (batch.group[rows[0]], [node[i] for i in rows], {batch.agent[i]: total[i] for i in rows})
        for rows in order
        if rows
    ]

    def value(group, prefix, agent):
        """Mean over what goes on from a history, for one agent; None if it is in none of it."""
        inside = [p for p in paths if p[0] == group and p[1][: len(prefix)] == prefix]
        if average == "episodes":
            paid = [p[2][agent] for p in inside if agent in p[2]]
            return np.mean(paid) if paid else None
        ended = [(p[2].get(agent), 1.0) for p in inside if len(p[1]) == len(prefix)]
        following = {p[1][len(prefix)] for p in inside if len(p[1]) > len(prefix)}
        return weighted(ended + [share(group, [*prefix, one], agent) for one in following])

    def share(group, prefix, agent):
        """A child's mean, and how much of it the agent has a part in."""
        inside = [p for p in paths if p[0] == group and p[1][: len(prefix)] == prefix]
        parts = [(p[2].get(agent), 1.0) for p in inside if len(p[1]) == len(prefix)]
        following = {p[1][len(prefix)] for p in inside if len(p[1]) > len(prefix)}
        parts += [share(group, [*prefix, one], agent) for one in following]
        known = sum(w for x, w in parts if x is not None) / len(parts)
        return weighted(parts), known

    def weighted(parts):
        known = [(x, w) for x, w in parts if x is not None]
        return sum(x * w for x, w in known) / sum(w for _, w in known) if known else None

    behind, front = np.zeros(n), np.zeros(n)
    for rows in order:
        for k, i in enumerate(rows):
            history = [node[j] for j in rows[: k + 1]]
            behind[i] = value(batch.group[i], history, batch.agent[i])
            front[i] = value(batch.group[i], history[:-1], batch.agent[i])
    return behind, front


def test_worked_values(grow_fork):
    # Leaves 1, 0 | 0: the first decision is worth .5, the second 0; the root is worth 1/3 over
    # episodes, and (.5 + 0)/2 = .25 over children.
    batch = grow_fork([[1.0, 0.0], 0.0])
    behind, front = values(batch)
    np.testing.assert_allclose(behind, [0.5, 1, 0.5, 0, 0])
    np.testing.assert_allclose(front, [1 / 3, 0.5, 1 / 3, 0.5, 1 / 3])
    behind, front = values(batch, "children")
    np.testing.assert_allclose(behind, [0.5, 1, 0.5, 0, 0])
    np.testing.assert_allclose(front, [0.25, 0.5, 0.25, 0.5, 0.25])


def test_every_agent_has_its_own_value_of_a_state(grow_fork):
    # Agent 0 opens, agent 1 answers, and what one wins the other loses. Behind the first opening
    # agent 0 expects (1 + 0)/2 = .5, and agent 1 expects -.5 in front of its answer.
    batch = grow_fork([[1.0, 0.0], [0.0]], players=(0, 1), pays=(1.0, -1.0))
    behind, front = values(batch)
    np.testing.assert_allclose(behind, [0.5, -1, 0.5, 0, 0, 0])
    np.testing.assert_allclose(front, [1 / 3, -0.5, 1 / 3, -0.5, 1 / 3, 0])


@pytest.mark.parametrize("average", trees.AVERAGES)
@LAW
@given(SEEDS)
def test_against_plain(random_leaves, grow_fork, take_rows, average, seed):
    rng = np.random.default_rng(seed)
    batch = grow_fork(random_leaves(rng), players=(0, 1, 2), pays=(1.0, -1.0, 0.5))
    lengths = np.where(rng.random(len(batch)) < 0.15, 0, 1)
    # A decision is silent in all of its copies, or in none.
    lengths = lengths[np.unique(batch.signals["node"], return_index=True)[1]][batch.signals["node"]]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    batch = replace(batch, offsets=offsets, logprobs=np.zeros(offsets[-1]))
    batch = take_rows(batch, rng.permutation(len(batch)))
    sampled = batch.lengths > 0
    for got, expected in zip(values(batch, average), plain(batch, average), strict=True):
        np.testing.assert_allclose(got[sampled], expected[sampled], atol=1e-12)


@LAW
@given(SEEDS)
def test_mean_of_the_children_is_the_parent(random_leaves, grow_fork, seed):
    batch = grow_fork(random_leaves(np.random.default_rng(seed)))
    tree = trees.grow(batch)
    total = returns.totals(batch.reward, batch.agents())
    behind, front = trees.values(tree, batch, total, "children")
    for state in np.unique(tree.before):
        at = tree.first & (tree.before == state)
        ends_there = np.isin(tree.before[at][0], tree.node[batch.agents().after == 0])
        if not ends_there:
            assert behind[at].mean() == pytest.approx(front[at][0])
    # Over episodes the same holds with the copies as weights.
    behind, front = trees.values(tree, batch, total)
    for state in np.unique(tree.before):
        at = tree.before == state
        assert behind[at].mean() == pytest.approx(front[at][0])


def test_no_alternative_no_difference(grow_fork):
    # A tenth has no exact sum: three of them are not .3. Still no decision differs from its state.
    batch = grow_fork([[[0.1, 0.1, 0.1]], [[0.1], 0.1]])
    for average in trees.AVERAGES:
        behind, front = values(batch, average)
        assert np.array_equal(behind, front)


def test_agents_that_move_at_once_see_the_same_state(make_batch, take_rows):
    # Two openings at turn 0, then a move of agent 0. Three episodes share agent 1's opening (20),
    # but only the first two both openings: their joint state is worth (1 + 0)/2, and the others'
    # states are their own.
    batch = make_batch(
        [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1],
        episode=[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],
        agent=[0, 1, 0] * 4,
    ).with_signals({"node": np.array([10, 20, 30, 10, 20, 31, 11, 20, 32, 11, 21, 33])})
    batch = replace(batch, turn=np.tile([0, 0, 1], 4))
    rows = np.array([2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9])
    for order in (np.arange(12), rows):
        behind, front = values(take_rows(batch, order))
        behind, front = behind[np.argsort(order)], front[np.argsort(order)]
        np.testing.assert_allclose(front[[0, 3, 6, 9]], 0.5)
        np.testing.assert_allclose(front[[1, 4, 7, 10]], 0.5)
        np.testing.assert_allclose(behind[[1, 4, 7, 10]], [1 / 3, 1 / 3, 1 / 3, 1])
        np.testing.assert_allclose(front[[2, 5, 8, 11]], [0.5, 0.5, 0, 1])


def test_a_silent_turn_is_no_decision(grow_fork):
    # The middle row of each episode sampled nothing: the last decision's state is the first one's.
    batch = grow_fork([[[1.0], [0.0]]])
    batch = replace(batch, offsets=np.array([0, 1, 1, 2, 3, 3, 4]), logprobs=np.zeros(4))
    _, front = values(batch)
    np.testing.assert_allclose(front[[2, 5]], 0.5)


def test_a_group_is_a_root_of_its_own(grow_fork, take_rows):
    one, other = grow_fork([1.0, 0.0]), grow_fork([[5.0, 3.0]], group=1)
    both = grow_fork([[1.0, 0.0], [[5.0, 3.0]]])  # the same numbers of nodes, in one tree
    assert values(one)[1].tolist() == [0.5, 0.5]
    assert values(other)[1].tolist() == [4.0, 4.0, 4.0, 4.0]
    rows = both.turn > 0
    apart = replace(both, group=np.where(both.episode < 2, 0, 1))
    inner = take_rows(apart, np.flatnonzero(rows))
    assert values(inner)[1].tolist() == [0.5, 0.5, 4.0, 4.0, 4.0, 4.0]


def test_equal_numbers_in_unlike_groups_are_unlike_nodes(grow_fork, make_batch):
    batch = make_batch([1, 2, 5], group=[0, 0, 1], signals={"node": [7, 8, 7]})
    batch = batch.with_signals({"node": np.array([7, 8, 7])})
    behind, front = values(batch)
    assert behind.tolist() == [1, 2, 5]
    assert front.tolist() == [1.5, 1.5, 5]


@pytest.mark.parametrize(
    ("agent", "episode", "message"),
    [
        ([0, 1], [0, 1], "decision of 'a_0' and of 'b_0'"),
        ([0, 0], [0, 0], "node 3 comes twice in episode 0"),
    ],
)
def test_nodes_that_cannot_be(make_batch, agent, episode, message):
    batch = make_batch([1, 2], agent=agent, episode=episode)
    with pytest.raises(EpisodeError, match=message):
        trees.grow(batch.with_signals({"node": np.array([3, 3])}))


def test_a_decision_with_two_histories_cannot_be(grow_fork):
    # The answers to the second opening carry the numbers of those to the first one.
    batch = grow_fork([[1.0, 0.0], [0.5, 0.0]])
    node = batch.signals["node"].copy()
    node[[5, 7]] = node[[1, 3]]
    with pytest.raises(EpisodeError, match=r"node 1 of group 0 has other nodes .* 0 than .* 2;"):
        trees.grow(batch.with_signals({"node": node}))


def test_copies_are_not_trained(grow_fork):
    batch = grow_fork([[1.0, 0.0], 0.0])
    assert trees.once(batch).tolist() == [1, 1, 0, 1, 1]
    unmarked = replace(batch, signals={"node": batch.signals["node"]})
    assert trees.once(unmarked).tolist() == [1, 1, 1, 1, 1]


def test_statistics(grow_fork):
    batch = grow_fork([[1.0, 0.0], [0.0]])
    tree = trees.grow(batch)
    # Five decisions; only the answer to the second opening had no alternative.
    assert trees.statistics(tree, trees.siblings(tree, batch)) == {
        "decisions": 5,
        "only_children": 1,
    }
