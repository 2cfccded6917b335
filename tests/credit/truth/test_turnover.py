"""Open teams: a table worked in full, and a small team whose every episode is listed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.truth.ideal import annotate
from marl_llm.credit.truth.play import all_plays
from marl_llm.credit.truth.process import solve
from marl_llm.credit.truth.sample import sample
from marl_llm.credit.truth.turnover import (
    counterfactual,
    hazard_split,
    joint_values,
    open_team,
    split,
)

# Two agents with two actions each; nothing happens, somebody is replaced, somebody leaves.
PI = [np.array([0.5, 0.5]), np.array([0.75, 0.25])]
LAW = np.array([0.6, 0.3, 0.1])
Q = np.array([[[4, 1, 0], [2, 2, 1]], [[3, 3, 2], [1, 4, 3]]], dtype=float)


def means(q, law=LAW):
    """E over actions and events."""
    return float(np.einsum("i,j,ije,e->", *PI, q, law))


def test_the_table():
    parts = split(Q, PI, LAW)
    assert parts.mean == pytest.approx(2.6)
    np.testing.assert_allclose(parts.baseline, [3.0, 2.25, 1.25])
    np.testing.assert_allclose(parts.action, [[0.1, -0.7], [0.3, -0.5]])
    np.testing.assert_allclose(parts.turnover, [0.4, -0.35, -1.35])
    np.testing.assert_allclose(
        parts.interaction,
        [
            [[0.9, -1.35, -1.35], [-0.3, 0.45, 0.45]],
            [[-0.3, 0.45, 0.45], [-1.5, 2.25, 2.25]],
        ],
    )
    np.testing.assert_allclose(
        parts.advantage,
        [[[1, -1.25, -1.25], [-1, -0.25, -0.25]], [[0, 0.75, 0.75], [-2, 1.75, 1.75]]],
    )
    squares = [means(np.broadcast_to(x, Q.shape) ** 2)
               for x in (parts.action[..., None], parts.turnover, parts.interaction)]  # fmt: skip
    np.testing.assert_allclose(squares, [0.13, 0.315, 0.945])
    assert sum(squares) == pytest.approx(means(Q**2) - 2.6**2)


def test_counterfactuals_of_the_table():
    first, second = (counterfactual(Q, PI, agent) for agent in (0, 1))
    np.testing.assert_allclose(first[0], [[0.5, -1, -1], [0.5, -1, -1]])
    np.testing.assert_allclose(first[1], -first[0])
    np.testing.assert_allclose(second, [[[0.5, -0.25, -0.25], [-1.5, 0.75, 0.75]]] * 2)
    np.testing.assert_allclose(first @ LAW, [[-0.1, -0.1], [0.1, 0.1]])
    np.testing.assert_allclose(second @ LAW, [[0.2, -0.6], [0.2, -0.6]])


def test_a_policy_that_does_not_see_the_event_may_drop_the_interaction():
    parts, first = split(Q, PI, LAW), counterfactual(Q, PI, 0)
    alone = np.broadcast_to((first @ LAW)[..., None], Q.shape)
    score = (np.arange(2) == 0)[:, None, None] - 0.5  # of agent 0's action 0
    found = {
        "Q - mu": Q - parts.mean,
        "Q - b": parts.advantage,
        "A": first,
        "alpha": alone,
        "half": 0.5 * (first + alone),
    }
    variances = [0.345, 0.26625, 0.135, 0.0, 0.03375]
    for (name, credit), variance in zip(found.items(), variances, strict=True):
        assert means(score * credit) == pytest.approx(-0.05), name
        assert means((score * credit) ** 2) - 0.05**2 == pytest.approx(variance), name


def test_one_that_sees_it_must_not():
    """Agent 0 plays action 0 with probability .9, .2, .2: without ι the sign is wrong at e = 0."""
    seen = np.array([0.9, 0.2, 0.2])
    policy = np.stack((seen, 1 - seen))  # [A, E]
    baseline = np.einsum("ie,j,ije->e", policy, PI[1], Q)
    np.testing.assert_allclose(baseline, [3.4, 2.85, 1.85])
    each = np.einsum("j,ije->ie", PI[1], Q) - baseline  # A(a, e)
    main = np.broadcast_to((each @ LAW)[:, None], each.shape)
    # The actions differ by 1, -2, -2, on average by .6 - .6 - .2 = -.2; π (1 - π) = .09, .16, .16.
    expected = {
        1.0: [0.09, -0.32, -0.32],
        0.5: [0.036, -0.176, -0.176],
        0.0: [-0.018, -0.032, -0.032],
    }
    for beta, gradient in expected.items():
        credit = main + beta * (each - main)
        np.testing.assert_allclose(seen * (1 - seen) * (credit[0] - credit[1]), gradient)


def test_endogenous_events_have_a_hazard():
    law = np.array([[LAW], [[0.8, 0.15, 0.05]]])
    parts = hazard_split(Q, PI, law)
    np.testing.assert_allclose(parts["law"], [0.7, 0.225, 0.075])
    assert parts["value"] == pytest.approx(2.55)
    np.testing.assert_allclose(parts["total"], [[0.15, -0.65], [0.4, -1.0]])
    np.testing.assert_allclose(parts["direct"], [[0.325, -0.775], [0.225, -0.875]])
    np.testing.assert_allclose(parts["hazard"], [[-0.325, -0.025], [0.025, -0.275]])
    assert parts["constant"] == pytest.approx(0.15)
    np.testing.assert_allclose(parts["total"], parts["direct"] + parts["hazard"] + 0.15)
    exogenous = hazard_split(Q, PI, LAW)
    np.testing.assert_allclose(exogenous["hazard"], 0, atol=1e-12)
    assert exogenous["constant"] == pytest.approx(0, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_parts_are_centred_and_pure_turnover_earns_nothing(seed):
    rng = np.random.default_rng(seed)
    policies = [rng.dirichlet(np.ones(k)) for k in (2, 3, 2)]
    law = rng.dirichlet(np.ones(4))
    q = rng.normal(size=(2, 3, 2, 4))
    parts = split(q, policies, law)
    weight = np.einsum("i,j,k->ijk", *policies)
    assert (weight * parts.action).sum() == pytest.approx(0, abs=1e-12)
    assert parts.turnover @ law == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(
        (weight[..., None] * parts.interaction).sum((0, 1, 2)), 0, atol=1e-12
    )
    np.testing.assert_allclose(parts.interaction @ law, 0, atol=1e-12)
    moved = split(q + rng.normal(size=4), policies, law)
    np.testing.assert_allclose(moved.advantage, parts.advantage, atol=1e-12)
    nothing = split(np.broadcast_to(rng.normal(size=4), q.shape), policies, law)
    np.testing.assert_allclose(nothing.advantage, 0, atol=1e-12)
    own = counterfactual(q, policies, 1)
    np.testing.assert_allclose(np.einsum("j,ijke->ike", policies[1], own), 0, atol=1e-12)


@pytest.mark.parametrize(("cost", "value"), [(0.0, 1.9039515625), (3.0, -0.6632984375)])
def test_the_listed_team(cost, value):
    """512 episodes; credit of the first slot's first action, in six ways, with their variances."""
    gamma, process = 0.95, open_team(gamma=0.95, cost=cost)
    solution, plays = solve(process), all_plays(process)
    chance = plays.probability
    assert len(chance) == 512
    assert solution.values[0, 0] == pytest.approx(value)
    step = np.arange(6) // 2
    returns = (plays.pay[:, :, 0] * gamma**step).sum(axis=1)
    assert chance @ returns == pytest.approx(value)

    first = plays.action[:, 0]
    joint = first, plays.action[:, 1], plays.branch[:, 1]
    half = [np.array([0.5, 0.5])] * 2
    parts = split(joint_values(process, solution.values, 0), half, np.array([0.7, 0.3]))
    own = counterfactual(joint_values(process, solution.values, 0), half, 0)
    luck = sum(
        gamma**t * tables(process, solution)[plays.state[:, 2 * t], plays.branch[:, 2 * t + 1]]
        for t in range(3)
    )
    q = joint_values(process, solution.values, 0)[joint]
    credits = {
        "G - V": returns - value,
        "G - V - luck": returns - value - luck,
        "Q - V": q - value,
        "Q - b": parts.advantage[joint],
        "A": own[joint],
        "alpha": (own @ [0.7, 0.3])[joint[:2]],
    }
    score = first - 0.5  # of the logit of action 1
    for name, credit in credits.items():
        assert chance @ (score * credit) == pytest.approx(0.069618, abs=1e-6), name
    variances = [chance @ (score * credit) ** 2 - 0.069618**2 for credit in credits.values()]
    plain = [0.131934, 0.129250, 0.004029, 0.002715, 0.001315, 0.0]
    costly = [1.511139, 0.129250, 0.526373, 0.002715, 0.001315, 0.0]
    np.testing.assert_allclose(variances, costly if cost else plain, atol=2e-6)


def tables(process, solution):
    """τ(e) at every state of slot 0, [S, E]."""
    found = np.zeros((len(process), 2))
    for state in np.flatnonzero([len(s[4]) == 0 for s in process.states]):
        q = joint_values(process, solution.values, int(state))
        found[state] = split(q, [np.array([0.5, 0.5])] * 2, np.array([0.7, 0.3])).turnover
    return found


def test_the_annotated_baseline_is_that_of_the_table():
    process = open_team()
    solution = solve(process)
    one = sample(process, np.random.default_rng(0), groups=20)
    told = annotate(one, np.random.default_rng(1)).signals["value_event"]
    expected = solution.value[:, None] + tables(process, solution)
    rows = np.flatnonzero(process.event[one.state])  # slot 1; slot 0 moved just before
    np.testing.assert_allclose(told[rows - 1], expected[one.state[rows - 1], one.branch[rows]])


def test_replaced_agents_are_new_names_and_the_departed_are_paid_on():
    process = open_team(steps=3, rate=1.0)
    batch = sample(process, np.random.default_rng(0), groups=1, size=2).batch
    names = np.array(batch.names["agent"])[batch.agent].reshape(2, 6)
    assert names[0].tolist() == [
        "worker_0", "worker_1", "worker_0#1", "worker_1", "worker_0#2", "worker_1",
    ]  # fmt: skip
    reward = batch.reward.reshape(2, 6)
    own = names[0] == "worker_1"
    np.testing.assert_allclose(
        reward[:, 0] - reward[:, own].sum(axis=1), first_pay(process, batch), atol=1e-12
    )


def first_pay(process, batch):
    """What the team earned by the first turn, which only the first mover was there for."""
    action = batch.action_key.reshape(2, 6)[:, 0]
    return process.pay[0, action, 0, 0]


def test_events_are_scheduled_before_anybody_acts():
    process = open_team(steps=2)
    one = sample(process, np.random.default_rng(0), groups=40)
    event = annotate(one, np.random.default_rng(1)).signals["event"].reshape(-1, 4)
    met = one.branch.reshape(-1, 4)[:, [1, 3]]
    np.testing.assert_array_equal(event[:, 0], met @ [2, 1])
    shares = np.bincount(event[:, 0], minlength=4) / len(event)
    expected = [np.prod(p) for p in product((0.7, 0.3), repeat=2)]
    np.testing.assert_allclose(shares, expected, atol=0.08)
