"""PiCA: the coded step reward, and the shaping of the abstract."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.pica import PiCA, PiCAShipped, step_reward
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """Both step rewards, and GAE backwards along each agent."""
    shipped, lam = isinstance(estimator, PiCAShipped), estimator.lam
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    value, end = batch.signals["value"], batch.signals["value_next"]
    out = np.zeros(len(batch))
    for rows in chains.values():
        later, after = 0.0, 0.0 if batch.terminated[rows[-1]] else end[rows[-1]]
        sampled = [i for i in rows if batch.lengths[i] > 0]
        for k, i in reversed(list(enumerate(rows))):
            if shipped:
                cost = 0.0 if k < 3 else 0.3 * 1.5 ** (k - 2)
                step = 1 - batch.signals["prm_error"][i] - 0.55 - cost
                reward = 1.5 * batch.reward[i] + (1.3 * step if i in sampled[:-1] else 0.0)
            else:
                gain = batch.signals["success_after"][i] - batch.signals["success_before"][i]
                reward = batch.reward[i] + (gain if i in sampled else 0.0)
            later = out[i] = reward + after - value[i] + lam * later
            after = value[i]
    return np.where(batch.lengths > 0, out, 0.0)


PLAIN = {"pica_shipped": plain, "pica_reading": plain}


@pytest.fixture
def search(make_batch):
    """Five searches and an answer that pays 1."""
    signals = {
        "value": [0.0] * 6,
        "prm_error": [0.2, 0.5, 0.1, 0.4, 0.3, 0.9],
        "success_before": [0.45, 0.6, 0.6, 0.9, 0.9, 0.9],
        "success_after": [0.6, 0.6, 0.9, 0.9, 0.9, 0.9],
    }
    return make_batch([0, 0, 0, 0, 0, 1], episode=[0] * 6, signals=signals)


def test_worked_value_as_coded(search):
    # 1 - e - .55 = .25 -.05 .35 .05 .15; the fourth and fifth search cost .45 and .675; times .3.
    error, place = search.signals["prm_error"][:5], np.arange(5)
    expected = np.array([0.25, -0.05, 0.35, 0.05 - 0.45, 0.15 - 0.675])
    np.testing.assert_allclose(step_reward(error, place, 0.55, 3, 1.5), expected)
    # With V = 0 and λ = 0 the advantage is the reward; the answer has no step reward.
    got = PiCAShipped(step_scale=0.3, lam=0.0).estimate(search)
    np.testing.assert_allclose(got.advantage, [0.075, -0.015, 0.105, -0.12, -0.1575, 1.5])


def test_trap_of_the_addition_in_place(search):
    # The tensor already holds the step rewards when 0.3 of them are added to it.
    got = PiCAShipped(lam=0.0).estimate(search).advantage[:5]
    np.testing.assert_allclose(got, [0.325, -0.065, 0.455, -0.52, -0.6825])


def test_worked_value_as_shaping(search):
    credit = PiCA(lam=0.0).estimate(search)
    np.testing.assert_allclose(credit.components["shaping"], [0.15, 0, 0.3, 0, 0, 0])
    # Φ_T - Φ_0 = .45, and the outcome.
    assert PiCA().estimate(search).advantage[0] == pytest.approx(1.45)


@LAW
@given(SEEDS, st.floats(0, 1), st.booleans())
def test_as_a_plain_loop_does_it(random_batch, seed, lam, shipped):
    batch = random_batch(np.random.default_rng(seed), max_turns=6)
    estimator = (PiCAShipped if shipped else PiCA)(lam=lam)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_without_a_step_reward_it_is_gae(random_batch, seed, gamma, lam):
    batch = random_batch(np.random.default_rng(seed))
    gae = GAE(gamma=gamma, lam=lam).estimate(batch)
    quiet = {"step_scale": 0.0, "gamma": gamma, "lam": lam}
    for estimator in (PiCA(**quiet), PiCAShipped(outcome_scale=1.0, **quiet)):
        credit = estimator.estimate(batch)
        np.testing.assert_allclose(credit.advantage, gae.advantage, atol=1e-12)
        np.testing.assert_allclose(credit.targets, gae.targets, atol=1e-12)


@LAW
@given(SEEDS, st.floats(0.05, 1))
def test_shaping_telescopes_along_an_agent_that_is_alone(random_batch, seed, gamma):
    # With λ = 1 the shaping of a turn is γ^k Φ_T - Φ: it does not depend on what lies between.
    batch = random_batch(np.random.default_rng(seed), agents=1, silent=0.0)
    before = np.random.default_rng(seed).uniform(size=len(batch))
    agents = batch.agents()
    after = np.where(agents.after == 0, 0.9, np.roll(before, -1))
    batch = batch.with_signals({"success_before": before, "success_after": after})
    shaping = PiCA(gamma=gamma).estimate(batch).components["shaping"]
    expected = gamma ** (agents.after + 1.0) * 0.9 - before
    np.testing.assert_allclose(shaping, expected, atol=1e-9)


def test_the_coded_cost_of_late_turns_is_no_potential(make_batch):
    # Equal scores everywhere: six turns get less in sum than four, so going on is punished.
    def paid(turns):
        signals = {"value": [0.0] * turns, "prm_error": [0.45] * turns}
        batch = make_batch([0.0] * turns, episode=[0] * turns, signals=signals)
        return PiCAShipped().estimate(batch).advantage[0]

    assert paid(3) == pytest.approx(0, abs=1e-12)
    assert paid(6) < paid(5) < paid(4) + 1e-12 < 1e-9


def test_the_answer_is_the_last_turn_with_tokens(search):
    # An empty reply behind the answer: the answer's own score still counts for nothing.
    silent = replace(search, offsets=np.array([0, 1, 2, 3, 4, 5, 5]), logprobs=search.logprobs[:5])
    bonus = PiCAShipped().estimate(silent).components["shaping"]
    np.testing.assert_allclose(bonus[4:], 0, atol=1e-12)


def test_a_missing_score_adds_nothing(search):
    lost = np.where(np.arange(6) == 2, np.nan, search.signals["prm_error"])
    credit = PiCAShipped(lam=0.0).estimate(search.with_signals({"prm_error": lost}))
    assert credit.advantage[2] == 0
    assert credit.stats["missing_labels"] == 1
    lost = np.where(np.arange(6) == 2, np.nan, search.signals["success_after"])
    credit = PiCA(lam=0.0).estimate(search.with_signals({"success_after": lost}))
    assert credit.advantage[2] == 0


def test_targets_are_advantage_and_value(random_batch):
    batch = random_batch(np.random.default_rng(0), silent=0.0)
    for estimator in (PiCA(), PiCAShipped()):
        credit = estimator.estimate(batch)
        np.testing.assert_allclose(credit.targets, credit.advantage + batch.signals["value"])


def test_another_scale_of_rewards(random_batch):
    batch = random_batch(np.random.default_rng(0))
    louder = replace(batch, reward=1.5 * batch.reward)
    got = PiCAShipped().estimate(batch).advantage
    np.testing.assert_allclose(got, PiCAShipped(outcome_scale=1.0).estimate(louder).advantage)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PiCAShipped, {"baseline": 2.0}, "pica_shipped.baseline"),
        (PiCA, {"step_scale": -1.0}, "pica_reading.step_scale"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
