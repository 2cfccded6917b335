"""Information gain: pooled and summed up with the outcome, and alone."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.igpo import IGPO, InfoGain
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """Two pools per cell, and a return over what comes out of them."""
    lengths = batch.lengths
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    gain = np.exp(batch.signals["gold_after"]) - np.exp(batch.signals["gold_before"])
    gains, outcomes = defaultdict(list), defaultdict(list)
    for rows in chains.values():
        cell = batch.group[rows[0]], batch.agent[rows[0]]
        sampled = [i for i in rows if lengths[i] > 0]
        gains[cell] += [gain[i] for i in sampled[:-1]]
        if sampled:
            outcomes[cell].append(sum(batch.reward[i] for i in rows))

    def z(x, values):
        return (
            (x - np.mean(values)) / (np.std(values) + estimator.epsilon) if len(values) > 1 else 0.0
        )

    out = np.zeros(len(batch))
    for rows in chains.values():
        cell = batch.group[rows[0]], batch.agent[rows[0]]
        outcome, later = z(sum(batch.reward[i] for i in rows), outcomes[cell]), 0.0
        last = max((k for k, i in enumerate(rows) if lengths[i] > 0), default=None)
        for k, i in reversed(list(enumerate(rows))):
            own = outcome if k == last else z(gain[i], gains[cell]) if lengths[i] else 0.0
            later = out[i] = estimator.gamma * later + own
    return np.where(lengths > 0, out, 0.0)


def plain_gain(estimator, batch):
    """The gain of every turn."""
    before, after = batch.signals["gold_before"], batch.signals["gold_after"]
    known = batch.known("gold_before") & batch.known("gold_after") & (batch.lengths > 0)
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if known[i]:
            out[i] = math.exp(after[i]) - math.exp(before[i])
    return out


PLAIN = {"igpo": plain, "info_gain_reading": plain_gain}


@pytest.fixture
def search(four_rollouts):
    """Probabilities .1 .3 .7, .1 .05, .1 .1 .2 and .1 .6 before each turn; what follows the last
    turn is read by nobody."""
    before = np.log([0.1, 0.3, 0.7, 0.1, 0.05, 0.1, 0.1, 0.2, 0.1, 0.6])
    after = np.log([0.3, 0.7, 0.9, 0.05, 0.9, 0.1, 0.2, 0.9, 0.6, 0.9])
    return four_rollouts(
        [0, 0, 1, 0, 0, 0, 0, 0, 0, 1], {"gold_before": before, "gold_after": after}
    )


def test_worked_value(search):
    # Gains .2 .4 | -.05 | 0 .1 | .5: mean .19167, std .20087, so z = .0415 1.0372 | -1.2031 |
    # -.9542 -.4564 | 1.535. Outcomes 1 0 0 1: z = ±1. Summed from the end of each episode.
    expected = [2.0787, 2.0372, 1, -2.2031, -1, -2.4105, -1.4564, -1, 2.535, 1]
    np.testing.assert_allclose(IGPO().estimate(search).advantage, expected, atol=2e-4)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_as_a_plain_loop_does_it(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed))
    estimator = IGPO(gamma=gamma)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)
    got = InfoGain().estimate(batch).advantage
    np.testing.assert_allclose(got, plain_gain(InfoGain(), batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_without_gain_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    still = batch.with_signals({"gold_after": batch.signals["gold_before"]})
    got = IGPO().estimate(still).advantage
    np.testing.assert_allclose(got, GRPO(ddof=0).estimate(batch).advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_the_pooled_gains_sum_to_0(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    gain = IGPO(gamma=0.0).estimate(batch).components["gain"]
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            assert abs(gain[(batch.group == group) & (batch.agent == agent)].sum()) < 1e-9


def test_trap_of_the_turn_without_gain(search):
    # The sixth turn has gain 0: left out of the pool, the mean would be .23 instead of .19167.
    gain = IGPO(gamma=0.0).estimate(search).components["gain"]
    np.testing.assert_allclose(gain[5], -0.9542, atol=1e-4)
    assert IGPO().estimate(search).advantage[5] != IGPO().estimate(search).advantage[6]


def test_the_answer_is_the_last_turn_with_tokens(make_batch):
    # An empty reply behind the answer: the answer's gain is not pooled, its outcome counts.
    before, after = np.log([[0.1, 0.3, 0.7, 0.1], [0.3, 0.9, 0.7, 0.2]])
    batch = make_batch([0, 1, 0, 0], episode=[0, 0, 0, 1], lengths=[1, 1, 0, 1]).with_signals(
        {"gold_before": before, "gold_after": after}
    )
    credit = IGPO(gamma=0.5).estimate(batch)
    # One gain only, so none is compared; outcomes 1 and 0 are ±1 with the population's std.
    np.testing.assert_allclose(credit.advantage, [0.5, 1, 0, -1], atol=1e-5)


def test_what_others_found_out_is_not_this_agents_gain(make_batch):
    # a_0 gains .1; b_0 then gains .3; a_0 starts again from .5.
    before, after = np.log([0.1, 0.2, 0.5]), np.log([0.2, 0.5, 0.5])
    signals = {"gold_before": before, "gold_after": after}
    batch = make_batch([0, 0, 0], episode=[0, 0, 0], agent=[0, 1, 0], signals=signals)
    got = InfoGain().estimate(batch).advantage
    np.testing.assert_allclose(got, [0.1, 0.3, 0], atol=1e-12)


@LAW
@given(SEEDS)
def test_gains_telescope_along_an_agent_that_is_alone(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), agents=1, silent=0.0)
    rng = np.random.default_rng(seed)
    last = batch.agents().after == 0
    before = -rng.exponential(size=len(batch))
    after = np.where(last, -0.5, np.roll(before, -1))
    batch = batch.with_signals({"gold_before": before, "gold_after": after})
    got = InfoGain().estimate(batch).advantage
    for episode in np.unique(batch.episode):
        rows = np.flatnonzero(batch.episode == episode)
        assert got[rows].sum() == pytest.approx(np.exp(-0.5) - np.exp(before[rows[0]]))


def test_a_gain_of_log_probability(search):
    # log 3, log 7/3, -log 2, 0, log 2, log 6: mean .7389; that of the first, 1.0986, is above it.
    gain = IGPO(gamma=0.0, gain="log_probability").estimate(search).components["gain"]
    logs = np.log([3, 7 / 3, 0.5, 1, 2, 6])
    expected = (logs - logs.mean()) / logs.std()
    np.testing.assert_allclose(gain[[0, 1, 3, 5, 6, 8]], expected, atol=1e-5)


def test_a_missing_probe_leaves_the_pool(search):
    lost = np.where(np.arange(10) == 8, np.nan, search.signals["gold_after"])
    batch = search.with_signals({"gold_after": lost})
    credit = IGPO(gamma=0.0).estimate(batch)
    assert credit.advantage[8] == 0
    assert credit.stats["missing_labels"] == 1
    # Gains .2 .4 -.05 0 .1: mean .13, squares .0049 .0729 .0324 .0169 .0009, std √(.128/5) = .16.
    np.testing.assert_allclose(credit.advantage[0], 0.07 / 0.16, atol=1e-5)
    assert InfoGain().estimate(batch).advantage[8] == 0


def test_a_probability_above_1_is_refused(search):
    batch = search.with_signals({"gold_after": np.full(10, 0.1)})
    for estimator in (IGPO(), InfoGain()):
        with pytest.raises(EpisodeError, match=r"'gold_after' of turn 0 of episode 0 is 0\.1"):
            estimator.estimate(batch)


def test_rewards_are_not_read_by_the_gain_alone(search):
    louder = replace(search, reward=search.reward + 5)
    got = InfoGain().estimate(louder).advantage
    np.testing.assert_array_equal(got, InfoGain().estimate(search).advantage)
    np.testing.assert_allclose(got[:2], [0.2, 0.4])


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"igpo\.gain"):
        IGPO(gain="log")
