"""LaRe with a linear fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.lare_reading import LaReReading, ridge_fit
from marl_llm.credit.mars import Mars
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
FACTORS = ("progress", "judge_score")


def plain(estimator, batch):
    """Episodes (or agents in them) as lists, normal equations, then backwards along each agent."""
    lengths = batch.lengths
    n, gamma = range(len(batch)), estimator.gamma
    z = np.array([[batch.signals[name][i] for name in estimator.factors] for i in n])
    z[lengths == 0] = 0.0
    key = [(batch.episode[i], batch.agent[i] if estimator.per == "agent" else 0) for i in n]
    features, targets = [], []
    for k in sorted(set(key)):
        rows = [i for i in n if key[i] == k]
        if any(lengths[i] > 0 for i in rows):
            agents = {batch.agent[i] for i in rows}
            features.append(sum(z[i] for i in rows))
            targets.append(sum(batch.reward[i] for i in rows) / len(agents))
    if not features:
        return np.zeros(len(batch))
    x, y = np.array(features), np.array(targets)
    latent = z @ np.linalg.inv(x.T @ x + estimator.ridge * np.eye(x.shape[1])) @ x.T @ y
    to_go = np.array([
        sum(
            gamma ** (batch.agent_turn[j] - batch.agent_turn[i]) * latent[j]
            for j in n
            if batch.episode[j] == batch.episode[i]
            and batch.agent[j] == batch.agent[i]
            and batch.agent_turn[j] >= batch.agent_turn[i]
        )
        for i in n
    ])  # fmt: skip
    out = np.zeros(len(batch))
    for i in n:
        same = [
            to_go[j]
            for j in n
            if lengths[j] > 0
            and batch.group[j] == batch.group[i]
            and batch.agent[j] == batch.agent[i]
        ]
        if lengths[i] > 0 and len(same) > 1:
            out[i] = to_go[i] - np.mean(same)
    return out


PLAIN = {"lare_reading": plain}


def scored(batch):
    return replace(batch, signals={name: batch.signals[name] for name in FACTORS})


def test_worked_value(make_batch):
    # One factor: episode 0 scores 1 and 2, return 7; episode 1 scores 1 and 0, return 1. Sums 3 and
    # 1, α = 1: w = (3 * 7 + 1 * 1)/(9 + 1 + 1) = 2. r̂ = 2 4 2 0, to go 6 4 2 0, mean 3.
    batch = make_batch([0, 7, 0, 1], episode=[0, 0, 1, 1], signals={"factor/work": [1, 2, 1, 0]})
    credit = LaReReading(factors=("factor/work",), ridge=1.0).estimate(batch)
    np.testing.assert_allclose(credit.advantage, [3, 1, -1, -3])
    # Missed: 7 - 6 and 1 - 2, of 49 + 1.
    assert credit.stats["explained"] == pytest.approx(1 - 2 / 50)


@LAW
@given(SEEDS, st.sampled_from(["episode", "agent"]))
def test_against_a_loop(random_batch, seed, per):
    batch = random_batch(np.random.default_rng(seed), silent=0.2)
    estimator = LaReReading(factors=FACTORS, ridge=0.5, per=per, gamma=0.9)
    got = estimator.estimate(scored(batch)).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS, st.sampled_from(["episode", "agent"]))
def test_a_return_that_the_scores_make_up_is_found_again(random_batch, seed, per):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, silent=0.0, episodes=8)
    weights = rng.normal(size=2)
    truth = np.stack([batch.signals[name] for name in FACTORS], axis=1) @ weights
    if (
        per == "episode"
    ):  # the team's sum of latent rewards, paid to both agents at their last turns
        whole = np.bincount(batch.episode, truth)[batch.episode]
        paid = np.where(batch.agents().after == 0, whole, 0.0)
    else:
        paid = truth
    estimator = LaReReading(factors=FACTORS, ridge=1e-9, per=per)
    credit = estimator.estimate(scored(replace(batch, reward=paid)))
    assert credit.stats["explained"] == pytest.approx(1)
    expected = Mars().estimate(replace(batch, reward=truth)).components["return"]
    np.testing.assert_allclose(credit.components["return"], expected, atol=1e-5)


@LAW
@given(SEEDS)
def test_scores_that_say_nothing_pay_nothing(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    silent = replace(batch, signals={name: np.zeros(len(batch)) for name in FACTORS})
    credit = LaReReading(factors=FACTORS, ridge=1.0).estimate(silent)
    assert not credit.advantage.any()
    assert credit.stats["explained"] == 0


def test_features_that_say_the_same_share_the_weight():
    # Without the ridge the equations of equal columns have no single answer.
    column = np.array([[1.0], [2.0], [3.0]])
    weights = ridge_fit(np.hstack([column, column]), 2 * column[:, 0], 1e-6)
    np.testing.assert_allclose(weights, [1, 1], atol=1e-5)


def test_an_episode_with_a_missing_score_does_not_count_in_the_fit(make_batch):
    batch = make_batch([7, 1, 100], episode=[0, 1, 2]).with_signals({
        "progress": np.array([3, 1, np.nan])
    })  # fmt: skip
    credit = LaReReading(factors=("progress",), ridge=1.0).estimate(batch)
    # w = 22/11 = 2: r̂ = 6 2 0, mean 8/3.
    np.testing.assert_allclose(credit.advantage, np.array([6, 2, 0]) - 8 / 3)
    assert credit.stats["missing_labels"] == 1


def test_nonsense_is_refused(make_batch):
    with pytest.raises(EpisodeError, match="no signal 'factor/work'"):
        LaReReading(factors=("factor/work",), ridge=1.0).estimate(make_batch([1]))
    with pytest.raises(ConfigError, match=r"lare_reading.factors is a list"):
        LaReReading(factors="progress", ridge=1.0)
    with pytest.raises(ConfigError, match=r"lare_reading.ridge"):
        LaReReading(factors=("progress",), ridge=0.0)
