"""SPA, additive fit: effects of actions that add up to returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.spa_additive_reading import SpaAdditiveReading
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def acted(rng, batch, actions=3):
    """The batch with some action at every turn."""
    return replace(batch, action_key=rng.integers(0, actions, len(batch)))


def played(make_batch, rng, weights, episodes):
    """Every episode passes all states once and earns the weight of what it does at each."""
    states, actions = weights.shape
    chosen = rng.integers(0, actions, (episodes, states))
    earned = weights[np.arange(states), chosen]
    reward = np.zeros((episodes, states))
    reward[:, -1] = earned.sum(axis=1)
    batch = make_batch(
        reward.ravel(),
        episode=np.repeat(np.arange(episodes), states),
        state_key=np.tile(np.arange(states), episodes),
    )
    return replace(batch, action_key=chosen.ravel()), earned


def plain(estimator, batch):
    """A design matrix filled turn by turn, and the normal equations of ridge."""
    lengths = batch.lengths
    agents = sorted(
        {(e, a) for e, a, n in zip(batch.episode, batch.agent, lengths, strict=True) if n}
    )
    row = {agent: i for i, agent in enumerate(agents)}
    state = [(batch.role[i], batch.agent[i], batch.state_key[i]) for i in range(len(batch))]
    tried, total, cell = {}, np.zeros(len(agents)), {}
    for i in range(len(batch)):
        me = row.get((batch.episode[i], batch.agent[i]))
        if me is not None:
            total[me] += batch.reward[i]
            cell[me] = (batch.group[i], batch.agent[i])
        if lengths[i]:
            tried.setdefault(state[i], set()).add(batch.action_key[i])
    columns = sorted((s, a) for s, seen in tried.items() if len(seen) > 1 for a in seen)
    column = {pair: k for k, pair in enumerate(columns)}
    x = np.zeros((len(agents), len(columns)))
    for i in range(len(batch)):
        pair = (state[i], batch.action_key[i])
        if lengths[i] and pair in column:
            x[row[batch.episode[i], batch.agent[i]], column[pair]] += 1
    y = total.copy()
    for name in set(cell.values()):
        rows = [i for i in cell if cell[i] == name]
        y[rows] -= y[rows].mean()
        x[rows] -= x[rows].mean(axis=0)
    theta = np.linalg.solve(x.T @ x + estimator.ridge * np.eye(len(columns)), x.T @ y)
    effect = [
        theta[column[state[i], batch.action_key[i]]]
        if lengths[i] and (state[i], batch.action_key[i]) in column
        else 0.0
        for i in range(len(batch))
    ]
    advantage = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i]:
            here = [effect[j] for j in range(len(batch)) if lengths[j] and state[j] == state[i]]
            advantage[i] = effect[i] - sum(here) / len(here)
    return advantage


PLAIN = {"spa_additive_reading": plain}


@pytest.mark.parametrize(("ridge", "expected"), [(1.0, [4 / 21, 4 / 21, -8 / 21]),
                                                 (0.0, [1 / 3, 1 / 3, -2 / 3])])  # fmt: skip
def test_worked_value(make_batch, ridge, expected):
    # One state, actions a, a, b earn 1, 1, 0. Centred: y = 1/3, 1/3, -2/3, x_a = y, x_b = -y. So
    # θ_a = -θ_b = t with loss 2/3·(1 - 2t)² + 2ρt², least at t = 2/(4 + 3ρ). ρ = 1: t = 2/7, the
    # mean of θ over the turns (2t - t)/3 = 2/21, A = 6/21 - 2/21 and -6/21 - 2/21. ρ = 0: Q - V.
    batch = replace(make_batch([1, 1, 0]), action_key=np.array([0, 0, 1]))
    got = SpaAdditiveReading(ridge=ridge).estimate(batch).advantage
    np.testing.assert_allclose(got, expected, atol=1e-9)


@LAW
@given(SEEDS, st.floats(0.1, 3))
def test_against_a_plain_loop(random_batch, seed, ridge):
    rng = np.random.default_rng(seed)
    batch = acted(rng, random_batch(rng))
    estimator = SpaAdditiveReading(ridge=ridge)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_returns_that_add_up_are_taken_apart_exactly(make_batch, seed):
    rng = np.random.default_rng(seed)
    batch, earned = played(make_batch, rng, rng.normal(size=(3, 2)), episodes=40)
    got = SpaAdditiveReading(ridge=0.0).estimate(batch).advantage.reshape(-1, 3)
    np.testing.assert_allclose(got, earned - earned.mean(axis=0), atol=1e-8)


@LAW
@given(SEEDS)
def test_every_state_sums_to_zero(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = acted(rng, random_batch(rng))
    got = SpaAdditiveReading(ridge=1.0).estimate(batch).advantage
    assert np.all(np.abs(np.bincount(batch.state_key, got)) < 1e-9)


def test_a_turn_without_a_choice_gets_exactly_nothing(make_batch):
    rng = np.random.default_rng(0)
    batch, _ = played(make_batch, rng, rng.normal(size=(3, 2)), episodes=20)
    forced = replace(batch, action_key=np.where(batch.state_key == 1, 7, batch.action_key))
    credit = SpaAdditiveReading(ridge=1.0).estimate(forced)
    assert not credit.advantage[forced.state_key == 1].any()
    assert credit.advantage[forced.state_key != 1].all()
    assert credit.stats["turns_without_choice"] == 20
    assert credit.stats["features"] == 4


def test_states_that_never_repeat_tell_nothing(make_batch):
    batch = make_batch([1, 0, 2], state_key=[0, 1, 2])
    batch = replace(batch, action_key=np.arange(3))
    assert not SpaAdditiveReading(ridge=1.0).estimate(batch).advantage.any()
    # Unless turns are taken to have the same choice whatever the state: then 1, 0, 2 speak.
    pooled = SpaAdditiveReading(ridge=0.0, state=("role", "agent")).estimate(batch)
    np.testing.assert_allclose(pooled.advantage, [0, -1, 1], atol=1e-9)


def test_equal_returns_and_a_stronger_ridge(make_batch):
    rng = np.random.default_rng(0)
    batch, _ = played(make_batch, rng, rng.normal(size=(3, 2)), episodes=20)
    last = batch.state_key == 2
    equal = replace(batch, reward=np.where(last, 1 / 3, 0.0))
    assert not SpaAdditiveReading(ridge=1.0).estimate(equal).advantage.any()
    size = [
        np.abs(SpaAdditiveReading(ridge=ridge).estimate(batch).advantage).sum()
        for ridge in (0.0, 1.0, 10.0, 1e9)
    ]
    assert size[0] > size[1] > size[2] > size[3]
    assert size[3] < 1e-6


def test_effects_that_do_not_add_up_are_not_found(make_batch):
    # Parity of two actions, all four equally often: no action helps on average.
    batch = make_batch([0, 1, 0, 0, 0, 0, 0, 1], episode=[0, 0, 1, 1, 2, 2, 3, 3],
                       state_key=[0, 1] * 4)  # fmt: skip
    batch = replace(batch, action_key=np.array([0, 0, 0, 1, 1, 0, 1, 1]))
    got = SpaAdditiveReading(ridge=1.0).estimate(batch).advantage
    np.testing.assert_allclose(got, 0, atol=1e-12)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"spa_additive_reading.ridge"):
        SpaAdditiveReading(ridge=-1.0)
    with pytest.raises(ConfigError, match=r"spa_additive_reading.by has no option 'turn'"):
        SpaAdditiveReading(ridge=1.0, by=("turn",))
