"""Trajectory balance and FlowRL on numbers: residuals, coefficients, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import ConfigError, TrainingError
from marl_llm.learn.aggregation import Aggregation
from marl_llm.learn.balance import FlowRL, TrajectoryBalance, residuals
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.twopass import Seen

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def live(lengths, advantages, reference, episode, agent=None, group=None, old=None):
    """Turns as the learner holds them; the advantage is given per turn."""
    n, m = len(lengths), sum(lengths)
    zeros = np.zeros(n, np.int64)
    return LiveTurns(
        pairs=tuple(((1,), (2,) * k) for k in lengths),
        places=np.arange(n),
        name=lambda place: f"turn {place}",
        temperatures=np.ones(n),
        lengths=np.array(lengths),
        episode=np.array(episode),
        group=zeros if group is None else np.array(group),
        agent=zeros if agent is None else np.array(agent),
        version=zeros,
        advantages=np.repeat(np.asarray(advantages, float), lengths),
        weights=np.full(m, 1.0 / n),
        sampler=np.zeros(m) if old is None else np.asarray(old, float),
        reference=np.asarray(reference, float),
    )


def coefficients(loss, turns, logprobs, old=None):
    logprobs = np.asarray(logprobs, float)
    return loss.coefficients(turns, Seen(logprobs, logprobs if old is None else np.asarray(old)))


def test_worked_value():
    # Four replies of one token, β = .5: log π - log π_ref = .5, -.5, 0, 1, minus R/β = 2, 0, 0, 2:
    # x = -1.5, -.5, 0, -1, mean -.75: log Z = .75, residuals -.75, .25, .75, -.25.
    turns = live([1] * 4, [1, 0, 0, 1], [-3.5, -4.5, -4, -3], [0, 1, 2, 3])
    found = coefficients(TrajectoryBalance(0.5), turns, [-3, -5, -4, -2])
    residual = np.array([-0.75, 0.25, 0.75, -0.25])
    np.testing.assert_allclose(found, -2 * residual)
    # Loss (.5625 + .0625 + .5625 + .0625)/4 = .3125; its gradient is 2/4 of the residuals.
    assert np.mean(residual**2) == 0.3125
    np.testing.assert_allclose(-found * turns.weights, [-0.375, 0.125, 0.375, -0.125])


def test_what_the_group_has_in_common_goes_into_log_z():
    reference = [-3.5, -4.5, -4, -3]
    raw = live([1] * 4, [1, 0, 0, 1], reference, [0, 1, 2, 3])
    centred = live([1] * 4, [0.5, -0.5, -0.5, 0.5], reference, [0, 1, 2, 3])
    loss = TrajectoryBalance(0.5)
    np.testing.assert_allclose(
        coefficients(loss, raw, [-3, -5, -4, -2]), coefficients(loss, centred, [-3, -5, -4, -2])
    )


def test_one_step_from_the_sampler_it_is_dr_grpo_with_the_kl_in_the_reward():
    """residual_i = -A_i/β with A_i = (R - β k1)_i minus its group's mean."""
    rng = np.random.default_rng(0)
    lengths, beta = [2, 3, 1, 2, 4, 1], 0.3
    worth, group = rng.normal(size=6), [0, 0, 0, 1, 1, 1]
    logprobs, reference = rng.normal(size=(2, 13))
    turns = live(lengths, worth, reference, range(6), group=group)
    k1 = np.add.reduceat(logprobs - reference, np.cumsum([0, *lengths[:-1]]))
    reward = worth - beta * k1
    advantage = reward - np.repeat([reward[:3].mean(), reward[3:].mean()], 3)
    found = coefficients(TrajectoryBalance(beta), turns, logprobs)
    np.testing.assert_allclose(found, np.repeat(2 / beta * advantage, lengths))


def test_a_trajectory_is_all_turns_of_an_agent_in_an_episode():
    # Agent 0 spoke twice in episode 0: 2 + 1 tokens; agent 1 is another group.
    lengths, episode, agent = [2, 2, 1, 1, 1], [0, 0, 0, 1, 1], [0, 1, 0, 0, 1]
    turns = live(lengths, [1, 5, 1, 0, 3], np.zeros(7), episode, agent)
    found = coefficients(TrajectoryBalance(1.0), turns, [0.1, 0.2, 9, 9, 0.3, 0.4, 9])
    # x = .6 - 1 and .4 - 0, mean 0: residuals -.4, .4. The other agent: 18 - 5 and 9 - 3: 13, 6,
    # mean 9.5, residuals 3.5, -3.5.
    np.testing.assert_allclose(found, [0.8, 0.8, -7, -7, 0.8, -0.8, 7], atol=1e-12)


@LAW
@given(SEEDS, st.sampled_from([TrajectoryBalance(0.5), FlowRL(scale=3.0, cap=2.0)]))
def test_gradients_by_finite_differences(seed, loss):
    """The mean of the weighted squares, weights and log Z held where they are."""
    rng = np.random.default_rng(seed)
    lengths, group = rng.integers(1, 4, 6), np.array([0, 0, 0, 1, 1, 2])
    starts = np.cumsum(lengths) - lengths
    reference, logprobs, old = rng.normal(size=(3, lengths.sum()))
    worth = rng.normal(size=6)
    turns = live(lengths.tolist(), worth, reference, range(6), group=group)

    def imbalance(lp):
        total = np.add.reduceat(lp - reference, starts)
        return total - 2 * worth if loss == TrajectoryBalance(0.5) else total / lengths - 3 * worth

    middle = imbalance(logprobs) - residuals(imbalance(logprobs), group)  # -log Z
    weight = np.ones(6)
    if isinstance(loss, FlowRL):
        weight = np.minimum(np.exp(np.add.reduceat(logprobs - old, starts)), 2.0)

    found = coefficients(loss, turns, logprobs, old)
    for t in range(len(found)):
        step = np.zeros(len(found))
        step[t] = 1e-5
        up, down = (
            np.mean(weight * (imbalance(logprobs + sign * step) - middle) ** 2) for sign in (1, -1)
        )
        assert -found[t] / 6 == pytest.approx((up - down) / 2e-5, abs=1e-6)


@LAW
@given(SEEDS)
def test_holding_log_z_fixed_makes_no_difference(seed):
    """VarGrad: what the mean adds to the gradient sums to 0 over the group."""
    rng = np.random.default_rng(seed)
    x, step, group = *rng.normal(size=(2, 6)), np.array([0, 0, 0, 1, 1, 2])
    up, down = (np.sum(residuals(x + h * step, group) ** 2) for h in (1e-5, -1e-5))
    held = 2 * np.dot(residuals(x, group), step)
    assert held == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_flowrl_worked_value():
    # Two replies of 2 tokens and 1: mean log-ratios (.2 + .4)/2 = .3 and -.1; scale 2, A = ±.5:
    # x = .3 - 1 = -.7, -.1 + 1 = .9, mean .1: residuals -.8, .8.
    # Weights e^(.5 + .5) = 2.718282, and e^3 = 20.09 cut to 10.
    turns = live([2, 1], [0.5, -0.5], [0, 0, 0], [0, 1])
    found = coefficients(FlowRL(scale=2.0), turns, [0.2, 0.4, -0.1], [-0.3, -0.1, -3.1])
    np.testing.assert_allclose(found, [2 * 2.718282 * 0.8 / 2] * 2 + [-2 * 10 * 0.8], atol=1e-6)


def test_alone_it_has_nothing_to_say():
    turns = live([2, 1], [1.0, 3.0], [0, 0, 0], [0, 1], group=[0, 1])
    assert not coefficients(TrajectoryBalance(0.05), turns, [-1, -2, -3]).any()


def test_credit_that_differs_inside_a_trajectory_is_refused():
    turns = live([2, 1, 1], [1.0, 0.0, 2.0], np.zeros(4), [0, 1, 0])
    with pytest.raises(TrainingError, match=r"turn 0: .* from 1 to 2; .* such as dr_grpo"):
        coefficients(TrajectoryBalance(0.05), turns, np.zeros(4))


@pytest.mark.parametrize("loss", [TrajectoryBalance(0.05), FlowRL()])
def test_means_that_count_length_again_are_refused(loss):
    loss.check(Aggregation("constant", length=1))
    loss.check(Aggregation("token"))
    for mode in ("turn", "trajectory"):
        with pytest.raises(ConfigError, match=r"set it to constant or token"):
            loss.check(Aggregation(mode))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrajectoryBalance(beta=0.0), "TrajectoryBalance.beta"),
        (lambda: FlowRL(scale=-1.0), "FlowRL.scale"),
        (lambda: FlowRL(cap=0.5), "FlowRL.cap"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
