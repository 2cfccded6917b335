"""TOCA with a critic: GAE without the luck of the roster."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.toca_gae_reading import TOCAGAEReading
from marl_llm.credit.truth.turnover import split
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """r + γ V of the next turn - b, backwards along each agent."""
    gamma, lam = estimator.gamma, estimator.lam
    value, given_event = batch.signals["value"], batch.signals["value_event"]
    out = np.zeros(len(batch))
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            rows = rows[np.argsort(batch.agent_turn[rows])].tolist()
            later, behind = 0.0, 0.0
            if rows and not batch.terminated[rows[-1]]:
                behind = batch.signals["value_next"][rows[-1]]
            for row in reversed(rows):
                later = batch.reward[row] + gamma * behind - given_event[row] + gamma * lam * later
                out[row] = later
                behind = value[row]
    return np.where(batch.lengths > 0, out, 0.0)


PLAIN = {"toca_gae_reading": plain}


def test_worked_value(make_batch):
    # γ = .9, λ = .95. Step 1: 2 - 1.8 = .2. Step 0: .5 + .9 * 1.5 - 1.2 + .855 * .2 = .821.
    # GAE: step 1 2 - 1.5 = .5, step 0 .5 + 1.35 - 2 + .855 * .5 = .2775.
    batch = make_batch(
        [0.5, 2],
        episode=[0, 0],
        signals={"value": [2, 1.5], "value_event": [1.2, 1.8], "event_exogenous": [1, 1]},
    )
    credit = TOCAGAEReading(gamma=0.9, lam=0.95).estimate(batch)
    np.testing.assert_allclose(credit.advantage, [0.821, 0.2])
    np.testing.assert_allclose(credit.components["gae"], [0.2775, 0.5])
    np.testing.assert_allclose(credit.targets, [2.2775, 2])


@LAW
@given(SEEDS)
def test_without_events_it_is_gae(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    quiet = batch.with_signals({"value_event": batch.signals["value"]})
    got, expected = TOCAGAEReading().estimate(quiet), GAE().estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)
    np.testing.assert_allclose(got.targets, expected.targets, atol=1e-12)
    unknown = batch.with_signals({"value_event": np.full(len(batch), np.nan)})
    np.testing.assert_allclose(
        TOCAGAEReading().estimate(unknown).advantage, expected.advantage, atol=1e-12
    )


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    estimator = TOCAGAEReading(gamma=0.9)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


def test_the_gradient_stays_and_noise_goes(make_batch):
    """All actions of two agents and all events at one decision; the policy does not see the event.

    The gradient in the logit of agent 1's action 0 is E (1{a = 0} - 1/2) Q = -.05. Its variance is
    1/4 E A² - .05²: with V, 1.39/4 - .0025 = .345; with b, (.13 + .945)/4 - .0025 = .26625.
    """
    q = np.array([[4.0, 1, 0], [2, 2, 1], [3, 3, 2], [1, 4, 3]])
    policy, law = np.array([0.375, 0.125, 0.375, 0.125]), np.array([0.6, 0.3, 0.1])
    exact = split(q, [policy], law)
    batch = make_batch(
        q.ravel(),
        signals={
            "value": np.full(12, exact.mean),
            "value_event": np.tile(exact.baseline, 4),
            "event_exogenous": np.ones(12),
        },
    )
    chance = np.outer(policy, law).ravel()
    score = np.repeat([0.5, 0.5, -0.5, -0.5], 3)
    for estimator, variance in ((GAE(), 0.345), (TOCAGAEReading(), 0.26625)):
        sample = score * estimator.estimate(batch).advantage
        assert chance @ sample == pytest.approx(-0.05)
        assert chance @ sample**2 - 0.05**2 == pytest.approx(variance)
    np.testing.assert_allclose(
        TOCAGAEReading().estimate(batch).advantage.reshape(4, 3),
        exact.advantage,
        atol=1e-12,
    )


def open_team(make_batch, cost, gamma=0.95, steps=3, rate=0.3):
    """Every way that an episode of two slots with skills can go, as the turns of slot 0's agent.

    Action 1 pays .5 and, with the skill, .5 more; action 0 learns the skill. After the actions,
    slot 0 is replaced with probability .3, loses its skill and the team `cost`. Both choose at
    random.
    """

    def step(state, actions, event):
        pay = sum(a * (0.5 + 0.5 * k) for a, k in zip(actions, state, strict=True)) + cost * event
        skills = [k if a else 1 for a, k in zip(actions, state, strict=True)]
        return pay, (0 if event else skills[0], skills[1])

    moves = list(product((0, 1), repeat=2))

    def value_of(state, time, events):
        """The value, of the law of events or of one event."""
        if time == steps:
            return 0.0
        total = 0.0
        for event, probability in events:
            for actions in moves:
                pay, after = step(state, actions, event)
                total += probability / 4 * (pay + gamma * value_of(after, time + 1, law))
        return total

    law = [(0, 1 - rate), (1, rate)]
    value = {
        (state, time, event): value_of(state, time, law if event is None else [(event, 1.0)])
        for state in product((0, 1), repeat=2)
        for time in range(steps)
        for event in (None, 0, 1)
    }
    rows, chance, action = [], [], []
    for path in product(product(moves, (0, 1)), repeat=steps):
        state, probability = (0, 0), 1.0
        for time, (actions, event) in enumerate(path):
            pay, after = step(state, actions, event)
            rows.append((pay, value[state, time, None], value[state, time, event]))
            probability *= (rate if event else 1 - rate) / 4
            state = after
        chance.append(probability)
        action.append(path[0][0][0])
    reward, before, with_event = np.array(rows).T
    batch = make_batch(
        reward,
        episode=np.repeat(np.arange(len(chance)), steps),
        signals={
            "value": before,
            "value_event": with_event,
            "event_exogenous": np.ones(len(reward)),
        },
    )
    return batch, np.array(chance), np.array(action)


@pytest.mark.parametrize(
    ("cost", "value", "plain_variance"),
    [(0.0, 1.9039515625, 0.131934), (-3.0, -0.6632984375, 1.511139)],
)
def test_an_open_team_of_512_paths(make_batch, cost, value, plain_variance):
    """What replacements cost is noise for GAE; here it is gone, and the gradient is the same."""
    batch, chance, action = open_team(make_batch, cost)
    assert batch.signals["value"][0] == pytest.approx(value)
    found = []
    for estimator in (GAE(gamma=0.95, lam=1.0), TOCAGAEReading(gamma=0.95, lam=1.0)):
        sample = (action - 0.5) * estimator.estimate(batch).advantage[::3]
        mean = chance @ sample
        found.append((mean, chance @ (sample - mean) ** 2))
    np.testing.assert_allclose(found[0], [0.069618, plain_variance], atol=1e-6)
    np.testing.assert_allclose(found[1], [0.069618, 0.129250], atol=1e-6)


def test_events_that_an_action_brought_about_are_refused(random_batch):
    batch = random_batch(np.random.default_rng(0))
    batch = replace(batch, signals={**batch.signals, "event_exogenous": np.zeros(len(batch))})
    with pytest.raises(EpisodeError, match=r"toca_gae_reading.allow_endogenous"):
        TOCAGAEReading().estimate(batch)
    TOCAGAEReading(allow_endogenous=True).estimate(batch)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"toca_gae_reading.gamma"):
        TOCAGAEReading(gamma=-0.1)
