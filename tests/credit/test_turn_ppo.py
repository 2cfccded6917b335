"""Turn-PPO: its worked value, what token counts do to it, and missing values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE
from marl_llm.credit.mt_ppo import MTPPO
from marl_llm.credit.turn_ppo import TurnPPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Turn after turn from each agent's last one; an unknown V repeats what comes behind."""
    gamma, lam = estimator.gamma, estimator.lam
    advantage, value, known = np.zeros(len(batch)), batch.signals["value"], batch.known("value")
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        behind = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        carry = 0.0
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            here = value[k] if known[k] else batch.reward[k] + gamma * behind
            carry = batch.reward[k] + gamma * behind - here + gamma * lam * carry
            advantage[k], behind = carry, here
    return np.where(batch.lengths > 0, advantage, 0.0)


PLAIN = {"turn_ppo": plain}


def test_worked_values(make_batch):
    # δ_2 = 1 - .7 = .3, δ_1 = .2 + .99*.7 - .5 = .393; A_1 = .393 + .99*.95*.3 = .67515.
    batch = make_batch([0.2, 1], episode=[0, 0], signals={"value": [0.5, 0.7]})
    np.testing.assert_allclose(TurnPPO().estimate(batch).advantage, [0.67515, 0.3])


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_it_equals_the_loop(random_batch, seed, gamma, lam):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    holes = np.where(rng.random(len(batch)) < 0.3, np.nan, rng.normal(size=len(batch)))
    batch = batch.with_signals({"value": holes})
    estimator = TurnPPO(gamma=gamma, lam=lam)
    got = estimator.estimate(batch)
    np.testing.assert_allclose(got.advantage, plain(estimator, batch), atol=1e-12)
    assert got.stats["missing_labels"] == np.sum(np.isnan(holes) & (batch.lengths > 0))


def test_a_missing_value_is_not_a_value_of_zero(make_batch):
    # V_2 := 0 + V_3 = .8, so that the second turn did nothing and the first .8 - .5.
    batch = make_batch([0, 0, 1], episode=[0, 0, 0])
    batch = batch.with_signals({"value": np.array([0.5, np.nan, 0.8])})
    got = TurnPPO(gamma=1.0, lam=0.0).estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.3, 0, 0.2], atol=1e-12)
    # At the end of an episode there is the reward to go by.
    batch = batch.with_signals({"value": np.array([0.5, 0.6, np.nan])})
    got = TurnPPO(gamma=1.0, lam=0.0).estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.1, 0.4, 0], atol=1e-12)


@LAW
@given(st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_token_counts_matter_on_the_clock_of_tokens_only(make_batch, lengths):
    def ask(estimator, lengths):
        signals = {"value": [0.5, 0.2, 0.6], "token_value": [0.0] * sum(lengths)}
        batch = make_batch([0, 0, 1], episode=[0] * 3, lengths=lengths, signals=signals)
        return estimator.estimate(batch).advantage

    assert ask(TurnPPO(), lengths).tobytes() == ask(TurnPPO(), [1, 1, 1]).tobytes()
    # Seen from the first token, the reward is as many steps away as there are tokens.
    assert ask(MTPPO(lam=0.9), lengths)[0] == pytest.approx(0.9 ** (sum(lengths) - 1))


@LAW
@given(SEEDS)
def test_it_is_gae_with_other_defaults(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got, expected = TurnPPO().estimate(batch), GAE(gamma=0.99, lam=0.95).estimate(batch)
    assert got.advantage.tobytes() == expected.advantage.tobytes()


def test_bad_settings_are_named_after_it():
    with pytest.raises(ConfigError, match=r"turn_ppo.lam must be in"):
        TurnPPO(lam=1.5)
