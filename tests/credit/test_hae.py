"""HAE: three kinds of decisions, three values, and the reductions to flat GAE."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae import GAE, gae
from marl_llm.credit.hae import (
    HAE,
    high_level,
    low_level,
    plan,
    returns_in_segment,
    segments,
    starts_segment,
)
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
SETTINGS = {"gamma": 0.9, "lam_turn": 0.8, "lam_segment": 0.7}


def plain(estimator, batch):
    """Turn by turn and segment by segment, backwards; the three advantages of each turn."""
    gamma, lam_segment = estimator.gamma, estimator.lam_segment
    low, high, head = (batch.signals[name] for name in ("value", "value_high", "value_switch"))
    a_low, a_high, a_switch = (np.zeros(len(batch)) for _ in range(3))
    boundary = np.zeros(len(batch), dtype=bool)
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            rows = rows[np.argsort(batch.agent_turn[rows])].tolist()
            if not rows:
                continue
            parts = []
            for row in rows:
                if row == rows[0] or (batch.signals["switch"][row] and batch.lengths[row]):
                    parts.append([])
                    boundary[row] = True
                parts[-1].append(row)
            end = rows[-1]
            cut = not batch.terminated[end]
            if estimator.truncation == "exact":
                end_low = end_high = batch.signals["value_next"][end] if cut else 0.0
            elif estimator.truncation == "same_state":
                end_low = low[end] if cut else 0.0
                end_high = high[parts[-1][0]] if cut else 0.0
            else:
                end_low = end_high = 0.0
            next_high, after_low, after_high = 0.0, end_low, end_high
            for part in reversed(parts):
                next_low, to_go = 0.0, after_high
                v_next = after_low
                for row in reversed(part):
                    delta = batch.reward[row] + gamma * v_next - low[row]
                    next_low = a_low[row] = delta + gamma * estimator.lam_turn * next_low
                    to_go = batch.reward[row] + gamma * to_go
                    a_switch[row] = to_go - head[row]
                    if estimator.form == "theory":
                        surprise = (
                            batch.signals["switch"][row] - batch.signals["switch_probability"][row]
                        )
                        a_switch[row] = surprise * (high[row] - batch.signals["value_keep"][row])
                        a_switch[row] *= row != rows[0]
                    v_next = low[row]
                gained = sum(gamma**j * batch.reward[row] for j, row in enumerate(part))
                delta = gained + gamma ** len(part) * after_high - high[part[0]]
                next_high = delta + gamma ** len(part) * lam_segment * next_high
                a_high[part[0]] = next_high
                after_low = after_high = high[part[0]]
    kinds = [(a_switch, 0, boundary >= 0), (a_high, 1, boundary), (a_low, 2, boundary >= 0)]
    out = np.zeros(len(batch.logprobs))
    block = batch.signals["block"]
    turn = np.repeat(np.arange(len(batch)), batch.lengths)
    for advantage, kind, where in kinds:
        tokens = (block == kind) & where[turn]
        carrying = np.unique(turn[tokens])
        if estimator.whiten and len(carrying):
            values = advantage[carrying]
            advantage = (advantage - values.mean()) / (values.std() + 1e-8)
        out[tokens] = advantage[turn[tokens]]
    return out


PLAIN = {"hae": plain}


def one_episode(rng, turns=9):
    """Columns of an episode of one agent, as the module's functions take them."""
    reward, low, high = rng.normal(size=(3, turns))
    return reward, low, high


@pytest.fixture
def episode(make_batch):
    """Three turns, a new sub-goal at the first and the third; each turn has all three blocks."""
    return make_batch(
        [1, 2, 3],
        episode=[0, 0, 0],
        lengths=[3, 3, 3],
        signals={
            "value": [0.5, 1, 2],
            "value_high": [4, 9, 1],
            "value_switch": [1, 1, 1],
            "switch": [1, 0, 1],
            "switch_probability": [0.5, 0.25, 0.6],
            "value_keep": [9, 3, 2],
            "block": [0, 1, 2] * 3,
        },
    )


def test_worked_value(episode):
    # γ = λ_turn = 1, λ_seg = 1/2. Actions: turn 2: 3 - 2 = 1. Turn 1 ends its sub-goal: 2 + V^H(2)
    # - 1 = 2. Turn 0: 1 + 1 - .5 + 2 = 3.5. Sub-goals: turn 2: 3 - 1 = 2; turn 0: (1 + 2) + 1 - 4
    # + .5 * 2 = 1. Switch: G = 1 + 2 + 1 = 4, 2 + 1 = 3, 3, minus 1. Turn 1 copied its sub-goal.
    estimator = HAE(lam_segment=0.5, whiten=False)
    credit = estimator.estimate(episode)
    assert credit.advantage.tolist() == [3, 1, 3.5, 2, 0, 2, 2, 2, 1]
    # What the heads should have said: G; V^H + A^H; V^L + A^L.
    assert credit.targets.tolist() == [4, 5, 4, 3, 0, 3, 3, 3, 3]
    assert credit.stats["segments"] == 2
    # Theory: nothing to keep at first; (0 - .25)(9 - 3) = -1.5; (1 - .6)(1 - 2) = -.4.
    switch = HAE(form="theory", whiten=False).estimate(episode).components["switch"]
    np.testing.assert_allclose(switch[[0, 3, 6]], [0, -1.5, -0.4])


def test_whitened_by_kind_and_turn(episode):
    # Actions 3.5 2 1: mean 6.5/3. Sub-goals 1 2: ±1 (std over n). Long blocks count no more.
    credit = HAE(lam_segment=0.5).estimate(episode)
    np.testing.assert_allclose(credit.components["sub_goal"][[1, 7]], [-1, 1])
    action = np.array([3.5, 2, 1])
    expected = (action - action.mean()) / action.std()
    np.testing.assert_allclose(credit.components["action"][[2, 5, 8]], expected)
    longer = replace(
        episode,
        offsets=np.array([0, 3, 6, 11]),
        logprobs=np.zeros(11),
        signals={**episode.signals, "block": np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 2])},
    )
    again = HAE(lam_segment=0.5).estimate(longer).advantage
    np.testing.assert_allclose(again, credit.advantage[[*range(9), 8, 8]])


@LAW
@given(
    SEEDS,
    st.sampled_from(["exact", "same_state", "zero"]),
    st.sampled_from(["shipped", "theory"]),
    st.booleans(),
)
def test_against_a_loop(random_batch, seed, truncation, form, whiten):
    batch = random_batch(np.random.default_rng(seed))
    estimator = HAE(**SETTINGS, truncation=truncation, form=form, whiten=whiten)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-6 if whiten else 1e-9)


@LAW
@given(SEEDS)
def test_one_segment_is_flat_gae_below_and_one_step_above(make_batch, seed):
    reward, low, high = one_episode(np.random.default_rng(seed))
    agents = make_batch(reward, episode=[0] * 9).agents()
    parts = segments(starts_segment(np.zeros(9), agents), agents)
    end = np.full(9, 0.3)
    got = low_level(reward, low, high, end, agents, parts, 0.9, 0.8)
    np.testing.assert_allclose(got, gae(reward, low, end, agents, 0.9, 0.8), atol=1e-12)
    steps = plan(reward, end, agents, parts, 0.9)
    whole = sum(0.9**k * reward[k] for k in range(9)) + 0.9**9 * 0.3
    np.testing.assert_allclose(high_level(steps, high[:1], 0.7), [whole - high[0]])


@LAW
@given(SEEDS)
def test_a_segment_per_turn_is_flat_gae_above(make_batch, seed):
    reward, _, high = one_episode(np.random.default_rng(seed))
    agents = make_batch(reward, episode=[0] * 9).agents()
    parts = segments(starts_segment(np.ones(9), agents), agents)
    end = np.full(9, 0.3)
    steps = plan(reward, end, agents, parts, 0.9)
    expected = gae(reward, high, end, agents, 0.9, 0.7)
    np.testing.assert_allclose(high_level(steps, high, 0.7), expected, atol=1e-12)


@LAW
@given(SEEDS)
def test_without_discount_below_is_what_the_segment_brings_and_what_follows(make_batch, seed):
    rng = np.random.default_rng(seed)
    reward, low, high = one_episode(rng)
    agents = make_batch(reward, episode=[0] * 9).agents()
    parts = segments(starts_segment(rng.integers(0, 2, 9), agents), agents)
    end = np.full(9, 0.3)
    advantage = low_level(reward, low, high, end, agents, parts, 1.0, 1.0)
    expected = returns_in_segment(reward, high, end, agents, parts, 1.0)
    np.testing.assert_allclose(advantage + low, expected, atol=1e-12)


@LAW
@given(SEEDS)
def test_never_switching_is_gae_on_the_action_tokens(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    quiet = batch.with_signals({"switch": np.zeros(len(batch))})
    credit = HAE(**SETTINGS, whiten=False).estimate(quiet)
    flat = GAE(gamma=0.9, lam=0.8).estimate(batch)
    here = batch.signals["block"] == 2
    expected = np.repeat(flat.advantage, batch.lengths)[here]
    np.testing.assert_allclose(credit.advantage[here], expected, atol=1e-9)
    np.testing.assert_allclose(
        credit.targets[here], np.repeat(flat.targets, batch.lengths)[here], atol=1e-9
    )


@LAW
@given(SEEDS)
def test_perfect_values_leave_nothing(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    ended = replace(batch, terminated=batch.terminated | batch.truncated)
    to_go = GAE(gamma=1.0, lam=1.0).estimate(ended.with_signals({"value": np.zeros(len(batch))}))
    perfect = dict.fromkeys(("value", "value_high", "value_switch"), to_go.targets)
    credit = HAE(whiten=False).estimate(ended.with_signals(perfect))
    np.testing.assert_allclose(credit.advantage, 0, atol=1e-9)


@LAW
@given(SEEDS)
def test_a_missing_value_changes_nothing_but_its_own_turn_is_silent(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    lost = np.random.default_rng(seed).random(len(batch)) < 0.2
    for name, kind in (("value", 2), ("value_high", 1), ("value_switch", 0)):
        column = np.where(lost, np.nan, batch.signals[name])
        credit = HAE(lam_turn=0.0, lam_segment=0.0, whiten=False).estimate(
            batch.with_signals({name: column})
        )
        tokens = (batch.signals["block"] == kind) & np.repeat(lost, batch.lengths)
        np.testing.assert_allclose(credit.advantage[tokens], 0, atol=1e-12)
        assert credit.stats["missing_labels"] == np.sum(lost & (batch.lengths > 0))


def test_a_turn_that_does_not_say_whether_it_switched_goes_on_with_its_sub_goal(episode):
    lost = episode.with_signals({"switch": np.array([1, 0, np.nan])})
    credit = HAE(whiten=False).estimate(lost)
    assert credit.stats["segments"] == 1
    assert credit.stats["missing_labels"] == 1
    keeps = HAE(whiten=False).estimate(episode.with_signals({"switch": np.array([1.0, 0, 0])}))
    assert credit.components["action"].tolist() == keeps.components["action"].tolist()
    assert credit.components["switch"][6] == 0, "it is not credited for a switch nobody saw"


def test_an_episode_cut_short_needs_to_know_what_was_to_come(episode):
    cut = replace(
        episode,
        terminated=np.zeros(3, dtype=bool),
        truncated=np.array([False, False, True]),
    )
    with pytest.raises(EpisodeError, match="no signal 'value_next'"):
        HAE().estimate(cut)
    credit = HAE(truncation="same_state", whiten=False).estimate(cut)
    # The last action: 3 + V^L - V^L = 3; its sub-goal: 3 + V^H - V^H; its switch: 3 + V^H - V^T.
    assert credit.advantage[6:].tolist() == [3, 3, 3]


def test_other_blocks_are_refused(episode):
    odd = episode.with_signals({"block": np.array([0, 1, 2, 0, 1, 3, 0, 1, 2])})
    with pytest.raises(EpisodeError, match="'block' of turn 1 of episode 0 is 3"):
        HAE().estimate(odd)


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'same_state'"):
        HAE(truncation="same state")
    with pytest.raises(ConfigError, match=r"hae.lam_segment"):
        HAE(lam_segment=2)
