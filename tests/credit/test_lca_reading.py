"""LCA: potential differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.lca_reading import LCAReading
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The next potential of the same agent, or the last, minus this one."""
    lengths = batch.lengths
    potential, end = batch.signals["potential"], batch.signals["potential_next"]
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        after = [
            potential[j]
            for j in range(len(batch))
            if batch.episode[j] == batch.episode[i]
            and batch.agent[j] == batch.agent[i]
            and batch.agent_turn[j] == batch.agent_turn[i] + 1
        ]
        if lengths[i] > 0:
            out[i] = estimator.gamma * (after[0] if after else end[i]) - potential[i]
    return out


PLAIN = {"lca_reading": plain}


def scored(make_batch, *potentials):
    """One episode; agent i finds the scores of the i-th list, the last one at the end."""
    turns = [len(scores) - 1 for scores in potentials]
    return make_batch(
        [0] * sum(turns),
        episode=[0] * sum(turns),
        agent=np.repeat(np.arange(len(turns)), turns),
        signals={
            "potential": np.concatenate([scores[:-1] for scores in potentials]),
            "potential_next": np.concatenate([
                np.full(len(scores) - 1, scores[-1]) for scores in potentials
            ]),
        },
    )  # fmt: skip


def test_worked_value(make_batch):
    # γ = .99: .99 * .5 - .2 = .295, .99 * .4 - .5 = -.104, .99 * .9 - .4 = .491.
    batch = scored(make_batch, [0.2, 0.5, 0.4, 0.9], [0.1, 0.1, 0.6, 0.6])
    got = LCAReading(gamma=0.99).estimate(batch).advantage
    np.testing.assert_allclose(got, [0.295, -0.104, 0.491, -0.001, 0.494, -0.006], atol=1e-12)
    # Discounted, they are γ³ φ_3 - φ_0: .970299 * .9 - .2 and .970299 * .6 - .1.
    weight = 0.99 ** np.arange(3)
    assert weight @ got[:3] == pytest.approx(0.6732691)
    assert weight @ got[3:] == pytest.approx(0.4821794)


@LAW
@given(SEEDS)
def test_they_telescope(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = LCAReading().estimate(batch).advantage
    agents = batch.agents()
    total = np.bincount(agents.of, got, agents.count)[agents.of]
    first, last = agents.before == 0, agents.after == 0
    start = np.bincount(agents.of, np.where(first, batch.signals["potential"], 0))[agents.of]
    end = np.bincount(agents.of, np.where(last, batch.signals["potential_next"], 0))[agents.of]
    np.testing.assert_allclose(total, end - start, atol=1e-12)


@LAW
@given(SEEDS)
def test_one_step_gae_without_rewards(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    open_ended = replace(
        batch,
        reward=np.zeros(len(batch)),
        terminated=np.zeros(len(batch), dtype=bool),
        truncated=batch.terminated | batch.truncated,
        signals={
            "value": batch.signals["potential"],
            "value_next": batch.signals["potential_next"],
        },
    )
    expected = GAE(gamma=0.9, lam=0.0).estimate(open_ended).advantage
    np.testing.assert_allclose(LCAReading(gamma=0.9).estimate(batch).advantage, expected)


@LAW
@given(SEEDS)
def test_equal_scores_say_nothing(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    level = np.full(len(batch), 0.3)
    credit = LCAReading().estimate(
        batch.with_signals({"potential": level, "potential_next": level})
    )
    assert not credit.advantage.any()


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    estimator = LCAReading(gamma=0.9)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-12)


def test_taking_over_is_neither_paid_nor_charged(make_batch):
    # One agent leaves at φ = .7, its successor finds .7 there: together they get what one would.
    alone = LCAReading().estimate(scored(make_batch, [0.1, 0.4, 0.7, 0.2])).advantage
    pair = LCAReading().estimate(scored(make_batch, [0.1, 0.4, 0.7], [0.7, 0.2])).advantage
    np.testing.assert_allclose(pair, alone)


def test_next_to_a_missing_score_nothing_is_known(make_batch):
    batch = scored(make_batch, [0.1, 0.4, 0.7, 0.2])
    lost = batch.with_signals({"potential": np.array([0.1, np.nan, 0.7])})
    credit = LCAReading().estimate(lost)
    np.testing.assert_allclose(credit.advantage, [0, 0, -0.5])
    assert credit.stats["missing_labels"] == 2


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"lca_reading.gamma"):
        LCAReading(gamma=1.1)
