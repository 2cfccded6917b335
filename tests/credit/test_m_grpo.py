"""M-GRPO: main rows against main rows, calls against calls, whatever their number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.given import Given
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.m_grpo import MGRPO, MGRPORandom, duplicate_or_drop
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def drawn_copies(estimator, batch, spoken, cell):
    """How often each call counts by chance, where that is asked for."""
    if not isinstance(estimator, MGRPORandom):
        return {}
    calls = sorted(spoken, key=lambda k: (*k[:2], batch.turn[k[2]] if k[2] >= 0 else -1))
    rollouts = sorted({(k[0], cell[k]) for k in calls})
    rollout = np.array([rollouts.index((k[0], cell[k])) for k in calls])
    count = duplicate_or_drop(rollout, estimator.size, np.random.default_rng(0))
    return dict(zip(calls, count.tolist(), strict=True))


def plain(estimator, batch):
    """The advantages and the weights of all turns; chance begins with 0."""
    lengths = batch.lengths
    n = range(len(batch))
    key = [(batch.episode[i], batch.agent[i], batch.parent[i]) for i in n]
    total, cell, spoken = {}, {}, set()
    for i in n:
        total[key[i]] = total.get(key[i], 0.0) + batch.reward[i]
        cell[key[i]] = (batch.group[i], batch.role[i], batch.depth[i])
        if lengths[i] > 0:
            spoken.add(key[i])

    def nested(k):
        if cell[k][2] == 0:
            return 1.0
        if "call_share" in batch.signals:
            return batch.signals["call_share"][key.index(k)]
        caller = key[k[2]]
        made = {j for j in spoken if j[2] >= 0 and key[j[2]] == caller}
        return nested(caller) / max(len(made), 1)

    def share(k):
        if isinstance(estimator, MGRPORandom):
            return copies[k] / estimator.size if cell[k][2] > 0 else 1.0
        if estimator.alignment == "none":
            return 1.0
        if estimator.alignment == "nested":
            return nested(k)
        return 1.0 / max(sum(j[0] == k[0] and cell[j] == cell[k] for j in spoken), 1)

    copies = drawn_copies(estimator, batch, spoken, cell)

    advantage, weight = np.zeros(len(batch)), np.zeros(len(batch))
    for i in n:
        if lengths[i] == 0:
            continue
        weight[i] = share(key[i])
        members = [k for k in spoken if cell[k] == cell[key[i]]]
        values = np.array([total[k] for k in members])
        shares = np.array([share(k) for k in members])
        if np.ptp(values) > 0:
            middle = np.average(values, weights=shares)
            spread = np.sqrt(np.average((values - middle) ** 2, weights=shares))
            advantage[i] = (total[key[i]] - middle) / (spread + estimator.epsilon)
    return advantage, weight


PLAIN = dict.fromkeys(
    ("m_grpo", "m_grpo_nested", "m_grpo_random"),
    lambda estimator, batch: plain(estimator, batch)[0],
)


@pytest.fixture
def query(make_batch):
    """Two episodes: outcome 1 with one call of return 1, outcome 0 with calls of 0, 0 and 1."""
    batch = make_batch(
        [1, 1, 0, 0, 0, 1],
        episode=[0, 0, 1, 1, 1, 1],
        agent=[0, 1, 0, 1, 2, 3],
        role=[0, 1, 0, 1, 1, 1],
    )
    return replace(
        batch,
        turn=np.array([0, 1, 0, 1, 2, 3]),
        parent=np.array([-1, 0, -1, 2, 2, 2]),
        depth=np.array([0, 1, 0, 1, 1, 1]),
    )


def test_worked_value(query):
    # Planners: mean 1/2, std 1/2: +1, -1. Calls, each episode once: mean (1 + 1/3)/2 = 2/3,
    # variance (1/9 + (4/9 + 4/9 + 1/9)/3)/2 = (1/9 + 1/3)/2 = 2/9, std .471405:
    # (1 - 2/3)/.471405 = .707107, -2/3/.471405 = -1.414214.
    credit = MGRPO(epsilon=0.0).estimate(query)
    up, down = np.sqrt(0.5), -np.sqrt(2)
    np.testing.assert_allclose(credit.advantage, [1, up, -1, down, down, up])
    np.testing.assert_allclose(credit.weight, [1, 1, 1, 1 / 3, 1 / 3, 1 / 3])
    # Each call once: mean 1/2, std 1/2.
    credit = MGRPO(epsilon=0.0, alignment="none").estimate(query)
    np.testing.assert_allclose(credit.advantage, [1, 1, -1, -1, -1, 1])
    assert credit.weight.tolist() == [1] * 6


def test_random_alignment_by_hand(query):
    # With d = 1 the episode with three calls keeps one of them. Is it the good one, all calls that
    # count are equal and get 0; otherwise mean 1/2 and std 1/2, so +1 and -1.
    for seed in range(8):
        given_ = Given(np.random.default_rng(seed))
        credit = MGRPORandom(size=1, epsilon=0.0).estimate(query, given_)
        kept = np.flatnonzero(credit.weight[3:]) + 3
        assert len(kept) == 1
        assert credit.weight[[0, 1, 2, kept[0]]].tolist() == [1, 1, 1, 1]
        expected = [0, 0] if kept[0] == 5 else [1, -1]
        assert credit.advantage[[1, kept[0]]].tolist() == expected
        assert credit.advantage[[0, 2]].tolist() == [1, -1]


@LAW
@given(SEEDS, st.sampled_from(["weights", "none"]))
def test_against_a_loop(random_calls, seed, alignment):
    batch = random_calls(np.random.default_rng(seed))
    estimator = MGRPO(alignment=alignment)
    credit, (advantage, weight) = estimator.estimate(batch), plain(estimator, batch)
    np.testing.assert_allclose(credit.advantage, advantage, atol=1e-9)
    np.testing.assert_allclose(credit.weight, weight, atol=1e-12)


@LAW
@given(SEEDS)
def test_nobody_calls_and_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    expected = GRPO(ddof=0).estimate(batch).advantage
    for alignment in ("weights", "nested", "none"):
        credit = MGRPO(alignment=alignment).estimate(batch)
        np.testing.assert_allclose(credit.advantage, expected, atol=1e-12)
        np.testing.assert_array_equal(credit.weight, batch.lengths > 0)


@LAW
@given(SEEDS)
def test_every_episode_weighs_the_same_below(random_calls, seed):
    batch = random_calls(np.random.default_rng(seed))
    for estimator in (MGRPO(), MGRPORandom(size=3)):
        credit = estimator.estimate(batch, Given(np.random.default_rng(seed)))
        # One sampled turn stands for each call.
        key = np.stack([batch.episode, batch.agent])[:, credit.weight > 0]
        first = np.flatnonzero(credit.weight > 0)[np.unique(key, axis=1, return_index=True)[1]]
        for episode in np.unique(batch.episode):
            for depth in (1, 2):
                of = first[(batch.episode[first] == episode) & (batch.depth[first] == depth)]
                if len(of):
                    assert credit.weight[of].sum() == pytest.approx(1)


def test_nested_weights_follow_the_tree(make_batch):
    # A planner calls two searchers; the first calls two readers, the second one. By depth the
    # readers weigh 1/3 each, by the tree 1/4, 1/4 and 1/2.
    batch = make_batch([0, 0, 1, 2, 0, 6], episode=[0] * 6, agent=range(6), role=[0, 1, 2, 2, 1, 2])
    batch = replace(
        batch,
        turn=np.arange(6),
        parent=np.array([-1, 0, 1, 1, 0, 4]),
        depth=np.array([0, 1, 2, 2, 1, 2]),
    )
    credit = MGRPO(alignment="nested", epsilon=0.0).estimate(batch)
    np.testing.assert_allclose(credit.weight, [1, 1 / 2, 1 / 4, 1 / 4, 1 / 2, 1 / 2])
    # Mean of 1, 2, 6: 1/4 + 2/4 + 6/2 = 3.75, variance (2.75² + 1.75²)/4 + 2.25²/2 = 5.1875.
    expected = (np.array([1, 2, 6]) - 3.75) / np.sqrt(5.1875)
    np.testing.assert_allclose(credit.advantage[[2, 3, 5]], expected)
    np.testing.assert_allclose(MGRPO().estimate(batch).weight[[2, 3, 5]], 1 / 3)


def test_an_episode_without_calls_counts_for_the_planner_only(query, take_rows):
    # The call of episode 0 goes: the planners keep their numbers, the other calls lose one sibling.
    lonely = take_rows(query, [0, 2, 3, 4, 5])
    credit = MGRPO(epsilon=0.0).estimate(lonely)
    # Calls 0 0 1: mean 1/3, std √2/3.
    down, up = -1 / np.sqrt(2), np.sqrt(2)
    np.testing.assert_allclose(credit.advantage, [1, -1, down, down, up])
    random = MGRPORandom(size=4).estimate(lonely, Given(np.random.default_rng(0)))
    np.testing.assert_allclose(random.advantage[:2], [1, -1], atol=1e-5)


def test_a_call_alone_at_its_query_gets_nothing_not_its_raw_return(query, take_rows):
    batch = take_rows(query, [0, 1, 2])
    assert MGRPO().estimate(batch).advantage[1] == 0


def test_calls_of_another_query_are_not_compared(query, make_batch):
    # The release groups whatever calls stand in the queue next to each other.
    far = replace(query, group=np.array([0, 0, 1, 1, 1, 1]))
    credit = MGRPO(epsilon=0.0).estimate(far)
    assert credit.advantage[[0, 1, 2]].tolist() == [0, 0, 0]


@LAW
@given(SEEDS)
def test_sub_agents_on_a_server_of_their_own_are_credited_as_in_the_team(random_calls, seed):
    batch = random_calls(np.random.default_rng(seed))
    batch = replace(batch, agent=batch.role, agent_turn=batch.turn)  # one name, called anew
    batch = batch.with_signals({"caller": np.where(batch.depth, batch.turn[batch.parent], -1)})
    team = MGRPO().estimate(batch)
    for role in (0, 1, 2):
        rows = np.flatnonzero(batch.role == role)
        alone = MGRPO().estimate(batch.take(rows))
        np.testing.assert_allclose(alone.advantage, team.advantage[rows], atol=1e-9)
        np.testing.assert_allclose(alone.weight, team.weight[rows], atol=1e-12)


def test_the_random_rule_repeats_and_drops_alike_on_average():
    # A call of a rollout of n counts d/n times, whether n is above or below d.
    sizes = np.array([1, 2, 3, 5, 9, 14])
    rollout = np.repeat(np.arange(6), sizes)
    rng = np.random.default_rng(0)
    draws = np.array([duplicate_or_drop(rollout, 8, rng) for _ in range(3000)])
    assert np.all(np.add.reduceat(draws, np.cumsum(sizes) - sizes, axis=1) == 8)
    assert np.all(draws[:, rollout <= 3] >= 1)
    assert np.all(draws[:, rollout > 3] <= 1)
    expected = np.repeat(8 / sizes, sizes)
    error = 4 * draws.std(axis=0).max() / np.sqrt(3000)
    np.testing.assert_allclose(draws.mean(axis=0), expected, atol=error)


def test_weights_are_the_random_rule_without_its_noise(random_calls):
    batch = random_calls(np.random.default_rng(5), episodes=8)
    rng = np.random.default_rng(0)
    drawn = [MGRPORandom(size=2).estimate(batch, Given(rng)) for _ in range(2000)]
    weight = np.mean([credit.weight for credit in drawn], axis=0)
    # The standard deviation of copies/d is at most 1/2 per draw of a rollout's calls.
    np.testing.assert_allclose(weight, MGRPO().estimate(batch).weight, atol=4 * 0.5 / 2000**0.5)


def test_nothing_to_align():
    none = duplicate_or_drop(np.zeros(0, dtype=np.int64), 4, np.random.default_rng(0))
    assert none.shape == (0,)


def test_chance_has_to_be_given(query):
    with pytest.raises(ConfigError, match="m_grpo_random draws at random"):
        MGRPORandom().estimate(query)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (MGRPO, {"alignment": "weight"}, "did you mean 'weights'"),
        (MGRPO, {"by": "group"}, r"m_grpo.by is a list"),
        (MGRPORandom, {"size": 0}, "m_grpo_random.size"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
