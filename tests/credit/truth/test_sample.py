"""Samples: played turns as batches, with exact credit, replays, trees and restarts."""

from __future__ import annotations

import numpy as np
import pytest

from marl_llm.credit.rloo import RLOO
from marl_llm.credit.truth import TRUTHS
from marl_llm.credit.truth.bifurcation import all_good, any_good, bifurcations
from marl_llm.credit.truth.play import all_plays
from marl_llm.credit.truth.process import solve
from marl_llm.credit.truth.sample import Look, grow, restart, sample, write_down
from marl_llm.errors import ConfigError


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(params=list(TRUTHS), scope="module")
def drawn(request):
    truth = TRUTHS[request.param]
    return sample(truth.process(), rng(), groups=40, look=truth.look)


def test_rewards_are_what_the_process_paid_each_agent_from_its_first_turn_on(drawn):
    process, batch = drawn.process, drawn.batch
    for episode in range(10):
        rows = drawn.row_of[episode][drawn.row_of[episode] >= 0]
        pays = process.pay[drawn.state[rows], drawn.action[rows], drawn.branch[rows]]
        for agent in np.unique(batch.agent[rows]):
            own = rows[batch.agent[rows] == agent]
            column = min(int(agent), pays.shape[1] - 1)
            since = pays[np.flatnonzero(rows == own[0])[0] :, column].sum()
            assert batch.reward[own].sum() == pytest.approx(since)


def test_states_follow_each_other(drawn):
    after, batch = drawn.after(), drawn.batch
    ends = np.append(batch.episode[1:] != batch.episode[:-1], True)
    assert np.all(after[ends] == len(drawn.process))
    np.testing.assert_array_equal(drawn.state[1:][~ends[:-1]], after[:-1][~ends[:-1]])


def test_episodes_of_a_group_start_alike(drawn):
    first = drawn.row_of[:, 0].reshape(40, 8)
    assert np.all(drawn.state[first] == drawn.state[first[:, :1]])


def test_what_is_drawn_has_the_values_of_the_process(drawn):
    process = drawn.process
    much = sample(process, rng(1), groups=4000, size=1)
    first = much.batch.turn == 0
    agent = much.batch.agent[first]
    total = np.bincount(much.played, much.batch.reward * (much.batch.agent == agent[much.played]))
    expected = much.solution.value[much.state[first]]
    error = (total - expected).std() / np.sqrt(len(total)) + 1e-12
    assert abs((total - expected).mean()) < 4 * error


def test_a_resampler_returns_values(drawn):
    batch, solution = drawn.batch, drawn.solution
    rows = np.arange(0, len(batch), max(1, len(batch) // 12))
    count = 4000
    before = drawn.before()[rows]
    played = drawn.resampler(rng(2))(rows, count)
    assert played.shape == (len(rows), count)
    error = 5 * played.std(axis=1) / np.sqrt(count) + 1e-9
    expected = before + solution.value[drawn.state[rows]]
    assert np.all(np.abs(played.mean(axis=1) - expected) < error)
    agents = batch.agents()
    played = drawn.resampler(rng(3))(rows, count, after=True)
    column = drawn.process.payee(batch.agent[rows])
    at = drawn.state[rows], drawn.action[rows], drawn.branch[rows], column
    expected = before + drawn.process.pay[at] + solution.values[drawn.after()[rows], column]
    total = np.bincount(agents.of, batch.reward, agents.count)[agents.of]
    last = agents.after[rows] == 0
    assert np.all(played[last] == total[rows][last, None])  # behind it nothing is played
    error = 5 * played.std(axis=1) / np.sqrt(count) + 1e-9
    assert np.all(np.abs(played.mean(axis=1) - expected)[~last] < error[~last])


def test_credit_of_all_episodes_gives_the_exact_gradient():
    """RLOO over two episodes, every pair of them weighted by its probability."""
    process = bifurcations(all_good, turns=3, at=(0, 2), p=0.4, nuisance=2)
    solution, plays = solve(process), all_plays(process)
    n = len(plays.probability)
    first, second = (x.ravel() for x in np.meshgrid(range(n), range(n)))
    both = np.stack((first, second), axis=1).ravel()
    pairs = type(plays)(*(x[both] for x in (plays.state, plays.action, plays.branch, plays.pay)))
    listed = write_down(process, pairs, group=np.repeat(np.arange(n * n), 2), rng=rng())
    weight = (plays.probability[first] * plays.probability[second])[listed.batch.group]
    credit = RLOO().estimate(listed.batch).advantage
    for turn in (0, 1, 2):
        rows = listed.batch.turn == turn
        score = listed.action[rows] - (0.5 if turn == 1 else 0.4)
        found = np.sum(weight[rows] * credit[rows] * score) / 2
        states = process.turn == turn
        flow = solution.reach * process.policy[:, 1] * solution.advantage[:, 1]
        assert found == pytest.approx(flow[states].sum())


def test_looks():
    process = bifurcations(all_good)
    look = Look(tokens=(1, 3), unique=0.5)
    batch = sample(process, rng(), groups=50, look=look).batch
    assert set(batch.lengths) == {1, 2, 3}
    chosen = batch.logprobs[batch.offsets[:-1]]
    assert np.all(np.isin(chosen, np.log([1 / 2, 1 / 3])))
    assert batch.logprobs.sum() == pytest.approx(chosen.sum())  # the other tokens follow
    _, times = np.unique(batch.state_key, return_counts=True)
    assert 0.4 < (times == 1).sum() / len(batch) < 0.6
    apart = sample(process, rng(), groups=2).batch
    assert not set(apart.state_key[apart.group == 0]) & set(apart.state_key[apart.group == 1])
    one = sample(process, rng(), groups=2, look=Look(shared_keys=True)).batch
    assert set(one.state_key[one.group == 0]) & set(one.state_key[one.group == 1])


def test_shared_chance_is_one_schedule():
    process = TRUTHS["schedule"].process()
    for shared in (True, False):
        drawn = sample(process, rng(), groups=30, look=Look(shared_chance=shared))
        event = process.event[drawn.state]
        met = drawn.branch[event].reshape(30, 8, 3)
        assert np.all(met == met[:, :1]) == shared


def test_trees_share_their_trunks():
    process = bifurcations(all_good)
    grown = grow(process, rng(), groups=30, trees=2, forks=(2, 2))
    batch = grown.batch
    node, tree = batch.signals["node"], batch.signals["tree"]
    copied = batch.signals["replayed"] > 0
    assert np.all(tree[node] == tree)
    np.testing.assert_array_equal(grown.state[node], grown.state)
    np.testing.assert_array_equal(grown.action[node], grown.action)
    # One trunk, then two, then four, at turns that differ from tree to tree.
    own = (~copied).reshape(60, 4, 8).sum(axis=1)
    assert np.all(np.diff(own, axis=1) >= 0)
    assert np.all(own[:, 0] == 1) and np.all(own[:, -1] <= 4)
    assert len(np.unique(np.argmax(own > 1, axis=1))) > 3
    # A copied turn is followed in its episode by the same or by its own turns, never before them.
    assert np.all(np.diff(copied.reshape(-1, 8).astype(int), axis=1) <= 0)
    parted = grown.action.reshape(60, 4, 8)[:, 0] != grown.action.reshape(60, 4, 8)[:, 2]
    assert parted.any()


def test_restarts_replay_the_first_failure():
    drawn = restart(bifurcations(any_good), rng(), groups=60, fresh=4, replays=4)
    batch = drawn.batch
    won = np.bincount(drawn.played, batch.reward).reshape(60, 8)
    reset = batch.signals["suffix_of"].reshape(60, 8, 8)
    again = batch.signals["replayed"].reshape(60, 8, 8)
    assert np.all(reset[:, :4] == -1) and not again[:, :4].any()
    failed = (won[:, :4] == 0).any(axis=1)
    assert failed.any() and not failed.all()
    assert np.all(reset[failed, 4:] >= 0) and np.all(reset[~failed, 4:] == -1)
    assert np.all(again[failed, 4:, 0] == 1) and not again[failed, 4:, -1].any()
    for group in np.flatnonzero(failed)[:10]:
        source = 8 * group + np.argmax(won[group, :4] == 0)
        leaders = drawn.node.reshape(60, 8, 8)[group, 4:][again[group, 4:] > 0]
        assert set(drawn.played[leaders]) == {source}


def test_a_replay_is_never_a_copy_through_and_through():
    # Half of all episodes stop at once: they have no turn but the first.
    drawn = restart(TRUTHS["stopping"].process(), rng(), groups=200)
    suffix, copied = drawn.batch.signals["suffix_of"] >= 0, drawn.copied
    assert suffix.any()
    own = np.bincount(drawn.played, ~copied)
    assert own.min() >= 1
    assert copied[suffix & (drawn.batch.turn == 0)].all()


def test_callers_are_parents():
    drawn = sample(TRUTHS["delegation"].process(), rng(), groups=20)
    batch = drawn.batch
    planner = batch.names["agent"].index("planner")
    called = batch.agent != planner
    assert np.all(batch.depth == called)
    assert np.all(batch.parent[~called] == -1)
    parent = batch.parent[called]
    assert np.all(batch.agent[parent] == planner) and np.all(batch.turn[parent] == 0)
    assert np.all(batch.episode[parent] == batch.episode[called])


@pytest.mark.parametrize("options", [{"tokens": 0}, {"tokens": (3, 2)}, {"unique": 1.5}])
def test_bad_looks(options):
    with pytest.raises(ConfigError):
        Look(**options)


def test_listed_episodes_had_no_luck():
    process = bifurcations(all_good, turns=2, at=(0, 1))
    plays = all_plays(process)
    listed = write_down(process, plays, group=np.zeros(len(plays.state), dtype=int), rng=rng())
    with pytest.raises(ConfigError, match="listed episodes had no luck"):
        listed.luck_from(np.arange(2))
