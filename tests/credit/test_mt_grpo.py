"""MT-GRPO: the first turn's own reward beside the outcome."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.mt_grpo import MTGRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """The two segments, agent by agent and cell by cell."""
    lengths = batch.lengths
    weight, epsilon = estimator.turn_weight, estimator.epsilon
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    cells = defaultdict(list)
    for rows in chains.values():
        first = next((i for i in rows if lengths[i] > 0), None)
        turn = 0.0 if first in (None, rows[-1]) else batch.reward[first]
        outcome = sum(batch.reward[i] for i in rows) - turn
        cells[batch.group[rows[0]], batch.agent[rows[0]]].append((rows, first, turn, outcome))
    out = np.zeros(len(batch))
    for members in cells.values():
        counted = [m for m in members if m[1] is not None]
        if len(counted) < 2:
            continue
        turn, outcome = (np.array([m[k] for m in counted]) for k in (2, 3))
        for rows, first, own, whole in counted:
            out[rows] = (whole - outcome.mean()) / (outcome.std(ddof=1) + epsilon)
            out[first] += weight * (own - turn.mean()) / (turn.std(ddof=1) + epsilon)
    return np.where(lengths > 0, out, 0.0)


PLAIN = {"mt_grpo": plain}


@pytest.fixture
def two_turns(make_batch):
    """First rewards .2, .2, 0, 0; outcomes 1, 0, 0, 1."""
    return make_batch([0.2, 1, 0.2, 0, 0, 0, 0, 1], episode=[0, 0, 1, 1, 2, 2, 3, 3])


def test_worked_value(two_turns):
    # Turn: mean .1, squares 4 · .01, std √(.04/3) = .11547; .1/(.11547 + 1e-4) = .865276.
    # Outcome: mean .5, std √(1/3) = .57735; .5/(.57735 + 1e-4) = .865875.
    t, o = 0.865276, 0.865875
    expected = [o + t, o, -o + t, -o, -o - t, -o, o - t, o]
    np.testing.assert_allclose(MTGRPO().estimate(two_turns).advantage, expected, atol=2e-6)


def test_a_single_turn_is_outcome_and_gets_both_terms(make_batch):
    # First rewards 0 (alone), 1; outcomes 3, 0. Each z is ∓.5/√.5 = ∓.70711, without ε.
    batch = make_batch([3, 1, 0], episode=[0, 1, 1])
    z = np.sqrt(0.5)
    got = MTGRPO(epsilon=0.0).estimate(batch)
    np.testing.assert_allclose(got.components["outcome"], [z, -z, -z])
    np.testing.assert_allclose(got.components["turn"], [-z, z, 0])


@LAW
@given(SEEDS, st.floats(0, 3))
def test_as_a_plain_loop_does_it(random_batch, seed, weight):
    batch = random_batch(np.random.default_rng(seed))
    estimator = MTGRPO(turn_weight=weight)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_the_turn_term_it_is_grpo_on_the_outcome(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    agents = batch.agents()
    late = np.where((agents.before > 0) | (agents.after == 0), batch.reward, 0.0)
    grpo = GRPO(epsilon=1e-4).estimate(replace(batch, reward=late)).advantage
    np.testing.assert_allclose(MTGRPO(turn_weight=0.0).estimate(batch).advantage, grpo, atol=1e-12)
    # Equal first rewards say nothing either.
    got = MTGRPO().estimate(replace(batch, reward=late)).advantage
    np.testing.assert_allclose(got, grpo, atol=1e-12)


def test_a_silent_turn_is_not_the_first(make_batch):
    # The first reply was empty: the second is the first that can have a term of its own.
    batch = make_batch([5, 1, 0, 0, 0], episode=[0, 0, 0, 1, 1], lengths=[0, 1, 1, 1, 1])
    # First rewards 1 and 0, outcomes 5 and 0: each z is ±.5/√.5.
    got = MTGRPO(epsilon=0.0).estimate(batch).components
    z = np.sqrt(0.5)
    np.testing.assert_allclose(got["turn"], [0, z, 0, -z, 0])
    np.testing.assert_allclose(got["outcome"][1:], [z, z, -z, -z])


@LAW
@given(SEEDS)
def test_each_term_sums_to_0_over_a_cell(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    parts = MTGRPO().estimate(batch).components
    first = batch.agent_turn == 0
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            cell = first & (batch.group == group) & (batch.agent == agent)
            assert abs(parts["outcome"][cell].sum()) < 1e-9
            assert abs(parts["turn"][cell].sum()) < 1e-9


def test_equal_rewards_give_exact_zeros(make_batch):
    batch = make_batch([0.1, 0.7] * 5, episode=np.repeat(np.arange(5), 2))
    assert not MTGRPO().estimate(batch).advantage.any()


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"mt_grpo\.turn_weight"):
        MTGRPO(turn_weight=-1.0)
