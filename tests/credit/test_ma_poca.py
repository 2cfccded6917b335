"""MA-POCA: λ-returns of the team against a baseline without the own action."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.ma_poca import MAPOCA
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The λ-return backwards along each agent, minus b."""
    gamma, lam = estimator.gamma, estimator.lam
    value = batch.signals["value"]
    out = np.zeros(len(batch))
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            rows = rows[np.argsort(batch.agent_turn[rows])].tolist()
            if not rows:
                continue
            end = rows[-1]
            to_go = behind = 0.0 if batch.terminated[end] else batch.signals["value_next"][end]
            for row in reversed(rows):
                to_go = batch.reward[row] + gamma * ((1 - lam) * behind + lam * to_go)
                behind = value[row]
                out[row] = to_go - batch.signals["value_others"][row]
    return np.where(batch.lengths > 0, out, 0.0)


PLAIN = {"ma_poca": plain}


def test_worked_value(make_batch):
    # γ = 1, λ = 1/2: G_1 = 2; G_0 = 1 + (V_1 + G_1)/2 = 1 + (1 + 2)/2 = 2.5. b = .5 and 3.
    batch = make_batch([1, 2], episode=[0, 0], signals={"value": [7, 1], "value_others": [0.5, 3]})
    credit = MAPOCA(gamma=1.0, lam=0.5).estimate(batch)
    assert credit.advantage.tolist() == [2, -1]
    assert credit.targets.tolist() == [2.5, 2]


@LAW
@given(SEEDS)
def test_a_baseline_that_is_v_makes_it_gae(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    same = batch.with_signals({"value_others": batch.signals["value"]})
    got, expected = MAPOCA().estimate(same), GAE(gamma=0.99).estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)
    np.testing.assert_allclose(got.targets, expected.targets, atol=1e-12)


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = MAPOCA().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(MAPOCA(), batch), atol=1e-9)


def test_who_left_early_is_paid_what_the_team_earned_later(make_batch):
    # Agent 0 acts once and leaves, agent 1 wins later; the game pays agent 0 at its last turn.
    batch = make_batch(
        [1, 0, 1],
        episode=[0] * 3,
        agent=[0, 1, 1],
        signals={"value": [0.5] * 3, "value_others": [0.25] * 3},
    )
    batch = replace(batch, turn=np.arange(3))
    assert MAPOCA(gamma=1.0, lam=1.0).estimate(batch).advantage.tolist() == [0.75] * 3


def test_a_missing_baseline_gives_nothing(make_batch):
    batch = make_batch([1, 1]).with_signals({
        "value": np.zeros(2), "value_others": np.array([np.nan, 0.5])
    })  # fmt: skip
    credit = MAPOCA().estimate(batch)
    assert credit.advantage.tolist() == [0, 0.5]
    assert credit.stats["missing_labels"] == 1


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"ma_poca.lam"):
        MAPOCA(lam=-1)
