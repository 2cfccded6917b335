"""HAPPO: the factor of the agents updated before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.happo import HAPPO
from marl_llm.credit.mappo import MAPPO
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The factor times MAPPO's number, one turn after the other."""
    ahead, out = {}, np.zeros(len(batch))
    value, factor, lengths = batch.signals["value"], batch.signals["ratio_before"], batch.lengths
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        if me not in ahead:
            ahead[me] = (batch.signals["value_next"][i] if batch.truncated[i] else 0.0), 0.0
        behind, later = ahead[me]
        error = batch.reward[i] + estimator.gamma * behind - value[i]
        out[i] = error + estimator.gamma * estimator.lam * later
        ahead[me] = value[i], out[i]
    acted = [out[i] for i in range(len(batch)) if lengths[i]]
    mean = sum(acted) / max(len(acted), 1)
    spread = (sum((x - mean) ** 2 for x in acted) / max(len(acted), 1)) ** 0.5
    for i in range(len(batch)):
        own = (out[i] - mean) / (spread + estimator.epsilon) if lengths[i] else 0.0
        out[i] = factor[i] * own
    return out


PLAIN = {"happo": plain}


@pytest.fixture
def three(make_batch):
    """Three one-turn episodes whose advantages against V = 0 are 1, -.5 and 2."""
    return make_batch([1, -0.5, 2], signals={"value": [0, 0, 0], "ratio_before": [1, 1, 1]})


def test_worked_value(three):
    # The first agent's ratios 1.1 .9 1 reach the second, times 1.3 1 .7 the third.
    estimator = HAPPO(normalise=False)
    first = np.array([1.1, 0.9, 1])
    both = first * [1.3, 1, 0.7]
    for factor, expected in (
        (np.ones(3), [1, -0.5, 2]),
        (first, [1.1, -0.45, 2]),
        (both, [1.43, -0.45, 1.4]),
    ):
        got = estimator.estimate(three.with_signals({"ratio_before": factor})).advantage
        np.testing.assert_allclose(got, expected)


def test_the_clipped_objective_of_the_second_agent(three):
    # Ratios 1.3 1 .7 of its own, clip .2: min(1.3 * 1.1, 1.2 * 1.1) = 1.32; 1 * -.45;
    # min(.7 * 2, .8 * 2) = 1.4. Mean (1.32 - .45 + 1.4)/3 = .756667.
    batch = three.with_signals({"ratio_before": np.array([1.1, 0.9, 1])})
    advantage = HAPPO(normalise=False).estimate(batch).advantage
    ratio = np.array([1.3, 1, 0.7])
    objective = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    assert objective.mean() == pytest.approx(0.756667, abs=1e-6)


@LAW
@given(SEEDS)
def test_the_first_agent_is_mappo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    first = batch.with_signals({"ratio_before": np.ones(len(batch))})
    got, expected = HAPPO().estimate(first), MAPPO().estimate(batch)
    assert got.advantage.tobytes() == expected.advantage.tobytes()
    assert got.targets.tobytes() == expected.targets.tobytes()


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = HAPPO().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(HAPPO(), batch), atol=1e-9)


def test_a_missing_ratio_is_none_and_a_large_one_is_cut(three):
    batch = three.with_signals({"ratio_before": np.array([np.nan, 100.0, 0.001])})
    credit = HAPPO(normalise=False, limit=4.0).estimate(batch)
    assert credit.advantage.tolist() == [1, -2, 0.5]
    assert credit.stats["missing_labels"] == 1


def test_nonsense_is_refused(three):
    with pytest.raises(EpisodeError, match="'ratio_before' of turn 0 of episode 1 is -1"):
        HAPPO().estimate(three.with_signals({"ratio_before": np.array([1.0, -1.0, 1.0])}))
    with pytest.raises(ConfigError, match=r"happo.limit"):
        HAPPO(limit=0.5)
    with pytest.raises(ConfigError, match=r"happo.gamma"):
        HAPPO(gamma=2)
