"""ReCAST: rewards allocated to the turns that they tell something about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.recast_reading import RecastReading, allocate
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
NAMES = ("informative_outcome", "informative_shaping")


def shaped(rng, batch):
    """The batch with some part of its rewards as shaping."""
    return replace(batch, shaping=rng.normal(size=len(batch)))


def alone(batch):
    """GRPO of the outcome, and of shaping, each by itself."""
    return [
        plain_outcome(batch, reward=reward)
        for reward in (batch.reward - batch.shaping, batch.shaping)
    ]


def plain(estimator, batch):
    """The formula, agent by agent, on a matrix of two rows."""
    lengths = batch.lengths
    base = alone(batch)
    known = batch.known(NAMES[0]) & batch.known(NAMES[1])
    total = sum(estimator.weights)
    advantage = np.zeros(len(batch))
    for episode, agent in set(zip(batch.episode.tolist(), batch.agent.tolist(), strict=True)):
        turns = [
            i
            for i in range(len(batch))
            if (batch.episode[i], batch.agent[i]) == (episode, agent) and lengths[i]
        ]
        split = [
            [max(batch.signals[name][i] if known[i] else 0.0, estimator.floor) for i in turns]
            for name in NAMES
        ]
        for _ in range(estimator.rounds):
            for k, weight in enumerate(estimator.weights):
                held = sum(split[k])
                split[k] = [x * weight / total / held if held else 0.0 for x in split[k]]
            for t in range(len(turns)):
                held = split[0][t] + split[1][t]
                split[0][t], split[1][t] = (x[t] / held / len(turns) for x in split)
        for t, i in enumerate(turns):
            advantage[i] = len(turns) * (split[0][t] * base[0][i] + split[1][t] * base[1][i])
    return advantage


PLAIN = {"recast_reading": plain}


def test_worked_value():
    # W = [a, .7 - a], [.5 - a, a - .2] with the cross ratio of I kept: .1·.1/(.4·.3) = 1/12 =
    # a(a - .2)/((.7 - a)(.5 - a)), so 11a² - 1.2a - .35 = 0 and a = (1.2 + √16.84)/22 = .241075.
    split, error = allocate(
        np.array([[0.1, 0.4], [0.3, 0.1]]), np.array([0.7, 0.3]), np.array([0, 0]), 1, 100
    )
    np.testing.assert_allclose(split, [[0.241075, 0.458925], [0.258925, 0.041075]], atol=1e-6)
    assert error < 1e-12


def test_worked_credit(make_batch):
    # Outcomes 1 and 0 with shaping 0 and 1: A = ±.7071 of the outcome, ∓.7071 of shaping. Shares of
    # the first agent's turns 2·(.241075, .258925), 2·(.458925, .041075): (-.0357, .8357)·.7071.
    batch = make_batch(
        [0, 1, 0, 1],
        episode=[0, 0, 1, 1],
        signals={NAMES[0]: [0.1, 0.4] * 2, NAMES[1]: [0.3, 0.1] * 2},
    )
    batch = replace(batch, shaping=np.array([0.0, 0, 0, 1]))
    credit = RecastReading(weights=(0.7, 0.3), floor=1e-6).estimate(batch)
    first = np.array([-0.0357, 0.8357]) * 0.70711
    np.testing.assert_allclose(credit.advantage, [*first, *-first], atol=5e-5)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_against_a_plain_loop(random_batch, seed, weight):
    rng = np.random.default_rng(seed)
    batch = shaped(rng, random_batch(rng))
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals[NAMES[0]])
    batch = batch.with_signals({NAMES[0]: lost})
    estimator = RecastReading(weights=(weight, 1.5 - weight), floor=0.05, rounds=7)
    credit = estimator.estimate(batch)
    np.testing.assert_allclose(credit.advantage, plain(estimator, batch), atol=1e-9)
    assert credit.stats["missing_labels"] == np.sum(np.isnan(lost) & (batch.lengths > 0))


@LAW
@given(SEEDS)
def test_the_mean_over_an_agents_turns_is_kept(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = shaped(rng, random_batch(rng, silent=0.0))
    credit = RecastReading(weights=(0.7, 0.3), floor=0.1).estimate(batch)
    assert credit.stats["allocation_error"] < 1e-9
    outcome, shaping = alone(batch)
    agents = batch.agents()
    np.testing.assert_allclose(
        np.bincount(agents.of, credit.advantage),
        np.bincount(agents.of, 0.7 * outcome + 0.3 * shaping),
        atol=1e-7,
    )
    # Every turn gets a weighted mean of the two.
    low, high = np.minimum(outcome, shaping), np.maximum(outcome, shaping)
    assert np.all((credit.advantage >= low - 1e-9) & (credit.advantage <= high + 1e-9))


@LAW
@given(SEEDS)
def test_one_reward_alone_is_grpo_and_turns_alike_share_alike(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = shaped(rng, random_batch(rng))
    outcome, shaping = alone(batch)
    for weights, expected in [((2.0, 0.0), outcome), ((0.0, 0.1), shaping)]:
        got = RecastReading(weights=weights, floor=0.1).estimate(batch).advantage
        np.testing.assert_allclose(got, expected, atol=1e-12)
    for told in (0.5, np.nan):
        alike = batch.with_signals({name: np.full(len(batch), told) for name in NAMES})
        got = RecastReading(weights=(0.7, 0.3), floor=0.1).estimate(alike).advantage
        np.testing.assert_allclose(got, 0.7 * outcome + 0.3 * shaping, atol=1e-12)


def test_a_scaling_cut_short_says_how_far_it_is(make_batch):
    batch = make_batch([0, 1], episode=[0, 0], signals={NAMES[0]: [0.0, 1.0], NAMES[1]: [1.0, 0.0]})
    estimator = RecastReading(weights=(0.9, 0.1), floor=1e-6, rounds=1)
    assert estimator.estimate(batch).stats["allocation_error"] > 0.1


def test_nonsense_is_refused(make_batch):
    for options, message in [
        ({"weights": (1.0,), "floor": 0.1}, "two numbers"),
        ({"weights": (0.0, 0.0), "floor": 0.1}, "not both 0"),
        ({"weights": (0.7, 0.3), "floor": 0.0}, "recast_reading.floor"),
        ({"weights": (0.7, 0.3), "floor": 0.1, "rounds": 0}, "recast_reading.rounds"),
    ]:
        with pytest.raises(ConfigError, match=message):
            RecastReading(**options)
    batch = make_batch([0], signals={NAMES[0]: [-1], NAMES[1]: [1]})
    with pytest.raises(EpisodeError, match="'informative_outcome' of turn 0 of episode 0 is -1"):
        RecastReading(weights=(0.7, 0.3), floor=0.1).estimate(batch)
