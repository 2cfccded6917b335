"""Processes: solved by one pass, checked by listing every episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit.truth import TRUTHS
from marl_llm.credit.truth.play import all_plays
from marl_llm.credit.truth.process import Choice, Decision, expand, returns_between, solve
from marl_llm.errors import ConfigError

SMALL = ["add", "team", "turnover", "delegation", "redundant", "coupled", "alias", "stopping"]


@pytest.fixture(params=SMALL)
def process(request):
    return TRUTHS[request.param].process()


def test_values_are_means_over_all_episodes(process):
    solution, plays = solve(process), all_plays(process)
    assert plays.probability.sum() == pytest.approx(1)
    to_go = np.cumsum(plays.pay[:, ::-1, 0], axis=1)[:, ::-1]
    for state in range(len(process)):
        here = plays.state == state
        chance = (plays.probability[:, None] * here).sum()
        assert chance == pytest.approx(solution.reach[state])
        total = (plays.probability[:, None] * here * to_go).sum()
        assert total / chance == pytest.approx(solution.value[state])
        for action in np.flatnonzero(process.policy[state]):
            there = here & (plays.action == action)
            weight = plays.probability[:, None] * there
            expected = (weight * to_go).sum() / weight.sum() - total / chance
            assert solution.advantage[state, action] == pytest.approx(expected, abs=1e-9)
    low, high = returns_between(process)
    assert to_go[:, 0].min() == pytest.approx(low[0])
    assert to_go[:, 0].max() == pytest.approx(high[0])


def test_the_policy_s_own_mean_credit_is_0(process):
    solution = solve(process)
    mean = (process.policy * solution.advantage).sum(axis=1)
    np.testing.assert_allclose(mean, 0, atol=1e-12)


def test_credit_is_the_gradient_of_the_value():
    process = TRUTHS["turnover"].process()
    solution = solve(process)
    step = 1e-6
    for state in (0, 3, 11):
        policy = process.policy.copy()
        policy[state] = [0.5 - step, 0.5 + step]
        moved = solve(replace(process, policy=policy)).values[0, 0]
        gain = solution.reach[state] * (solution.advantage[state] @ [-step, step])
        assert moved - solution.values[0, 0] == pytest.approx(gain, abs=1e-11)


def coin(known=None, hidden=False, p=0.5):
    """A coin that is tossed first, then a guess of it."""

    def rule(state):
        if state == "toss":
            return Decision(agent="a", choices=(Choice(1.0, ((0.8, 0.0, "H"), (0.2, 0.0, "T"))),))
        pay = (1.0, 0.0) if state == "H" else (0.0, 1.0)
        choices = tuple(Choice(q, ((1.0, x, None),)) for q, x in zip((p, 1 - p), pay, strict=True))
        return Decision(agent="a", choices=choices, known=known)

    return expand("coin", {"toss": 1.0}, rule, agents={"a": "a"}, hidden=hidden)


def test_hidden_credit_is_a_mean_over_what_cannot_be_told():
    seen, unseen = solve(coin()), solve(coin(known="?", hidden=True))
    np.testing.assert_allclose(seen.advantage[1:], [[0.5, -0.5], [-0.5, 0.5]])
    # .8 · .5 - .2 · .5 = .3 for heads, in both states.
    np.testing.assert_allclose(unseen.advantage[1:], [[0.3, -0.3], [0.3, -0.3]])
    np.testing.assert_allclose(unseen.known[1:], 0.5)
    assert solve(coin(known="?")).advantage[1, 0] == 0.5  # the truth of states, if that is asked


def test_where_play_never_comes_credit_is_still_defined():
    def rule(state):
        if state == 0:
            return Decision(
                agent="a", choices=(Choice(1.0, ((1.0, 0.0, None),)), Choice(0.0, ((1.0, 0.0, 1),)))
            )
        return Decision(
            agent="a",
            known="?",
            choices=(Choice(0.5, ((1.0, 1.0, None),)), Choice(0.5, ((1.0, 0.0, None),))),
        )

    solution = solve(expand("off", {0: 1.0}, rule, agents={"a": "a"}, hidden=True))
    assert solution.reach.tolist() == [1, 0]
    np.testing.assert_allclose(solution.advantage, [[0, 0.5], [0.5, -0.5]])
    assert solution.decisive.tolist() == [False, True]  # the unplayed action moves no gradient


END = Choice(1.0, ((1.0, 0.0, None),))


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision(agent="b", choices=(Choice(1.0, ((1.0, 0.0, None),)),)), "'b' moves, known are"),
        (Decision(agent="a", choices=(Choice(0.9, ((1.0, 0.0, None),)),)), "do not sum to 1"),
        (Decision(agent="a", choices=(Choice(1.0, ((0.5, 0.0, None),)),)), "do not sum to 1"),
        (
            Decision(agent="a", choices=(Choice(1.0, ((1.0, (1.0, 2.0), None),)),)),
            r"pays \[2\] at a time",
        ),
        (Decision(agent="a", choices=(Choice(1.0, ((1.0, 0.0, 0),)),)), "more than 200,000"),
        (
            Decision(agent="a", choices=(END,), default=(0.5, 0.5)),
            "default of a has 2 probabilities for 1 choices",
        ),
        (
            Decision(
                agent="a",
                choices=(
                    Choice(0.5, ((0.5, 0.0, None), (0.5, 1.0, None))),
                    Choice(0.5, ((0.4, 0.0, None), (0.6, 1.0, None))),
                ),
                event=True,
            ),
            "the event of turn 0 has several laws",
        ),
    ],
)
def test_bad_rules(decision, message):
    with pytest.raises(ConfigError, match=message):
        expand("bad", {0: 1.0}, lambda state: decision, agents={"a": "a"})


def test_a_start_that_is_no_law():
    with pytest.raises(ConfigError, match="of the start do not sum to 1"):
        expand(
            "bad", {0: 0.5}, lambda state: Decision(agent="a", choices=(END,)), agents={"a": "a"}
        )


def test_an_event_hangs_on_no_state():
    def rule(state):
        p = 0.2 * state
        branches = ((p, 0.0, None), (1 - p, 1.0, None))
        return Decision(agent="a", choices=(Choice(1.0, branches),), event=True)

    with pytest.raises(ConfigError, match="the event of turn 0 has several laws"):
        expand("bad", {1: 0.5, 2: 0.5}, rule, agents={"a": "a"})
