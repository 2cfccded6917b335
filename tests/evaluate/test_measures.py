"""Measures of credit: worked by hand, and on estimators whose behaviour is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.truth import TRUTHS
from marl_llm.credit.truth.bifurcation import all_good, bifurcations
from marl_llm.credit.truth.process import solve
from marl_llm.credit.truth.sample import grow, sample
from marl_llm.evaluate.estimators.measures import MEASURES, measure, of_turns, yardstick

SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def drawn():
    return sample(bifurcations(all_good), np.random.default_rng(0), groups=60)


@pytest.fixture(scope="module")
def against(drawn):
    return yardstick(drawn, seed=0)


def values(credit, against):
    return {name: found and found.value for name, found in measure(credit, against).items()}


def test_the_truth_is_perfect_on_any_scale(drawn, against):
    for scale in (1.0, 1e-6, 300.0):
        found = values(scale * drawn.advantage, against)
        for name, expected in {"pairs": 1, "leak": 0, "bias": 0, "sd": 0, "sign": 1}.items():
            assert found[name] == pytest.approx(expected, abs=1e-7), name
        assert found["cosine"] > 0.95
        assert found["dummy"] is None  # there is none


def test_silence_knows_nothing(drawn, against):
    found = values(np.zeros(len(drawn.batch)), against)
    assert found == {
        "pairs": 0.5, "leak": None, "cosine": 0.0, "bias": None, "sd": None, "sign": 0.5,
        "dummy": None,
    }  # fmt: skip


def test_the_opposite_is_always_wrong(drawn, against):
    found = values(-drawn.advantage, against)
    assert found["pairs"] == 0 and found["sign"] == 0 and found["cosine"] < -0.95


def test_a_broadcast_leaks_everything(drawn, against):
    credit = of_turns(GRPO().estimate(drawn.batch), drawn.batch)
    assert values(credit, against)["leak"] == pytest.approx(1)


def test_worked_values():
    """One group of two episodes of one turn that matters and one that does not.

    Good and bad are worth +½ and -½. Credit 3 and 1 in the won episode, 1 and 0 in the lost one.
    """
    process = bifurcations(all_good, turns=2, at=(0,), nuisance=2)
    solution = solve(process)
    rng = np.random.default_rng(0)
    while True:
        one = sample(process, rng, groups=1, size=2, solution=solution)
        if one.batch.reward.reshape(2, 2)[:, 1].tolist() == [1, 0]:
            break
    found = values(np.array([3.0, 1.0, 1.0, 0.0]), yardstick(one, seed=0))
    # Truth .5, 0, -.5, 0. Unlike pairs: (.5, 0), (.5, -.5), (.5, 0'), (0, -.5), (0', -.5):
    # 3>1, 3>1, 3>0 right; 1 = 1 a tie; 0<1 wrong. 3.5 of 5.
    assert found["pairs"] == pytest.approx(0.7)
    # (1 + 0)/2 over (3 + 1)/2.
    assert found["leak"] == pytest.approx(0.25)
    # Scores ½ and -½ give 1.5 - .5 = 1 upwards, as the truth goes.
    assert found["cosine"] == pytest.approx(1.0)
    assert found["sign"] == pytest.approx(0.5)
    # c = (3·.5 - 1·.5) / (9 + 1 + 1 + 0) = 1/11; each cell is one turn, so no spread, and
    # (3/11 - .5)² + (1/11)² + (1/11 + .5)² = .409091 over Σ A² = .5 gives √.818182 = .904534.
    cells = {(int(s), int(a)) for s, a in zip(one.state, one.action, strict=True)}
    assert len(cells) == 4
    assert found["bias"] == pytest.approx(0.904534, abs=1e-6)
    assert found["sd"] == pytest.approx(0, abs=1e-7)


def plain(credit, one):
    """Every measure by its definition, in loops over turns, pairs of turns, states and episodes."""
    process, batch = one.process, one.batch
    rows = [i for i in range(len(batch)) if one.node[i] == i]
    said = {i: sum(credit[j] for j in range(len(batch)) if one.node[j] == i) for i in rows}
    truth = {i: one.advantage[i] for i in rows}
    told = [
        0.5 + 0.5 * np.sign(said[i] - said[j])
        for i in rows
        for j in rows
        if batch.group[i] == batch.group[j] and truth[i] > truth[j] + 1e-12
    ]
    matter = {
        (process.turn[s], process.agent[s])
        for s in range(len(process))
        if np.abs(one.solution.advantage[s][process.policy[s] > 0]).max() > 1e-12
    }
    decides = {i: (process.turn[one.state[i]], process.agent[one.state[i]]) in matter for i in rows}
    null, other = ([abs(said[i]) for i in rows if decides[i] == x] for x in (False, True))
    bias, sd = plain_errors(said, truth, one)
    return {
        "pairs": np.mean(told),
        "leak": np.mean(null) / np.mean(other) if null else None,
        "cosine": plain_cosine({i: said[i] for i in rows if decides[i]}, matter, one),
        "bias": bias,
        "sd": sd,
        "sign": np.mean([0.5 + 0.5 * np.sign(said[i] * truth[i]) for i in rows if truth[i] != 0]),
        "dummy": plain_dummy(said, {agent for _, agent in matter}, batch),
    }


def plain_cosine(said, matter, one):
    process, shape = one.process, one.process.policy.shape

    def push(table, state, action, credit):
        table[process.knob[state]] += credit * (np.arange(shape[1]) == action)
        table[process.knob[state]] -= credit * process.policy[state]

    exact = np.zeros(shape)
    for state in range(len(process)):
        if (process.turn[state], process.agent[state]) in matter:
            for action, p in enumerate(process.policy[state]):
                gain = one.solution.reach[state] * p * one.solution.advantage[state, action]
                push(exact, state, action, gain)
    cosines = []
    for group in np.unique(one.batch.group):
        pushed = np.zeros(shape)
        for i, credit in said.items():
            if one.batch.group[i] == group:
                push(pushed, one.state[i], one.action[i], credit)
        size = np.linalg.norm(pushed)
        cosines.append((pushed * exact).sum() / size / np.linalg.norm(exact) if size else 0.0)
    return np.mean(cosines)


def plain_errors(said, truth, one):
    scale = sum(said[i] * truth[i] for i in said) / sum(x**2 for x in said.values())
    cells = {}
    for i in said:
        cells.setdefault((one.state[i], one.action[i]), []).append(i)
    bias = sd = 0.0
    for members in cells.values():
        mean = scale * np.mean([said[i] for i in members])
        bias += sum((mean - truth[i]) ** 2 for i in members)
        sd += sum((scale * said[i] - mean) ** 2 for i in members)
    power = sum(x**2 for x in truth.values())
    return np.sqrt(bias / power), np.sqrt(sd / power)


def plain_dummy(said, workers, batch):
    worth = {True: [], False: []}
    for episode in np.unique(batch.episode):
        for agent in np.unique(batch.agent[batch.episode == episode]):
            own = np.flatnonzero((batch.episode == episode) & (batch.agent == agent))
            if own[np.argmin(batch.agent_turn[own])] in said:
                worth[agent in workers].append(abs(np.mean([said.get(i, 0.0) for i in own])))
    return np.mean(worth[False]) / np.mean(worth[True]) if worth[False] else None


@pytest.mark.parametrize("name", ["team", "turnover", "delegation", "stopping"])
@pytest.mark.parametrize("draw", [sample, grow], ids=["plain", "grown"])
def test_against_plain(name, draw):
    size = {"size": 4} if draw is sample else {}
    one = draw(TRUTHS[name].process(), np.random.default_rng(0), groups=4, **size)
    noise = np.random.default_rng(1).normal(size=len(one.batch))
    for credit in (one.advantage + 0.3 * noise, np.round(noise), one.batch.reward):
        found, expected = values(credit, yardstick(one, seed=0)), plain(credit, one)
        assert list(found) == list(expected)
        for measured, value in expected.items():
            assert found[measured] == (value if value is None else pytest.approx(value)), measured


def test_noise_is_spread_and_not_bias(drawn, against):
    """Unbiased noise of the truth's own size: c = ½, bias ½, and a spread of ½ of it."""
    size = np.sqrt(np.mean(drawn.advantage**2))
    noise = np.random.default_rng(1).normal(scale=size, size=len(drawn.batch))
    found = values(drawn.advantage + noise, against)
    assert found["bias"] == pytest.approx(0.5, abs=0.03)
    assert found["sd"] == pytest.approx(0.5, abs=0.03)


def test_dummy_agents():
    truth = TRUTHS["team"]
    one = sample(truth.process(), np.random.default_rng(0), groups=30)
    against = yardstick(one, seed=0)
    everybody = np.ones(len(one.batch))
    assert values(everybody, against)["dummy"] == pytest.approx(1)
    dummy = one.batch.agent == one.batch.names["agent"].index("dummy")
    assert values(np.where(dummy, 0.5, 1.0), against)["dummy"] == pytest.approx(0.5)
    assert values(one.advantage, against)["dummy"] == 0
    # What an agent's turns say against each other is no credit of the agent.
    turns = np.where(dummy, np.where(one.batch.agent_turn == 0, 1.0, -1.0), 1.0)
    assert values(turns, against)["dummy"] == pytest.approx(0, abs=1e-12)


def test_copies_count_once_with_the_sum_of_their_credit():
    process = bifurcations(all_good)
    one = grow(process, np.random.default_rng(0), groups=20)
    against = yardstick(one, seed=0)
    copies = np.bincount(one.node, minlength=len(one.node))[one.node]
    found = values(one.advantage / copies, against)
    assert found["pairs"] == 1 and found["bias"] == pytest.approx(0, abs=1e-7)
    assert values(one.advantage, against)["bias"] > 0.1
    assert len(against.rows) == len(np.unique(one.node))


def test_a_gradient_that_is_0_has_no_cosine():
    one = sample(TRUTHS["parity"].process(), np.random.default_rng(0), groups=10)
    assert values(one.advantage, yardstick(one, seed=0))["cosine"] is None


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_intervals_hold_the_value_and_hang_on_the_seed_only(drawn, against, seed):
    credit = drawn.advantage + 0.1 * np.random.default_rng(seed).normal(size=len(drawn.batch))
    first, second = measure(credit, against), measure(credit, yardstick(drawn, seed=0))
    assert list(first) == list(MEASURES)
    for name, found in first.items():
        assert found == second[name]
        if found is not None:
            assert found.low <= found.value <= found.high


def test_intervals_cover_the_truth_as_often_as_they_say():
    """The pair accuracy of GRPO, 40 samples against one that is a hundred times as large."""
    process, rng = bifurcations(all_good, turns=3, at=(0, 2)), np.random.default_rng(0)

    def asked(groups):
        one = sample(process, rng, groups=groups)
        credit = of_turns(GRPO().estimate(one.batch), one.batch)
        return measure(credit, yardstick(one, seed=0))["pairs"]

    exact = asked(4000).value
    inside = [found.low <= exact <= found.high for found in (asked(40) for _ in range(40))]
    assert np.mean(inside) >= 0.85
