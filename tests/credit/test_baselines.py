"""What is counted once, and over which keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import baselines
from marl_llm.credit.baselines import Pool
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

LAW = settings(max_examples=30, deadline=None)

# Two episodes: agents 0 and 1 with two turns and one turn, then agent 0 with three turns.
EPISODE = [0, 0, 0, 1, 1, 1]
AGENT = [0, 1, 0, 0, 0, 0]
LENGTHS = [3, 1, 2, 0, 4, 5]


@pytest.fixture
def batch(make_batch):
    return make_batch([0] * 6, episode=EPISODE, agent=AGENT, role=[0] * 6, lengths=LENGTHS)


def flat(weight):
    return Pool(np.zeros(len(weight), dtype=int), np.array(weight, float), np.array([sum(weight)]))


@pytest.mark.parametrize(
    ("unit", "weight", "count"),
    [
        ("token", LENGTHS, 15),
        ("turn", [1, 1, 1, 0, 1, 1], 5),  # the silent turn is not counted
        ("agent", [1, 1, 0, 0, 1, 0], 3),  # the first sampled turn of each (episode, agent)
        ("episode", [0.5, 0.5, 0, 0, 1, 0], 2),  # two agents share the first episode
    ],
)
def test_what_is_counted_once(batch, unit, weight, count):
    pool = baselines.pool(batch, batch.agents(), (), unit)
    assert pool.weight.tolist() == weight
    assert pool.count.tolist() == [count]


def test_an_agent_counts_once_in_each_cell(batch):
    pool = baselines.pool(batch, batch.agents(), ("agent_turn",), "agent")
    # Cell 0: turns 0 of all three, but the third is silent. Cell 1: two. Cell 2: one.
    assert pool.count.tolist() == [2, 2, 1]


def test_the_first_turn_is_the_first_that_was_played(batch):
    # The rows turned round: still the first sampled turn of each agent, not its first row.
    there = batch.take(np.arange(6)[::-1])
    assert baselines.pool(there, there.agents(), (), "agent").weight.tolist() == [0, 1, 0, 0, 1, 1]


def test_unlike_roles_are_refused_by_name(make_batch):
    batch = make_batch([1, 2, 3, 4], agent=[0, 1, 0, 1], episode=[0, 0, 1, 1], group=[0, 0, 1, 1])
    with pytest.raises(ConfigError, match=r"'alice' and 'bob'.*mix_roles"):
        baselines.pool(batch, batch.agents(), ("group",), "agent")
    pool = baselines.pool(batch, batch.agents(), ("group",), "agent", mix_roles=True)
    assert pool.count.tolist() == [2, 2]


def test_an_agent_may_have_several_roles(make_batch):
    # Its whole return counts in both, by its first turn in each: 3 and 5 here, 3 and 5 there.
    batch = make_batch([1, 2, 4, 1], agent=[0] * 4, episode=[0, 0, 1, 1], role=[0, 1, 0, 1])
    with pytest.raises(ConfigError, match=r"pools roles 'alice' and 'bob'.*; add 'role' to `by`"):
        GRPO().estimate(batch)
    got = GRPO(by=["group", "agent", "role"], epsilon=0.0).estimate(batch)
    np.testing.assert_allclose(got.advantage, np.array([-1, -1, 1, 1]) / np.sqrt(2))
    assert got.stats["groups"] == 2


def test_unknown_column_offers_the_nearest(batch):
    with pytest.raises(ConfigError, match="did you mean 'group'"):
        batch.column("groups")


def test_moments_worked_by_hand():
    # Weights 1, 3: mean (1*2 + 3*6)/4 = 5, squares 1*9 + 3*1 = 12; ddof 0: 12/4, ddof 1: 12/3.
    pool = flat([1, 3])
    x = np.array([2.0, 6.0])
    assert baselines.mean(x, pool).tolist() == [5]
    assert baselines.std(x, pool, 0) ** 2 == pytest.approx(3)
    assert baselines.std(x, pool, 1) == 2


@LAW
@given(st.floats(-1e6, 1e6), st.integers(2, 40))
def test_equal_values_leave_exact_zeros(value, n):
    # The plain mean of ten times 0.1 is 0.09999999999999999, and its z-scores are not even small.
    x, pool = np.full(n, value), flat([1] * n)
    assert not baselines.centre(x, pool).any()
    assert not baselines.standardise(x, pool, ddof=1, epsilon=0.0).any()
    assert not baselines.whiten(x, np.ones(n), ddof=1, epsilon=0.0).any()
    against_others, alone = baselines.centre_on_others(x, pool, np.arange(n))
    assert not against_others.any()
    assert not alone.any()


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e8])
def test_sums_that_differ_by_rounding_alone_are_equal(size):
    # .1 + .2 + .3 and .3 + .2 + .1 differ in the last bit: over itself, that is a whole deviation.
    x = size * np.array([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1])
    pool = flat([1, 1])
    assert x[0] != x[1]
    assert not baselines.standardise(x, pool, ddof=0, epsilon=0.0).any()
    assert not baselines.whiten(x, np.ones(2), ddof=0, epsilon=0.0).any()
    assert baselines.pool_statistics(x, pool)["zero_std_groups"] == 1
    # A millionth of a millionth is a difference.
    x[1] = x[0] * (1 + 1e-12)
    assert np.abs(baselines.standardise(x, pool, ddof=0, epsilon=0.0)) == pytest.approx(1, abs=1e-3)
    assert baselines.pool_statistics(x, pool)["zero_std_groups"] == 0


@pytest.mark.parametrize(
    ("unit", "weight"),
    [
        ("token", [0, 1, 2, 0, 4, 5]),
        ("turn", [0, 1, 1, 0, 1, 1]),
        ("agent", [0, 1, 1, 0, 1, 0]),  # the first turn that is known of each
        ("episode", [0, 0.5, 0.5, 0, 1, 0]),
    ],
)
def test_what_is_not_known_is_not_counted(batch, unit, weight):
    known = np.array([False, True, True, True, True, True])
    pool = baselines.pool(batch, batch.agents(), (), unit, known=known)
    assert pool.weight.tolist() == weight
    assert pool.count.tolist() == [sum(weight)]


def test_an_episode_counts_once_however_many_of_its_agents_are_known(batch):
    # Agent 1 of the first episode is not known: agent 0 is all of it, not half.
    known = np.array([True, False, True, True, True, True])
    pool = baselines.pool(batch, batch.agents(), (), "episode", known=known)
    assert pool.weight.tolist() == [1, 0, 0, 0, 1, 0]
    assert pool.count.tolist() == [2]


def test_a_large_common_offset_does_not_make_a_spread():
    # One-pass E[x²] - E[x]² loses all digits here.
    x = 1e8 + np.array([0.0, 1.0, 2.0])
    assert baselines.std(x, flat([1, 1, 1]), 1) == 1


def test_leaving_oneself_out():
    # Others' means of 1, 2, 6: 4, 3.5, 1.5; 8 is alone.
    pool = Pool(np.array([0, 0, 0, 1]), np.ones(4), np.array([3.0, 1.0]))
    got = baselines.leave_one_out(np.array([1.0, 2, 6, 8]), pool)
    np.testing.assert_allclose(got, [-3, -1.5, 4.5, 0])


def test_the_whole_own_episode_is_left_out():
    # One cell. Episode 0 has 1 and 2, episode 1 has 4, episode 2 has 9.
    x, episode = np.array([1.0, 2, 4, 9]), np.array([0, 0, 1, 2])
    got, alone = baselines.centre_on_others(x, flat([1] * 4), episode)
    # (4 + 9)/2 = 6.5; (1 + 2 + 9)/3 = 4; (1 + 2 + 4)/3 = 7/3.
    np.testing.assert_allclose(got, [1 - 6.5, 2 - 6.5, 4 - 4, 9 - 7 / 3])
    assert not alone.any()
    got, alone = baselines.centre_on_others(x[:2], flat([1, 1]), episode[:2])
    assert got.tolist() == [0, 0]
    assert alone.all()


def test_whiten_three_ways():
    # Counts 1 and 3 of values 4 and 0: mean 1, variance (9 + 3)/4 = 3.
    x, weight = np.array([4.0, 0.0]), np.array([1.0, 3.0])
    s = np.sqrt(3.0)
    for shift_mean, expected in {
        "subtract": [3 / s, -1 / s],
        "restore": [3 / s + 1, -1 / s + 1],
        "keep": [4 / s, 0],
    }.items():
        got = baselines.whiten(x, weight, ddof=0, epsilon=0.0, shift_mean=shift_mean)
        np.testing.assert_allclose(got, expected)


def test_statistics_count_what_carries_no_signal():
    # Cells: {1, 2}, {5, 5}, {7}, and one whose only row is not counted.
    pool = Pool(
        np.array([0, 0, 1, 1, 2, 3]), np.array([1.0, 1, 1, 1, 1, 0]), np.array([2.0, 2, 1, 0])
    )
    got = baselines.pool_statistics(np.array([1.0, 2, 5, 5, 7, 0]), pool)
    assert got == {"groups": 3, "singletons": 1, "zero_std_groups": 1}
