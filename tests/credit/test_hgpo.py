"""HGPO: states compared at several depths of history."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gigpo import GiGPO
from marl_llm.credit.hgpo import HGPO, blend, histories
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
SPARSE = [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]


def plain(estimator, batch):
    """Every history as a tuple of states."""
    lengths = batch.lengths
    history, scale = estimator.history, estimator.mode == "mean_std_norm"
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    to_go, clusters = {}, defaultdict(list)
    for rows in chains.values():
        later = 0.0
        for i in reversed(rows):
            later = to_go[i] = batch.reward[i] + estimator.gamma * later
        states = [batch.state_key[i] for i in rows]
        for t, i in enumerate(rows):
            for k in range(1, min(history + 1, t + 1) + 1):
                past = tuple(states[t - k + 1 : t + 1])
                if lengths[i] > 0:
                    clusters[batch.group[i], batch.agent[i], k, past].append(i)
    said = defaultdict(list)
    for (_, _, k, _), rows in clusters.items():
        x = np.array([to_go[i] for i in rows])
        if len(rows) > 1 and np.ptp(x) > 0:
            level = (x - x.mean()) / (x.std() + estimator.epsilon if scale else 1.0)
            for i, value in zip(rows, level, strict=True):
                if abs(value) > 1e-12:
                    said[i].append(((k + 1) ** estimator.alpha, value))
    out = np.zeros(len(batch))
    for i, items in said.items():
        out[i] = sum(w * a for w, a in items) / sum(w for w, _ in items)
    return out


PLAIN = {"hgpo": plain}


def test_worked_value(four_rollouts):
    # Level 1 is GiGPO's step term. At level 2, state 0 and then 1 is shared by episodes 0 and 1,
    # whose G of .95 and 0 are ±.475 from their mean: (2 · .6333 + 3 · .475) / 5 = .5383, and
    # (-2 · .3167 - 3 · .475) / 5 = -.4117. The turn at state 1 after 3 is alone there.
    got = HGPO(history=1, mode="mean_norm").estimate(four_rollouts(SPARSE)).advantage
    expected = [0.4394, 0.5383, 0, -0.4631, -0.4117, -0.4631, -0.5, -0.3167, 0.4869, 0.5]
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_histories_by_hand(make_batch):
    batch = make_batch([0] * 6, episode=[0, 0, 0, 1, 1, 1], state_key=[7, 8, 9, 5, 8, 9])
    one, two, three = histories(batch.state_key, batch.agents(), 3)
    assert one.tolist() == [7, 8, 9, 5, 8, 9]
    # 8 came after 7 here and after 5 there, and 9 after 8 in both; three states back they differ.
    assert two[[0, 3]].tolist() == [-1, -1]
    assert two[1] != two[4]
    assert two[2] == two[5]
    assert three[[0, 1, 3, 4]].tolist() == [-1] * 4
    assert three[2] != three[5]


def test_what_is_exactly_0_has_no_weight():
    levels = np.array([[0.0, 0.0, 3.0], [1.0, 0.0, 3.0], [4.0, 0.0, 0.0]])
    # Weights 1, 2, 3: (2 + 12)/5 = 2.8; nothing; (3 + 6)/3 = 3.
    np.testing.assert_allclose(blend(levels, 1.0).sum(axis=0), [2.8, 0.0, 3.0])


@LAW
@given(SEEDS, st.integers(0, 3), st.floats(0, 2), st.booleans())
def test_as_a_plain_loop_does_it(random_batch, seed, history, alpha, scale):
    batch = random_batch(np.random.default_rng(seed))
    mode = "mean_std_norm" if scale else "mean_norm"
    estimator = HGPO(history=history, alpha=alpha, mode=mode)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_without_history_it_is_the_step_term_of_gigpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = HGPO(history=0, mode="mean_norm").estimate(batch).advantage
    expected = GiGPO(episode_weight=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, expected, atol=1e-12)


@LAW
@given(SEEDS)
def test_where_no_history_repeats_only_the_state_counts(random_batch, seed):
    # Every second state of an agent is one of its own, so that two states back nobody is alike.
    batch = random_batch(np.random.default_rng(seed))
    own = np.where(batch.agent_turn % 2 == 1, 1000 + np.arange(len(batch)), batch.state_key)
    batch = replace(batch, state_key=own)
    deep = HGPO(history=3, mode="mean_norm").estimate(batch).advantage
    flat = HGPO(history=0, mode="mean_norm").estimate(batch).advantage
    np.testing.assert_allclose(deep, flat, atol=1e-12)


def test_the_whole_return_can_join(four_rollouts):
    # State 2 is alone at every level, so only level 0 speaks there: 1 - 2/4 by agent.
    batch = four_rollouts(SPARSE)
    got = HGPO(base=True, mode="mean_norm", unit="agent").estimate(batch)
    assert got.advantage[2] == 0.5
    # State 3 of episode 3: (1 · .5 + 2 · .5 + 3 · .5) / 6.
    np.testing.assert_allclose(got.advantage[9], 0.5)
    assert HGPO(mode="mean_norm").estimate(batch).advantage[2] == 0


def test_equal_returns_give_exact_zeros(make_batch):
    batch = make_batch([0.1] * 6, state_key=[0] * 6)
    assert not HGPO(base=True).estimate(batch).advantage.any()


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"hgpo\.history"):
        HGPO(history=-1)
