"""The rules on forked episodes: SPO-tree, TreeRPO, Tree-GRPO, TreeMem and TreeGRPO's back-up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.spo_tree import SPOTree
from marl_llm.credit.tree_backup_reading import TreeBackupReading
from marl_llm.credit.tree_grpo import TreeGRPOSequential, TreeGRPOSum
from marl_llm.credit.tree_mem import TreeMem
from marl_llm.credit.tree_rpo_reading import TreeRPOReading
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
FREE = {"ddof": 1, "epsilon": 0.0}  # what has no default
VALUES = [
    SPOTree(),
    SPOTree(edges="grpo"),
    TreeRPOReading(**FREE),
    TreeMem(**FREE),
    TreeMem(against="parent", **FREE),
    TreeBackupReading(average="episodes", **FREE),
]
LEAVES = [TreeGRPOSequential(), TreeGRPOSum()]
ALL = pytest.mark.parametrize("estimator", [*VALUES, *LEAVES], ids=lambda e: e.card.name)
AVERAGE = pytest.mark.parametrize("average", ["children", "episodes"])


def advantage(estimator, batch):
    return estimator.estimate(batch).advantage


def leaves_of(tree):
    return [tree] if not isinstance(tree, list) else [x for child in tree for x in leaves_of(child)]


def worth(tree, average):
    if not isinstance(tree, list):
        return float(tree)
    if average == "episodes":
        return float(np.mean(leaves_of(tree)))
    return float(np.mean([worth(child, average) for child in tree]))


def plain_rows(tree, average, rule, above=()):
    """What a rule says of each row of `fork`, by walking the nested lists.

    The rule is told the values of a decision and its siblings, and which of them it is.
    """
    rows = []
    for place, child in enumerate(tree):
        said = (
            *above,
            rule([worth(other, average) for other in tree], place, worth(tree, average)),
        )
        rows += plain_rows(child, average, rule, said) if isinstance(child, list) else list(said)
    return rows


class Grown:
    """The trees of a batch as dictionaries; everybody has a part in all of the paths of a tree."""

    def __init__(self, batch):
        self.total, self.paths, self.ends, self.children = {}, {}, {}, {}
        self.front, self.known = {}, {}
        for i in np.lexsort((batch.turn, batch.episode)):
            episode, agent, group = batch.episode[i], batch.agent[i], batch.group[i]
            self.total[episode, agent] = self.total.get((episode, agent), 0.0) + batch.reward[i]
            if batch.lengths[i]:
                self.front[i] = self.ends.get(episode, (group, None))
                self.ends[episode] = (group, batch.signals["node"][i])
                self.children.setdefault(self.front[i], set()).add(self.ends[episode])
                self.paths.setdefault(self.ends[episode], []).append(episode)
        for episode, end in self.ends.items():
            self.paths.setdefault((end[0], None), []).append(episode)

    def worth(self, state, agent, average):
        """What an agent got on average behind a state."""
        key = (*state, agent)
        if key not in self.known:
            passing = self.paths[state]
            if average == "children":
                passing = [episode for episode in passing if self.ends[episode] == state]
            parts = [self.total[episode, agent] for episode in passing]
            if average == "children":
                parts += [self.worth(s, agent, average) for s in self.children.get(state, ())]
            self.known[key] = sum(parts) / len(parts)
        return self.known[key]


def plain(estimator, batch):
    """What a rule says of each row of a batch, decision by decision."""
    grown, node = Grown(batch), batch.signals["node"]
    if isinstance(estimator, TreeBackupReading):
        leaf = plain_outcome(batch, ddof=estimator.ddof, epsilon=estimator.epsilon)
        grown.total |= {(batch.episode[i], batch.agent[i]): leaf[i] for i in grown.front}
    average = "episodes" if isinstance(estimator, TreeMem) else estimator.average
    worth, cells = {}, {}
    for i, front in grown.front.items():
        worth[i] = grown.worth((batch.group[i], node[i]), batch.agent[i], average)
        cell = (*front, batch.agent[i])
        if isinstance(estimator, TreeMem):
            cell = (batch.group[i], batch.role[i])
        cells.setdefault(cell, {}).setdefault(node[i], []).append(i)
    out = np.zeros(len(batch))
    for decisions in cells.values():
        once = [worth[rows[0]] for rows in decisions.values()]
        mean = sum(once) / len(once)
        squares = sum((x - mean) ** 2 for x in once)
        for rows in decisions.values():
            for i in rows:
                if isinstance(estimator, TreeBackupReading):
                    out[i] = worth[i]
                elif isinstance(estimator, SPOTree):
                    out[i] = worth[i] - grown.worth(grown.front[i], batch.agent[i], average)
                elif squares > 1e-18:
                    spread = (squares / (len(once) - estimator.ddof)) ** 0.5
                    out[i] = (worth[i] - mean) / (spread + estimator.epsilon)
    return out


def plain_leaves(estimator, batch):
    """Tree-GRPO, cell by cell; what episodes share gets the mean of theirs."""
    lengths = batch.lengths
    total, cells, trees, copies = {}, {}, {}, {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
        if lengths[i]:
            cell = (batch.group[i], batch.agent[i])
            cells.setdefault(cell, set()).add(me)
            trees.setdefault((*cell, batch.signals["tree"][i]), set()).add(me)
            copies.setdefault((batch.group[i], batch.signals["node"][i]), []).append(i)

    def standardised(x, cells, alone):
        z = {}
        for cell in cells.values():
            values = [x[me] for me in cell]
            mean = sum(values) / len(values)
            squares = sum((value - mean) ** 2 for value in values)
            spread = (squares / max(len(values) - estimator.ddof, 1)) ** 0.5
            for me in cell:
                z[me] = (x[me] - mean) / (spread + estimator.epsilon)
                if len(values) == 1:
                    z[me] = x[me] / (1 + estimator.epsilon) if alone == "raw" else 0.0
        return z

    first = standardised(total, cells, estimator.singleton)
    if isinstance(estimator, TreeGRPOSequential):
        leaf = standardised(first, trees, estimator.lone_tree)
    else:
        second = standardised(total, trees, estimator.lone_tree)
        leaf = {me: first[me] + second[me] for me in first}
    out = np.zeros(len(batch))
    for rows in copies.values():
        out[rows] = sum(leaf[batch.episode[i], batch.agent[i]] for i in rows) / len(rows)
    return out


PLAIN = dict.fromkeys(("spo_tree", "tree_rpo_reading", "tree_mem", "tree_backup_reading"), plain)
PLAIN |= dict.fromkeys(("tree_grpo_sequential", "tree_grpo_sum"), plain_leaves)


def difference(siblings, place, parent):
    return siblings[place] - parent


def in_spreads(siblings, place, parent):
    spread = np.std(siblings)
    return 0.0 if np.ptp(siblings) == 0 else (siblings[place] - parent) / (spread + 1e-8)


def standardised(siblings, place, parent):
    if np.ptp(siblings) < 1e-12:
        return 0.0
    return (siblings[place] - np.mean(siblings)) / (np.std(siblings, ddof=1) + 1e-6)


def test_spo_worked_values(grow_fork):
    # Leaves 1, 0 | 0, 0: the openings are worth .5 and 0, the root .25.
    batch = grow_fork([[1.0, 0.0], [0.0, 0.0]])
    credit = SPOTree().estimate(batch)
    assert credit.advantage.tolist() == [0.25, 0.5, 0.25, -0.5, -0.25, 0, -0.25, 0]
    # Copies are not trained, and neither is what changed nothing.
    assert credit.weight.tolist() == [1, 1, 0, 1, 1, 0, 0, 0]
    assert SPOTree(drop_zero=False).estimate(batch).weight.tolist() == [1, 1, 0, 1, 1, 1, 0, 1]
    # Population std of .5 and 0 is .25, of 1 and 0 it is .5.
    got = advantage(SPOTree(edges="grpo", epsilon=0.0), batch)
    np.testing.assert_allclose(got, [1, 1, 1, -1, -1, 0, -1, 0])


def test_tree_rpo_worked_values(grow_fork):
    # Openings .5 and 0: mean .25, std .25 √2, so ±1/√2; the same for the leaves 1 and 0.
    batch = grow_fork([[1.0, 0.0], [0.0, 0.0]])
    got = advantage(TreeRPOReading(**FREE), batch)
    r = 0.5**0.5
    np.testing.assert_allclose(got, [r, r, r, -r, -r, 0, -r, 0])


def test_tree_mem_worked_values(grow_fork):
    # Leaves 1 0 | 1 1 || 0 0 | 0 1. Summaries .5, 1, 0, .5; builders .75, .25, so ±1/√2.
    batch = grow_fork([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]], players=(0, 1, 2))
    got = advantage(TreeMem(**FREE), batch)
    r = 0.5**0.5
    np.testing.assert_allclose(got[batch.agent == 0], np.repeat([r, -r], 4))
    # Summaries: mean .5, squares 0 + .25 + .25 + 0, std √(.5/3) = .408248; .5/.408248 = 1.224745.
    np.testing.assert_allclose(
        got[batch.agent == 1], np.repeat([0, 1.224745, -1.224745, 0], 2), atol=5e-7
    )
    # Answers: mean .5, std √(8 · .25/7) = .534522; .5/.534522 = .935414.
    np.testing.assert_allclose(
        got[batch.agent == 2], 0.935414 * np.array([1, -1, 1, 1, -1, -1, -1, 1]), atol=5e-7
    )
    # Against the parent: .75 - .5 | .5 - .75, 1 - .75 | 1 - .5, 0 - .5, ...
    got = advantage(TreeMem(against="parent", **FREE), batch)
    assert got[batch.agent == 0].tolist() == [0.25] * 4 + [-0.25] * 4
    assert got[batch.agent == 1].tolist() == [-0.25, -0.25, 0.25, 0.25, -0.25, -0.25, 0.25, 0.25]
    assert got[batch.agent == 2].tolist() == [0.5, -0.5, 0, 0, 0, 0, -0.5, 0.5]


def test_tree_backup_worked_values(grow_fork):
    # Leaves 1, 0, 0, 0: mean .25, std .5, z = 1.5, -.5, -.5, -.5. Openings: (1.5 - .5)/2, -.5.
    batch = grow_fork([[1.0, 0.0], [0.0, 0.0]])
    got = advantage(TreeBackupReading(average="episodes", **FREE), batch)
    assert got.tolist() == [0.5, 1.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    # A tree of uneven growth: leaves 1, 0 | 1 have z ±1/√3, ... over children the first opening
    # is (z_1 + z_0)/2 in both, the root is not asked.
    uneven = grow_fork([[[1.0, 0.0], 1.0], 0.0])
    z = (np.array([1, 0, 1, 0]) - 0.5) / np.sqrt(1 / 3)
    by_leaf = advantage(TreeBackupReading(average="episodes", **FREE), uneven)
    by_child = advantage(TreeBackupReading(average="children", **FREE), uneven)
    assert by_leaf[0] == pytest.approx((z[0] + z[1] + z[2]) / 3)
    assert by_child[0] == pytest.approx(((z[0] + z[1]) / 2 + z[2]) / 2)


@pytest.fixture
def two_trees(make_batch):
    """Six one-turn episodes, three in each of two trees, that share nothing."""
    return make_batch([1, 0, 0, 0, 1, 1]).with_signals(
        {"node": np.arange(6), "tree": np.array([0, 0, 0, 1, 1, 1])}
    )


def test_tree_grpo_worked_values(two_trees):
    # Group: mean .5, std √(1.5/5) = .547723, z = ±.912871. In a tree: mean 1/3, std √(1/3), which
    # gives 1.154701 and -.577350 for returns as for z. Sum: 2.067571, -1.490221.
    got = advantage(TreeGRPOSequential(epsilon=0.0), two_trees)
    expected = [1.154701, -0.577350, -0.577350, -1.154701, 0.577350, 0.577350]
    np.testing.assert_allclose(got, expected, atol=5e-7)
    got = advantage(TreeGRPOSum(epsilon=0.0), two_trees)
    expected = [2.067571, -1.490221, -1.490221, -2.067571, 1.490221, 1.490221]
    np.testing.assert_allclose(got, expected, atol=5e-7)


def test_an_episode_that_is_a_tree_by_itself(make_batch):
    batch = make_batch([4, 0, 2]).with_signals({"node": np.arange(3), "tree": np.array([0, 1, 1])})
    # Mean 2, std 2: z = 1, -1, 0. In its tree of one it keeps z, and 0 and -1 become ±1/√2.
    r = 0.5**0.5
    got = advantage(TreeGRPOSequential(epsilon=0.0), batch)
    np.testing.assert_allclose(got, [1, -r, r])
    got = advantage(TreeGRPOSequential(epsilon=0.0, lone_tree="zero"), batch)
    np.testing.assert_allclose(got, [0, -r, r])
    # In the sum its raw return of 4 would join, which no baseline has touched.
    got = advantage(TreeGRPOSum(epsilon=0.0), batch)
    np.testing.assert_allclose(got, [1, -1 - r, r])
    got = TreeGRPOSum(epsilon=0.0, lone_tree="raw").estimate(batch)
    np.testing.assert_allclose(got.advantage, [5, -1 - r, r])
    assert got.stats["lone_trees"] == 1


@LAW
@given(SEEDS)
def test_one_tree_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = batch.with_signals({"tree": 0 * batch.group})
    whole = advantage(GRPO(epsilon=0.0), batch)
    np.testing.assert_allclose(advantage(TreeGRPOSequential(epsilon=0.0), batch), whole, atol=1e-9)
    np.testing.assert_allclose(advantage(TreeGRPOSum(epsilon=0.0), batch), 2 * whole, atol=1e-9)


@LAW
@given(SEEDS)
def test_every_tree_adds_up_to_zero(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), episodes=6, silent=0.0)
    got = advantage(TreeGRPOSequential(), batch)
    opening = batch.agent_turn == 0
    for cell in np.unique(batch.group * 100 + batch.signals["tree"] * 10 + batch.agent):
        rows = opening & (batch.group * 100 + batch.signals["tree"] * 10 + batch.agent == cell)
        assert abs(got[rows].sum()) < 1e-9


@pytest.mark.parametrize("estimator", LEAVES, ids=lambda e: e.card.name)
@LAW
@given(SEEDS)
def test_a_shared_decision_is_trained_as_its_copies_would_be(
    random_leaves, grow_fork, estimator, seed
):
    batch = grow_fork([*random_leaves(np.random.default_rng(seed)), 0.0, 1.0])
    batch = batch.with_signals({"tree": batch.episode % 2})
    credit = estimator.estimate(batch)
    # Episodes by themselves, as if nothing were shared.
    apart = batch.with_signals({"node": np.arange(len(batch)), "replayed": np.zeros(len(batch))})
    alone = estimator.estimate(apart)
    node = batch.signals["node"]
    np.testing.assert_allclose(
        np.bincount(node, credit.weight * credit.advantage),
        np.bincount(node, alone.advantage),
        atol=1e-9,
    )
    assert not credit.weight[batch.signals["replayed"] > 0].any()
    assert credit.weight.sum() == pytest.approx(len(batch))
    unmarked = replace(batch, signals={k: batch.signals[k] for k in ("node", "tree")})
    assert estimator.estimate(unmarked).weight.tolist() == [1.0] * len(batch)


@AVERAGE
@LAW
@given(SEEDS)
def test_against_plain(random_leaves, grow_fork, average, seed):
    tree = random_leaves(np.random.default_rng(seed))
    batch = grow_fork(tree)
    for estimator, rule in (
        (SPOTree(average=average), difference),
        (SPOTree(average=average, edges="grpo"), in_spreads),
        (TreeRPOReading(average=average, ddof=1, epsilon=1e-6), standardised),
    ):
        got = advantage(estimator, batch)
        np.testing.assert_allclose(got, plain_rows(tree, average, rule), atol=1e-6)
    leaves = np.array(leaves_of(tree), dtype=np.float64)
    if len(leaves) > 1 and np.ptp(leaves) > 0:
        z = iter((leaves - leaves.mean()) / leaves.std(ddof=1))

        def renamed(node):
            return [renamed(child) for child in node] if isinstance(node, list) else next(z)

        expected = plain_rows(renamed(tree), average, lambda siblings, place, _: siblings[place])
        got = advantage(TreeBackupReading(average=average, **FREE), batch)
        np.testing.assert_allclose(got, expected, atol=1e-9)


@LAW
@given(SEEDS)
def test_tree_mem_against_plain(random_leaves, grow_fork, seed):
    tree = random_leaves(np.random.default_rng(seed))
    batch = grow_fork(tree, players=(0, 1, 2))
    value = np.array(plain_rows(tree, "episodes", lambda siblings, place, _: siblings[place]))
    got = advantage(TreeMem(ddof=1, epsilon=1e-6), batch)
    fresh = batch.signals["replayed"] == 0
    for role in np.unique(batch.role):
        once = value[fresh & (batch.role == role)]
        flat = len(once) < 2 or np.ptp(once) < 1e-12
        expected = 0.0 if flat else (value - once.mean()) / (once.std(ddof=1) + 1e-6)
        mine = batch.role == role
        np.testing.assert_allclose(got[mine], np.broadcast_to(expected, len(got))[mine], atol=1e-6)
        assert abs(got[mine & fresh].sum()) < 1e-6
    got = advantage(TreeMem(against="parent", **FREE), batch)
    np.testing.assert_allclose(got, plain_rows(tree, "episodes", difference), atol=1e-9)


@AVERAGE
@LAW
@given(SEEDS)
def test_batches_against_plain(random_leaves, grow_fork, average, seed):
    batch = grow_fork(random_leaves(np.random.default_rng(seed)))
    for estimator in (
        SPOTree(average=average),
        TreeRPOReading(average=average, **FREE),
        TreeMem(**FREE),
    ):
        got = advantage(estimator, batch)
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-7)
    backed_up = TreeBackupReading(average=average, ddof=1, epsilon=0.01)
    np.testing.assert_allclose(advantage(backed_up, batch), plain(backed_up, batch), atol=1e-9)
    forest = batch.with_signals({"tree": batch.episode % 2})
    for estimator in LEAVES:
        got = advantage(estimator, forest)
        np.testing.assert_allclose(got, plain_leaves(estimator, forest), atol=1e-6)


@AVERAGE
@LAW
@given(SEEDS)
def test_along_an_episode_it_adds_up(random_leaves, grow_fork, average, seed):
    tree = random_leaves(np.random.default_rng(seed))
    batch = grow_fork(tree)
    got = advantage(SPOTree(average=average), batch)
    expected = np.array(leaves_of(tree)) - worth(tree, average)
    np.testing.assert_allclose(np.bincount(batch.episode, got), expected, atol=1e-9)


@LAW
@given(SEEDS)
def test_over_the_siblings_it_adds_up_to_zero(random_leaves, grow_fork, seed):
    batch = grow_fork(random_leaves(np.random.default_rng(seed)))
    once = np.flatnonzero(batch.signals["replayed"] == 0)
    node = batch.signals["node"]
    parent = np.where(batch.turn == 0, -1, np.append(0, node)[:-1])[once]
    for estimator in (SPOTree(), SPOTree(edges="grpo"), TreeRPOReading(ddof=1, epsilon=1e-6)):
        got = advantage(estimator, batch)[once]
        np.testing.assert_allclose(np.bincount(parent + 1, got), 0.0, atol=1e-6)


def test_a_team_that_is_paid_alike_adds_up(grow_fork):
    tree = [[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]]
    batch = grow_fork(tree, players=(0, 1, 2))
    for estimator in (SPOTree(), TreeMem(against="parent", **FREE)):
        got = np.bincount(batch.episode, advantage(estimator, batch))
        np.testing.assert_allclose(got, np.array(leaves_of(tree)) - 0.5)


def test_opponents_are_not_paid_each_others_returns(grow_fork):
    # Agent 0 opens for 1 or 0 on average, and agent 1 loses what it wins.
    tree = [[1.0, 1.0], [0.5, -0.5]]
    batch = grow_fork(tree, players=(0, 1), pays=(1.0, -1.0))
    got = advantage(SPOTree(), batch)
    assert got[batch.agent == 0].tolist() == [0.5, 0.5, -0.5, -0.5]
    assert got[batch.agent == 1].tolist() == [0, 0, -0.5, 0.5]


@LAW
@given(SEEDS)
def test_without_depth_they_are_the_group_rules(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), agents=1, max_turns=1)
    grpo = advantage(GRPO(), batch)
    free = {"ddof": 1, "epsilon": 1e-6}
    for estimator in (
        TreeRPOReading(**free),
        TreeMem(**free),
        TreeBackupReading(average="children", **free),
    ):
        np.testing.assert_allclose(advantage(estimator, batch), grpo, atol=1e-9)
    np.testing.assert_allclose(advantage(SPOTree(), batch), advantage(DrGRPO(), batch), atol=1e-9)
    np.testing.assert_allclose(
        advantage(SPOTree(edges="grpo"), batch),
        advantage(GRPO(ddof=0, epsilon=1e-8), batch),
        atol=1e-7,
    )


@ALL
def test_equal_leaves_give_exact_zeros(estimator, grow_fork):
    batch = grow_fork([[0.1, 0.1, 0.1], [[0.1, 0.1], 0.1]])
    credit = estimator.estimate(batch)
    assert not credit.advantage.any()
    if isinstance(estimator, SPOTree):
        assert not credit.weight.any()


@ALL
def test_another_tree_elsewhere_changes_nothing(estimator, grow_fork, add_copies):
    batch = grow_fork([[1.0, 0.0], [0.5, 0.0]])
    both = add_copies(batch, np.arange(len(batch)))
    n = len(batch)
    both = replace(
        both,
        group=np.where(np.arange(2 * n) < n, 0, 1),
        reward=np.where(np.arange(2 * n) < n, both.reward, 100 * both.reward),
    )
    np.testing.assert_allclose(advantage(estimator, both)[:n], advantage(estimator, batch))


def test_tree_mem_alone_in_a_role(grow_fork):
    # One builder: nobody of its role to be compared with.
    batch = grow_fork([[1.0, 0.0]], players=(0, 1))
    got = advantage(TreeMem(**FREE), batch)
    assert not got[batch.agent == 0].any()
    raw = advantage(TreeMem(singleton="raw", **FREE), batch)
    assert raw[batch.agent == 0].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SPOTree, {"edges": "loo"}, "spo_tree.edges"),
        (SPOTree, {"average": "leaves"}, "spo_tree.average"),
        (SPOTree, {"epsilon": -1.0}, "spo_tree.epsilon"),
        (TreeRPOReading, {"ddof": 2, "epsilon": 0.0}, "tree_rpo_reading.ddof"),
        (TreeMem, {"against": "children", **FREE}, "tree_mem.against"),
        (TreeMem, {"unit": "turn", **FREE}, "tree_mem.unit"),
        (TreeBackupReading, {"average": "leaves", **FREE}, "tree_backup_reading.average"),
        (TreeGRPOSum, {"lone_tree": "drop"}, "tree_grpo_sum.lone_tree"),
        (TreeGRPOSequential, {"ddof": 2}, "tree_grpo_sequential.ddof"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)


@ALL
@pytest.mark.parametrize("leaves", [[1.0], [[[1.0]]], [[[[2.0]], [[2.0]]]]])
def test_one_leaf_and_equal_leaves_say_nothing(estimator, grow_fork, leaves):
    assert not estimator.estimate(grow_fork(leaves)).advantage.any()
