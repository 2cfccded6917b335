"""AT-GRPO: a turn against the same turn of the same agent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.at_grpo import ATGRPO
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """Cells of equal group, agent and turn number."""
    lengths = batch.lengths
    x = np.array(batch.reward, dtype=float)
    for i in range(len(batch)):
        mine = (batch.episode == batch.episode[i]) & (batch.agent == batch.agent[i])
        later = np.flatnonzero(mine & (batch.agent_turn > batch.agent_turn[i]))
        for j in later[np.argsort(batch.agent_turn[later])]:
            if estimator.of == "reward" and lengths[j] > 0:
                break  # what silent turns brought before it is the turn's
            x[i] += batch.reward[j]
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        same = [
            x[j]
            for j in range(len(batch))
            if lengths[j] > 0
            and batch.group[j] == batch.group[i]
            and batch.agent[j] == batch.agent[i]
            and batch.agent_turn[j] == batch.agent_turn[i]
        ]
        if lengths[i] > 0 and len(same) > 1 and np.ptp(same) > 0:
            out[i] = (x[i] - np.mean(same)) / (np.std(same, ddof=1) + estimator.epsilon)
    return out


PLAIN = {"at_grpo": plain}


def test_worked_value(make_batch):
    # Three episodes of 2, 2 and 1 turns. Turn 0: rewards 0 3 0, mean 1, std √(6/2) = √3:
    # -1/√3, 2/√3, -1/√3. Turn 1: rewards 1 0, mean 1/2, std √(1/2): ±.5/.707107 = ±.707107.
    batch = make_batch([0, 1, 3, 0, 0], episode=[0, 0, 1, 1, 2])
    got = ATGRPO(epsilon=0.0).estimate(batch).advantage
    third = 1 / np.sqrt(3)
    np.testing.assert_allclose(got, [-third, np.sqrt(0.5), 2 * third, -np.sqrt(0.5), -third])
    # Returns to go: turn 0 has 1 3 0, mean 4/3, squares 1/9 + 25/9 + 16/9 = 42/9, std √(7/3).
    got = ATGRPO(epsilon=0.0, of="to_go").estimate(batch).advantage
    np.testing.assert_allclose(got[[0, 2, 4]], np.array([-1, 5, -4]) / 3 / np.sqrt(7 / 3))


def test_a_turn_that_nobody_else_reached_gets_nothing(make_batch):
    batch = make_batch([0, 5, 1], episode=[0, 0, 1])
    assert ATGRPO().estimate(batch).advantage[1] == 0


def test_a_forfeit_on_a_turn_without_tokens_is_paid_by_the_turn_before(make_batch):
    # The context was full after the first turn of episode 0, and the -1 came with the silent one.
    batch = make_batch([0, -1, 0, 0], episode=[0, 0, 1, 1], lengths=[1, 0, 1, 1])
    got = ATGRPO(epsilon=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, [-np.sqrt(0.5), 0, np.sqrt(0.5), 0])


@LAW
@given(SEEDS)
def test_with_one_turn_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=1)
    for of in ("reward", "to_go"):
        got = ATGRPO(of=of).estimate(batch).advantage
        assert got.tobytes() == GRPO().estimate(batch).advantage.tobytes()


@LAW
@given(SEEDS, st.booleans())
def test_against_a_loop(random_batch, seed, to_go):
    batch = random_batch(np.random.default_rng(seed))
    estimator = ATGRPO(of="to_go" if to_go else "reward")
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'to_go'"):
        ATGRPO(of="togo")
