"""Turn ablation: as factors on the outcome, and alone."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.turn_ablation import AblationDelta, TurnAblation, multipliers
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """Factors agent by agent, on GRPO's number."""
    lengths = batch.lengths
    slope, epsilon = estimator.slope, estimator.epsilon
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    factor, total, cells = np.ones(len(batch)), np.zeros(len(batch)), defaultdict(list)
    for rows in chains.values():
        said = [i for i in rows if lengths[i] > 0]
        total[rows] = sum(batch.reward[i] for i in rows)
        loss = total[said] - batch.signals["ablated_return"][said]
        if said and np.ptp(loss) > 0:
            factor[said] = 1 + slope * np.tanh((loss - loss.mean()) / loss.std())
            factor[said] /= factor[said].mean()
        if said:
            cells[batch.group[rows[0]], batch.agent[rows[0]]].append(said)
    out = np.zeros(len(batch))
    for members in cells.values():
        x = np.array([total[said[0]] for said in members])
        if len(members) > 1 and np.ptp(x) > 0:
            for said in members:
                z = (total[said[0]] - x.mean()) / (x.std(ddof=1) + epsilon)
                out[said] = factor[said] * z
    return out


def plain_delta(estimator, batch):
    """What the agent got in all, minus the signal."""
    lengths = batch.lengths
    total = {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
    without, known = batch.signals["ablated_return"], batch.known("ablated_return")
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i] and known[i]:
            out[i] = total[batch.episode[i], batch.agent[i]] - without[i]
    return out


PLAIN = {"turn_ablation_reading": plain, "ablation_delta_reading": plain_delta}


@pytest.fixture
def pair(make_batch):
    """Three turns that earn 1, and .2 without the second; beside them a turn that earns nothing."""
    signals = {"ablated_return": [1, 0.2, 0.8, 0]}
    return make_batch([0, 0, 1, 0], episode=[0, 0, 0, 1], signals=signals)


def test_worked_value(pair):
    # c = 0 .8 .2: mean .3333, std √((.1111 + .2178 + .0178)/3) = .3399, z = -.9806 1.3728 -.3922;
    # 1 + .5 tanh z = .6235 1.4399 .8134, mean .9589.
    expected = np.array([0.6501, 1.5015, 0.8483])
    batch, agents = pair, pair.agents()
    loss = np.array([0, 0.8, 0.2, 0])
    everywhere = np.ones(4, dtype=bool)
    got = multipliers(loss, everywhere, everywhere, agents, 0.5)
    np.testing.assert_allclose(got, [*expected, 1], atol=1e-4)
    # z(R) = ±.5/√.5.
    credit = TurnAblation(slope=0.5).estimate(batch)
    np.testing.assert_allclose(credit.advantage[:3], expected * np.sqrt(0.5), atol=1e-4)
    np.testing.assert_allclose(AblationDelta().estimate(batch).advantage, loss, atol=1e-12)


@LAW
@given(SEEDS, st.floats(0, 0.9))
def test_as_a_plain_loop_does_it(random_batch, seed, slope):
    batch = random_batch(np.random.default_rng(seed))
    estimator = TurnAblation(slope=slope)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)
    got = AblationDelta().estimate(batch).advantage
    np.testing.assert_allclose(got, plain_delta(AblationDelta(), batch), atol=1e-12)


@LAW
@given(SEEDS, st.floats(0, 0.9))
def test_it_keeps_the_sign_and_the_sum_of_grpo(random_batch, seed, slope):
    batch = random_batch(np.random.default_rng(seed))
    got, grpo = (
        TurnAblation(slope=slope).estimate(batch).advantage,
        GRPO().estimate(batch).advantage,
    )
    np.testing.assert_array_equal(np.sign(got), np.sign(grpo))
    agents = batch.agents()
    np.testing.assert_allclose(np.bincount(agents.of, got), np.bincount(agents.of, grpo), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_slope_or_with_equal_losses_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    grpo = GRPO().estimate(batch).advantage
    np.testing.assert_array_equal(TurnAblation(slope=0.0).estimate(batch).advantage, grpo)
    same = batch.with_signals({"ablated_return": np.full(len(batch), -1.0)})
    np.testing.assert_array_equal(TurnAblation(slope=0.5).estimate(same).advantage, grpo)


@LAW
@given(SEEDS)
def test_a_turn_that_changes_nothing_gets_0_alone(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    agents = batch.agents()
    total = np.bincount(agents.of, batch.reward, agents.count)[agents.of]
    null = np.random.default_rng(seed).random(len(batch)) < 0.5
    ablated = np.where(null, total, batch.signals["ablated_return"])
    got = AblationDelta().estimate(batch.with_signals({"ablated_return": ablated})).advantage
    np.testing.assert_allclose(got[null], 0.0, atol=1e-12)
    said = ~null & (batch.lengths > 0)
    np.testing.assert_allclose(got[said], (total - ablated)[said], atol=1e-12)


def test_a_missing_ablation_is_neutral(pair):
    batch = pair.with_signals({"ablated_return": np.array([1, 0.2, np.nan, 0])})
    # c = 0 .8: z = ∓1, so 1 ∓ .5 tanh 1 and 1, mean 1.
    half = 0.5 * np.tanh(1)
    credit = TurnAblation(slope=0.5).estimate(batch)
    expected = np.array([1 - half, 1 + half, 1]) * np.sqrt(0.5)
    np.testing.assert_allclose(credit.advantage[:3], expected, atol=1e-5)
    assert credit.stats["missing_labels"] == 1
    assert AblationDelta().estimate(batch).advantage[2] == 0


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"turn_ablation_reading\.slope"):
        TurnAblation(slope=1.0)
