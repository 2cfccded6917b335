"""Stepwise gain: joint normalisation, missing estimates, and GRPO as its one-turn case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.stepwise_gain import StepwiseGain
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Gains agent by agent from its last turn, then each cell's mean and spread of them."""
    gain, value = np.full(len(batch), np.nan), batch.signals["value"]
    known = batch.known("value") & (batch.lengths > 0)
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        after = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            after += batch.reward[k]
            if known[k]:
                gain[k], after = after - value[k], value[k]
    out = np.zeros(len(batch))
    for k in np.flatnonzero(known):
        like = known & (batch.group == batch.group[k]) & (batch.agent == batch.agent[k])
        if like.sum() > 1:
            out[k] = (gain[k] - gain[like].mean()) / (gain[like].std() + estimator.epsilon)
    return out


PLAIN = {"stepwise_gain": plain}


def two_rollouts(make_batch):
    # Estimates 0, .5 and then the return .9; 0, .4 and then .3.
    return make_batch([0, 0.9, 0, 0.3], episode=[0, 0, 1, 1], signals={"value": [0, 0.5, 0, 0.4]})


def test_worked_values(make_batch):
    # Gains .5, .4, .4, -.1: mean .3, squares .04 + .01 + .01 + .16 = .22, std √.055 = .234521.
    got = StepwiseGain(epsilon=0.0).estimate(two_rollouts(make_batch)).advantage
    np.testing.assert_allclose(got, [0.852803, 0.426401, 0.426401, -1.705606], atol=1e-6)


def test_early_gains_keep_their_size(make_batch):
    # Place by place, .5 and .4 would become 1 and -1, as .4 and -.1 do.
    got = StepwiseGain().estimate(two_rollouts(make_batch)).advantage
    assert got[2] > 0
    assert got[0] - got[2] < got[1] - got[3]


def test_a_silent_last_turn_still_pays(make_batch):
    # The forfeit of -1 falls to the turn before: gains -1 - .5 and .5 - .5.
    signals = {"value": [0.5, 0.7, 0.5]}
    batch = make_batch([0, -1, 0.5], episode=[0, 0, 1], lengths=[1, 0, 1], signals=signals)
    got = StepwiseGain(epsilon=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, [-1, 0, 1])


def test_a_missing_estimate_is_not_an_estimate_of_zero(make_batch):
    # The middle turn is not counted; the first gains what both did, .8 - .5. Gains .3, .2 | .25.
    batch = make_batch([0, 0, 1, 0.5], episode=[0, 0, 0, 1])
    batch = batch.with_signals({"value": np.array([0.5, np.nan, 0.8, 0.25])})
    got = StepwiseGain(epsilon=0.0).estimate(batch)
    np.testing.assert_allclose(got.advantage, np.array([1, 0, -1, 0]) * np.sqrt(1.5), atol=1e-9)
    assert got.stats["missing_labels"] == 1


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, silent=0.2)
    holes = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["value"])
    batch = batch.with_signals({"value": holes})
    estimator = StepwiseGain(epsilon=0.01)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_a_cell_sums_to_zero(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = StepwiseGain().estimate(batch).advantage
    cell = batch.group * 10 + batch.agent
    np.testing.assert_allclose(np.bincount(cell, got), 0, atol=1e-9)


@LAW
@given(SEEDS)
def test_one_turn_judged_from_one_start_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=1, silent=0.0)
    ended = replace(
        batch,
        terminated=np.ones(len(batch), dtype=bool),
        truncated=np.zeros(len(batch), dtype=bool),
        signals={"value": np.full(len(batch), 0.3)},
    )
    got = StepwiseGain().estimate(ended).advantage
    np.testing.assert_allclose(got, GRPO(ddof=0).estimate(ended).advantage, atol=1e-6)


def test_equal_gains_and_turns_alone_give_exact_zeros(make_batch):
    signals = {"value": [0.1, 0.1, 0.4]}
    batch = make_batch([0.4, 0.4, 1], group=[0, 0, 1], signals=signals)
    got = StepwiseGain().estimate(batch)
    assert not got.advantage.any()
    assert got.stats["singletons"] == got.stats["zero_std_groups"] == 1
    alone = StepwiseGain(singleton="raw", epsilon=0.0).estimate(batch)
    np.testing.assert_allclose(alone.advantage, [0, 0, 0.6])


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"stepwise_gain.unit has no option 'agent'"):
        StepwiseGain(unit="agent")
    with pytest.raises(ConfigError, match=r"stepwise_gain.ddof"):
        StepwiseGain(ddof=2)
