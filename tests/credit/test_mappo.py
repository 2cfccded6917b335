"""MAPPO: GAE of the team's value, normalised over who acted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.mappo import MAPPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """GAE backwards along each agent, then in units of its spread over the sampled turns."""
    gamma, lam = estimator.gamma, estimator.lam
    value = batch.signals["value"]
    out = np.zeros(len(batch))
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            rows = rows[np.argsort(batch.agent_turn[rows])].tolist()
            later = 0.0
            for k in range(len(rows) - 1, -1, -1):
                row = rows[k]
                if k + 1 < len(rows):
                    behind = value[rows[k + 1]]
                else:
                    behind = 0.0 if batch.terminated[row] else batch.signals["value_next"][row]
                later = (
                    batch.reward[row] + gamma * behind - value[row] + gamma * lam * later
                )  # fmt: skip
                out[row] = later
    acted = batch.lengths > 0
    if not acted.any():
        return np.zeros(len(batch))
    return np.where(acted, (out - out[acted].mean()) / (out[acted].std() + estimator.epsilon), 0.0)


PLAIN = {"mappo": plain}


def test_worked_value(make_batch):
    # γ = .99, λ = .95. δ_2 = 1 - .7 = .3; δ_1 = .99 * .7 - .6 = .093, A_1 = .093 + .9405 * .3;
    # δ_0 = .99 * .6 - .5 = .094, A_0 = .094 + .9405 * .37515.
    batch = make_batch([0, 0, 1], episode=[0] * 3, signals={"value": [0.5, 0.6, 0.7]})
    raw = MAPPO(normalise=False).estimate(batch)
    np.testing.assert_allclose(raw.advantage, [0.446829, 0.37515, 0.3], atol=1e-6)
    # Mean .373993, std over n .059948: .072836/.059958, .001157/.059958, -.073993/.059958.
    got = MAPPO().estimate(batch).advantage
    np.testing.assert_allclose(got, [1.21478, 0.0193, -1.23408], atol=1e-4)
    np.testing.assert_allclose(raw.targets, [0.946829, 0.97515, 1], atol=1e-6)


@LAW
@given(SEEDS)
def test_without_normalising_it_is_gae(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = MAPPO(normalise=False).estimate(batch)
    expected = GAE(gamma=0.99).estimate(batch)
    assert got.advantage.tobytes() == expected.advantage.tobytes()
    assert MAPPO().estimate(batch).targets.tobytes() == expected.targets.tobytes()


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = MAPPO().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(MAPPO(), batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_who_did_not_act_cannot_move_the_mean(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=1, silent=0.3)
    silent = batch.lengths == 0
    louder = replace(batch, reward=np.where(silent, 1e6, batch.reward))
    got, expected = MAPPO().estimate(louder), MAPPO().estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage)


@LAW
@given(SEEDS)
def test_each_agent_by_itself(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = MAPPO(by=("agent",), epsilon=0.0).estimate(batch).advantage
    for agent in (0, 1):
        mine = got[(batch.agent == agent) & (batch.lengths > 0)]
        assert mine.mean() == pytest.approx(0, abs=1e-9)
        assert mine.std() == pytest.approx(1)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"mappo.lam"):
        MAPPO(lam=1.5)
