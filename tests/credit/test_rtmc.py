"""RTMC: action values against state values that are drawn towards the group's mean return."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.rtmc import RTMC
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
OPEN = RTMC(prior_visits=0.0)


def advantage(estimator, batch):
    return estimator.estimate(batch).advantage


@pytest.fixture
def rollouts(tell):
    """Four rollouts of two turns; the first and the last, which are equal, succeed."""
    return tell(
        ["01", "01", "02", "01"], ["ab", "ac", "db", "ab"], [[0, 1], [0, 0], [0, 0], [0, 1]]
    )


def plain(estimator, batch):
    """The formula, turn by turn."""
    lengths = batch.lengths
    visits, returns, cells, paid = {}, {}, {}, {}
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent):
            rows = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            rows = sorted(rows, key=lambda i: batch.agent_turn[i])
            known = set()
            for place, i in enumerate(rows):
                later = [estimator.gamma**k * batch.reward[j] for k, j in enumerate(rows[place:])]
                cell = (batch.group[i], batch.role[i])
                state = (*cell, batch.state_key[i])
                cells[i] = (cell, state, (*state, batch.action_key[i]))
                paid[i] = sum(batch.reward[j] for j in rows)
                if lengths[i] == 0:
                    continue
                returns.setdefault(cell, {})[(episode, agent)] = paid[i]
                if estimator.visit == "every" or cells[i] not in known:
                    known.add(cells[i])
                    visits.setdefault(state, []).append(sum(later))
                    visits.setdefault(cells[i][2], []).append(sum(later))
    out = np.zeros(len(batch))
    for i, (cell, state, pair) in cells.items():
        if lengths[i]:
            n, n_0 = len(visits[state]), estimator.prior_visits
            prior = np.mean(list(returns[cell].values()))
            value = (n * np.mean(visits[state]) + n_0 * prior) / (n + n_0)
            out[i] = np.mean(visits[pair]) - value
            if n == 1 and estimator.fallback == "zero":
                out[i] = 0.0
            if n == 1 and estimator.fallback == "trajectory":
                out[i] = paid[i] - prior
    if estimator.scale:
        said = lengths > 0
        for cell in {cell for cell, _, _ in cells.values()}:
            mine = (batch.group == cell[0]) & (batch.role == cell[1])
            spread = np.std(out[mine & said]) if np.any(mine & said) else 0.0
            out[mine] /= spread if spread > 1e-12 else 1.0
    return out


PLAIN = {"rtmc": plain}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Q(0, a) = (.99 + 0 + .99)/3 = .66, V(0) = (.99 + 0 + 0 + .99)/4 = .495; Q(1, b) = 1,
        # Q(1, c) = 0, V(1) = 2/3; state 2 was visited once.
        ({"prior_visits": 0.0}, [0.165, 1 / 3, 0.165, -2 / 3, -0.495, 0, 0.165, 1 / 3]),
        # V_0 = .5: V'(0) = (4 · .495 + 1)/6 = .496667, V'(1) = (2 + 1)/5 = .6, V'(2) = 1/3.
        ({}, [0.163333, 0.4, 0.163333, -0.6, -0.496667, -0.333333, 0.163333, 0.4]),
        # Mean -.0175, mean square 1.117822/8, std √(.139728 - .000306) = .373392.
        (
            {"scale": True},
            [0.437431, 1.07126, 0.437431, -1.606891, -1.330148, -0.892717, 0.437431, 1.07126],
        ),
    ],
)
def test_worked_values(rollouts, options, expected):
    np.testing.assert_allclose(advantage(RTMC(**options), rollouts), expected, atol=2e-6)


def test_every_visit_without_discount(tell):
    batch = tell(
        ["012", "01", "031", "03"],
        ["abc", "ad", "efb", "eg"],
        [[0, 0, 1], [0, 0], [0, 0, 0], [0, 1]],
    )
    # Q: 0a .5, 1b .5, 2c 1, 1d 0, 0e .5, 3f 0, 3g 1. V: 0 .5, 1 1/3, 2 1, 3 .5.
    got = advantage(RTMC(visit="every", gamma=1.0, prior_visits=0.0), batch)
    np.testing.assert_allclose(
        got, [0, 1 / 6, 0, 0, -1 / 3, 0, -1 / 2, 1 / 6, 0, 1 / 2], atol=1e-12
    )


def test_a_revisit(tell):
    # State 0, action a, twice in one episode, then a success; b once in another that fails. With
    # γ = .5 the visits of a are followed by .5 and 1.
    batch = tell(["00", "0"], ["aa", "b"], [[0, 1], [0]])
    first = RTMC(gamma=0.5, prior_visits=0.0)
    # First visits: Q(a) = .5, V = (.5 + 0)/2. Both turns with a get the same.
    np.testing.assert_allclose(advantage(first, batch), [0.25, 0.25, -0.25])
    # Every visit: Q(a) = .75, V = (.5 + 1 + 0)/3.
    np.testing.assert_allclose(advantage(replace(first, visit="every"), batch), [0.25, 0.25, -0.5])
    # With another action it is a new visit of the state: V = (.5 + 1 + 0)/3 again.
    other = tell(["00", "0"], ["ac", "b"], [[0, 1], [0]])
    np.testing.assert_allclose(advantage(first, other), [0, 0.5, -0.5])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"visit": "every", "prior_visits": 0.0},
        {"scale": True},
        {"fallback": "zero"},
        {"fallback": "trajectory", "gamma": 1.0},
    ],
)
@LAW
@given(SEEDS)
def test_against_plain(random_batch, options, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, groups=2, max_turns=5)
    batch = replace(batch, action_key=rng.integers(0, 2, len(batch)))
    estimator = RTMC(**options)
    np.testing.assert_allclose(advantage(estimator, batch), plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_prior_a_state_adds_up_to_zero(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, max_turns=5)
    batch = replace(batch, action_key=rng.integers(0, 2, len(batch)))
    got = advantage(RTMC(visit="every", prior_visits=0.0), batch)
    key = batch.group * 1000 + batch.role * 500 + batch.state_key
    np.testing.assert_allclose(np.bincount(key, got), 0.0, atol=1e-9)


@LAW
@given(SEEDS)
def test_scaling_keeps_signs(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    scaled = advantage(RTMC(scale=True), batch)
    assert np.array_equal(np.sign(scaled), np.sign(advantage(RTMC(), batch)))


@LAW
@given(SEEDS)
def test_one_state_and_an_action_for_each_is_the_group_rule(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=1)
    batch = replace(batch, state_key=0 * batch.state_key, action_key=np.arange(len(batch)))
    expected = advantage(DrGRPO(by=("group", "role")), batch)
    np.testing.assert_allclose(advantage(OPEN, batch), expected, atol=1e-9)


def test_states_that_never_repeat(make_batch):
    batch = make_batch([0, 1, 0, 0], episode=[0, 0, 1, 1], state_key=[1, 2, 3, 4])
    credit = OPEN.estimate(batch)
    assert not credit.advantage.any()
    assert credit.stats["singleton_share"] == 1
    # With n_0 = 2 each gets (G - V_0) · 2/3, V_0 = .5.
    got = advantage(RTMC(gamma=1.0), batch)
    np.testing.assert_allclose(got, np.array([1, 1, -1, -1]) / 3)
    assert not advantage(RTMC(fallback="zero"), batch).any()
    got = advantage(RTMC(fallback="trajectory"), batch)
    assert got.tolist() == [0.5, 0.5, -0.5, -0.5]


def test_bad_settings():
    bad = {"visit": "last", "prior_visits": -1.0, "gamma": 2.0, "fallback": "raw"}
    bad["singleton"] = "raw"  # it would say nothing: a lone visit has its own rule
    for options in ({name: value} for name, value in bad.items()):
        with pytest.raises(ConfigError, match=f"rtmc.{next(iter(options))}"):
            RTMC(**options)
