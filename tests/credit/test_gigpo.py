"""GiGPO: the episode in its group, the turn at its state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.gigpo import GiGPO
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
SPARSE = [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]


def plain(estimator, batch):
    """Both terms, group by group and state by state."""
    lengths = batch.lengths
    gamma, scale = estimator.gamma, estimator.mode == "mean_std_norm"
    cross_step = estimator.unit == "turn"
    total, to_go, later = defaultdict(float), {}, defaultdict(float)
    for i in np.lexsort((-batch.agent_turn, batch.agent, batch.episode)):
        key = batch.episode[i], batch.agent[i]
        total[key] += batch.reward[i]
        later[key] = to_go[i] = batch.reward[i] + gamma * later[key]
    episodes, states, seen = defaultdict(list), defaultdict(list), set()
    sampled = [i for i in range(len(batch)) if lengths[i] > 0]
    for i in sampled:
        cell, key = (batch.group[i], batch.agent[i]), (batch.episode[i], batch.agent[i])
        states[(*cell, batch.state_key[i])].append(to_go[i])
        if cross_step or key not in seen:
            episodes[cell].append(total[key])
        seen.add(key)

    def apart(x, values):
        if len(values) < 2 or max(values) == min(values):
            return 0.0
        return (x - np.mean(values)) / (
            np.std(values, ddof=1) + estimator.epsilon if scale else 1.0
        )

    out = np.zeros(len(batch))
    for i in sampled:
        cell, key = (batch.group[i], batch.agent[i]), (batch.episode[i], batch.agent[i])
        step = apart(to_go[i], states[(*cell, batch.state_key[i])])
        whole = apart(total[key], episodes[cell])
        out[i] = estimator.episode_weight * whole + estimator.step_weight * step
    return out


PLAIN = {"gigpo": plain, "gigpo_step": plain}


def test_worked_value(four_rollouts):
    # G at state 0: .9025 0 0 .95, mean .463125; at 1: .95 0 0, mean .316667; at 2: 1, alone; at 3:
    # 0 1, mean .5. Outcomes 1 0 0 1, mean .5.
    credit = GiGPO(unit="agent").estimate(four_rollouts(SPARSE))
    step = [0.4394, 0.6333, 0, -0.4631, -0.3167, -0.4631, -0.5, -0.3167, 0.4869, 0.5]
    episode = np.repeat([0.5, -0.5, -0.5, 0.5], [3, 2, 3, 2])
    np.testing.assert_allclose(credit.components["step"], step, atol=1e-4)
    np.testing.assert_allclose(credit.components["episode"], episode)
    np.testing.assert_allclose(credit.advantage, episode + step, atol=1e-4)
    assert credit.stats["singleton_share"] == 0.1


def test_worked_value_scaled(four_rollouts):
    # State 3: G = 0, 1, std √.5: ±.7071. Outcomes: ±.5/√(1/3) = ±.8660.
    got = GiGPO(unit="agent", mode="mean_std_norm").estimate(four_rollouts(SPARSE)).advantage
    np.testing.assert_allclose(got[[6, 9]], [-1.5731, 1.5731], atol=1e-4)


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 2), st.booleans(), st.booleans())
def test_as_a_plain_loop_does_it(random_batch, seed, gamma, weight, scale, cross_step):
    batch = random_batch(np.random.default_rng(seed))
    estimator = GiGPO(
        gamma=gamma,
        step_weight=weight,
        mode="mean_std_norm" if scale else "mean_norm",
        unit="turn" if cross_step else "agent",
    )
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_the_step_term_sums_to_0_at_every_state(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    step = GiGPO().estimate(batch).components["step"]
    for group in np.unique(batch.group):
        for state in np.unique(batch.state_key):
            assert abs(step[(batch.group == group) & (batch.state_key == state)].sum()) < 1e-9


@LAW
@given(SEEDS, st.floats(0, 1))
def test_where_states_never_repeat_only_the_episode_is_left(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    unlike = replace(batch, state_key=np.arange(len(batch)))
    credit = GiGPO(gamma=gamma, unit="agent").estimate(unlike)
    np.testing.assert_array_equal(credit.components["step"], 0.0)
    np.testing.assert_allclose(credit.advantage, DrGRPO().estimate(batch).advantage, atol=1e-12)
    assert credit.stats["singleton_share"] == 1.0


@LAW
@given(SEEDS)
def test_without_the_step_term_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = GiGPO(step_weight=0.0, mode="mean_std_norm", unit="agent").estimate(batch).advantage
    np.testing.assert_allclose(got, GRPO().estimate(batch).advantage, atol=1e-12)


def test_trap_of_the_mean_over_steps(make_batch):
    # R = 1 in four turns and 0 in one: over turns the mean is .8, over agents .5.
    batch = make_batch([0, 0, 0, 1, 0], episode=[0, 0, 0, 0, 1], state_key=[0, 1, 2, 3, 4])
    np.testing.assert_allclose(GiGPO().estimate(batch).advantage, [0.2] * 4 + [-0.8])
    got = GiGPO(unit="agent").estimate(batch).advantage
    np.testing.assert_allclose(got, [0.5] * 4 + [-0.5])


def test_trap_of_the_single_trajectory(make_batch):
    # Nobody to compare with: as shipped the raw return leaks in.
    batch = make_batch([3, 1, 0], group=[0, 1, 1])
    assert GiGPO().estimate(batch).advantage[0] == 0
    assert GiGPO(singleton="raw").estimate(batch).advantage[0] == 3


def test_trap_of_the_singleton_state(make_batch):
    # Three first turns share a state; the second turn of episode 0 is alone in its own.
    batch = make_batch([0, 5, 1, 2], episode=[0, 0, 1, 2], state_key=[0, 1, 0, 0])
    for mode in ("mean_norm", "mean_std_norm"):
        step = GiGPO(mode=mode).estimate(batch).components["step"]
        assert step[1] == 0
        assert step[0] != 0


def test_other_columns_can_make_a_state(random_batch):
    batch = random_batch(np.random.default_rng(1))
    by_belief = GiGPO(anchor=("belief_key",)).estimate(batch).advantage
    same = replace(batch, state_key=batch.signals["belief_key"])
    np.testing.assert_array_equal(by_belief, GiGPO().estimate(same).advantage)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "mean"}, "gigpo.mode"),
        ({"anchor": ("state",)}, "did you mean 'state_key'"),
        ({"step_weight": -1.0}, "gigpo.step_weight"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        GiGPO(**options)
