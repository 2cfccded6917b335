"""SPA: the turn's own share of a predicted return, and a little for being carried out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.mars import Mars
from marl_llm.credit.spa import Spa
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def steps(make_batch, progress, grounded, **more):
    n = len(progress)
    return make_batch([0] * n, episode=[0] * n, **more).with_signals(
        {"progress": np.array(progress, float), "grounded": np.array(grounded, float)}
    )


def plain(estimator, batch):
    """The formula, turn by turn, from each agent's last to its first."""
    progress, grounded = batch.signals["progress"], batch.signals["grounded"]
    known = batch.known("progress") & batch.known("grounded") & (batch.lengths > 0)
    to_go, ahead = {}, {}
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        own = estimator.alpha * progress[i] + estimator.beta * grounded[i] if known[i] else 0.0
        to_go[i] = ahead[me] = own + estimator.gamma * ahead.get(me, 0.0)
    advantage = np.zeros(len(batch))
    for i in range(len(batch)):
        cell = [
            to_go[j]
            for j in range(len(batch))
            if known[j] and (batch.group[j], batch.agent[j]) == (batch.group[i], batch.agent[i])
        ]
        if known[i] and len(cell) > 1:
            advantage[i] = to_go[i] - sum(cell) / len(cell)
    return advantage


PLAIN = {"spa": plain}


def test_worked_value(make_batch):
    # .2 + .5, .5, .3 + .5 = .7, .5, .8, mean 2/3.
    batch = steps(make_batch, [0.2, 0.5, 0.3], [1, 0, 1])
    credit = Spa(gamma=0.0).estimate(batch)
    np.testing.assert_allclose(credit.components["return"], [0.7, 0.5, 0.8])
    np.testing.assert_allclose(credit.advantage, np.array([0.7, 0.5, 0.8]) - 2 / 3)
    # To go with γ = .5: .8, .5 + .4 = .9, .7 + .45 = 1.15.
    credit = Spa(gamma=0.5).estimate(batch)
    np.testing.assert_allclose(credit.components["return"], [1.15, 0.9, 0.8])


@LAW
@given(SEEDS, st.floats(0, 1))
def test_against_a_plain_loop(random_batch, seed, gamma):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["progress"])
    batch = batch.with_signals({"progress": lost})
    estimator = Spa(gamma=gamma, alpha=2.0, beta=0.3)
    credit = estimator.estimate(batch)
    np.testing.assert_allclose(credit.advantage, plain(estimator, batch), atol=1e-9)
    assert credit.stats["missing_labels"] == np.sum(np.isnan(lost) & (batch.lengths > 0))


@LAW
@given(SEEDS)
def test_progress_that_is_the_reward_makes_it_mars_in_a_group(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    batch = batch.with_signals({"progress": batch.reward})
    got = Spa(beta=0.0, gamma=1.0).estimate(batch).advantage
    expected = Mars(by=("group", "agent")).estimate(batch).advantage
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_the_outcome_does_not_overwrite_the_progress_and_the_last_turn_is_paid(make_batch):
    # Two faults of the released code, which broadcasts the outcome and pays the last turn 0.
    batch = steps(make_batch, [0.0, 0.0, 0.9], [1, 1, 1])
    won = replace(batch, reward=np.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(Spa(gamma=0.0).estimate(won).advantage, [-0.3, -0.3, 0.6])
    np.testing.assert_array_equal(
        Spa(gamma=0.0).estimate(won).advantage, Spa(gamma=0.0).estimate(batch).advantage
    )


def test_equal_progress_gives_exact_zeros(make_batch):
    assert not Spa(gamma=0.0).estimate(steps(make_batch, [0.1] * 3, [1] * 3)).advantage.any()


def test_nonsense_is_refused(make_batch):
    for name in ("alpha", "beta", "gamma"):
        with pytest.raises(ConfigError, match=f"spa.{name}"):
            Spa(**{"gamma": 0.0, name: -1.0})
    with pytest.raises(EpisodeError, match="'grounded' of turn 1 of episode 0 is 3"):
        Spa(gamma=0.0).estimate(steps(make_batch, [0, 0], [1, 3]))
