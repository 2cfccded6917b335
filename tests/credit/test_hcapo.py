"""Hindsight: HCAPO's term beside the outcome, and the plain ratio."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.hcapo import HCAPO, HindsightRatio, hindsight_ratio
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """Ratios agent by agent, then two z per cell."""
    lengths = batch.lengths
    smoothing, gamma, epsilon = estimator.smoothing, estimator.gamma, estimator.epsilon
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    pi = np.exp(batch.signals["hindsight_logprob"] / estimator.temperature)
    total, q = np.zeros(len(batch)), np.zeros(len(batch))
    steps, outcomes = defaultdict(list), defaultdict(list)
    for rows in chains.values():
        said = [i for i in rows if lengths[i] > 0]
        total[rows] = sum(batch.reward[i] for i in rows)
        for k, i in enumerate(rows):
            ratio = (
                np.clip(pi[i] / np.mean(pi[said]), estimator.low, estimator.high)
                if i in said
                else 1.0
            )
            q[i] = ratio * gamma ** (len(rows) - 1 - k) * total[i]
        for i, j in pairwise(rows):
            q[i] = smoothing * q[i] + (1 - smoothing) * q[j]
        cell = batch.group[rows[0]], batch.agent[rows[0]]
        steps[cell] += said
        outcomes[cell] += [total[i] for i in said[:1]]
    out = np.zeros(len(batch))
    for cell, rows in steps.items():
        for i in rows:
            if len(outcomes[cell]) > 1:
                out[i] += (total[i] - np.mean(outcomes[cell])) / (np.std(outcomes[cell]) + epsilon)
            if len(rows) > 1:
                step = (q[i] - np.mean(q[rows])) / (np.std(q[rows]) + epsilon)
                out[i] += max(step, 0.0) if total[i] > 0 else step
    return out


def plain_ratio(estimator, batch):
    """The plain hindsight advantage, turn by turn."""
    lengths = batch.lengths
    total = {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
    hindsight, known = batch.signals["hindsight_logprob"], batch.known("hindsight_logprob")
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i] and known[i]:
            said = batch.logprobs[batch.offsets[i] : batch.offsets[i + 1]]
            ratio = np.exp(hindsight[i] - sum(said) / len(said))
            ratio = min(max(ratio, estimator.low), estimator.high)
            out[i] = (1 - 1 / ratio) * total[batch.episode[i], batch.agent[i]]
    return out


PLAIN = {"hcapo": plain, "hindsight_ratio_reading": plain_ratio}


@pytest.fixture
def pair(make_batch):
    """A won episode with likelihoods .9 and .6 in hindsight, a lost one with .5 and .5."""
    signals = {"hindsight_logprob": 5 * np.log([0.9, 0.6, 0.5, 0.5])}
    return make_batch([0, 1, 0, 0], episode=[0, 0, 1, 1], signals=signals)


def test_worked_value(pair):
    # ρ = .9/.75 = 1.2, .6/.75 = .8, 1, 1; Q = 1.2 · .95 = 1.14, .8, 0, 0: mean .485, squares .4290
    # .0992 .2352 .2352, std √(.9987/4) = .4997: z = 1.3109 .6304 -.9706 -.9706; z(R) = ±1.
    credit = HCAPO(success=0.0).estimate(pair)
    np.testing.assert_allclose(credit.advantage, [2.3109, 1.6304, -1.9706, -1.9706], atol=2e-4)
    np.testing.assert_allclose(credit.components["outcome"], [1, 1, -1, -1], atol=1e-5)


def test_smoothing_by_hand(pair):
    # Q' = .5 · 1.14 + .5 · .8 = .97, .8, 0, 0.
    q = np.array([0.97, 0.8, 0, 0])
    got = HCAPO(success=0.0, smoothing=0.5).estimate(pair).components["hindsight"]
    np.testing.assert_allclose(got, (q - q.mean()) / q.std(), atol=1e-5)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_as_a_plain_loop_does_it(random_batch, seed, smoothing):
    batch = random_batch(np.random.default_rng(seed))
    estimator = HCAPO(success=0.0, smoothing=smoothing)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-7)
    ratio = HindsightRatio(low=0.8, high=1.5)
    got = ratio.estimate(batch).advantage
    np.testing.assert_allclose(got, plain_ratio(ratio, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_the_hindsight_term_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = HCAPO(success=0.0, weight=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, GRPO(ddof=0).estimate(batch).advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_hindsight_does_a_success_no_harm(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), binary=True)
    hindsight = HCAPO(success=0.0).estimate(batch).components["hindsight"]
    agents = batch.agents()
    won = np.bincount(agents.of, batch.reward, agents.count)[agents.of] > 0
    assert np.all(hindsight[won] >= 0)


def test_ratios(make_batch):
    batch = make_batch([0] * 4, episode=[0, 0, 0, 1])
    likelihood, agents = np.array([0.5, 0.5, 0.5, 0.1]), batch.agents()
    everywhere = np.ones(4, dtype=bool)
    assert hindsight_ratio(likelihood, everywhere, agents, 0.8, 1.2).tolist() == [1, 1, 1, 1]
    # .9 .1 .5: mean .5, clipped at both ends; unknown turns have 1 and are in no mean.
    likelihood[:3] = 0.9, 0.1, 0.5
    assert hindsight_ratio(likelihood, everywhere, agents, 0.8, 1.2).tolist() == [1.2, 0.8, 1, 1]
    known = np.array([True, False, True, True])
    got = hindsight_ratio(likelihood, known, agents, 0.1, 2.0)
    np.testing.assert_allclose(got, [0.9 / 0.7, 1, 0.5 / 0.7, 1])


def test_plain_ratio_by_hand(make_batch):
    # Sampled with -.5 per token, -.5 + log 1.25 in hindsight: 1 - 1/1.25 = .2 of a return of 2;
    # as likely as before: 0; less likely, down to the limit: 1 - 1/.8 = -.25.
    h = -0.5 + np.log([1.25, 1.0, 0.1])
    batch = make_batch([0, 0, 2], episode=[0, 0, 0], signals={"hindsight_logprob": h})
    got = HindsightRatio(low=0.8, high=2.0).estimate(batch).advantage
    np.testing.assert_allclose(got, [0.4, 0, -0.5], atol=1e-12)


@LAW
@given(SEEDS)
def test_plain_ratio_as_a_loop_does_it(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = HindsightRatio(low=0.5, high=2.0).estimate(batch)
    for i in np.flatnonzero(batch.lengths > 0):
        own = batch.logprobs[batch.offsets[i] : batch.offsets[i + 1]].mean()
        ratio = np.exp(batch.signals["hindsight_logprob"][i] - own)
        mine = (batch.episode == batch.episode[i]) & (batch.agent == batch.agent[i])
        expected = (1 - 1 / np.clip(ratio, 0.5, 2.0)) * batch.reward[mine].sum()
        assert credit.advantage[i] == pytest.approx(expected)


def test_what_the_outcome_says_nothing_of_gets_0(random_batch):
    batch = random_batch(np.random.default_rng(0))
    batch = replace(batch, logprobs=np.full(len(batch.logprobs), -0.5))
    batch = batch.with_signals({"hindsight_logprob": np.full(len(batch), -0.5)})
    assert not HindsightRatio(low=0.8, high=1.2).estimate(batch).advantage.any()


def test_a_failure_without_reward_teaches_nothing(random_batch):
    batch = random_batch(np.random.default_rng(0))
    lost = replace(batch, reward=np.zeros(len(batch)))
    assert not HindsightRatio(low=0.8, high=1.2).estimate(lost).advantage.any()
    assert not HCAPO(success=0.0).estimate(lost).advantage.any()


def test_missing_labels_are_neutral(pair):
    lost = np.where(np.arange(4) == 0, np.nan, pair.signals["hindsight_logprob"])
    batch = pair.with_signals({"hindsight_logprob": lost})
    # ρ = 1 for the unknown turn, and for the other one, which is alone in its mean.
    q = np.array([0.95, 1, 0, 0])
    credit = HCAPO(success=0.0).estimate(batch)
    np.testing.assert_allclose(credit.components["hindsight"], (q - q.mean()) / q.std(), atol=1e-5)
    assert credit.stats["missing_labels"] == 1
    assert HindsightRatio(low=0.8, high=1.2).estimate(batch).advantage[0] == 0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (HCAPO, {"success": 0.0, "low": 1.1}, "low <= 1 <= high"),
        (HCAPO, {"success": 0.0, "temperature": 0.0}, "hcapo.temperature"),
        (HindsightRatio, {"low": 0.0, "high": 2.0}, "hindsight_ratio_reading needs 0 < low"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
