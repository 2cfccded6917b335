"""Credit of calls against its exact value, and the noise of M-GRPO's random alignment."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from marl_llm.agents.delegating import Solver
from marl_llm.credit import assign
from marl_llm.credit.given import Given
from marl_llm.credit.leave_one_out import LeaveOneOut
from marl_llm.credit.m_grpo import MGRPO, MGRPORandom
from marl_llm.credit.shapley import Shapley
from marl_llm.evaluate.sub_calls import (
    Calls,
    Team,
    alignment_noise,
    draw_calls,
    of_calls,
    replayed_without,
    score,
)
from marl_llm.games.delegation import Pay
from marl_llm.games.needle_pool import NeedlePool
from marl_llm.types import Outcome

TEAM_PAY = Pay(format=0.0, correct=1.0, sub_format=0.0, sub_main=1.0, sub_own=0.0)


def drawn(team=None, groups=30, size=8, **settings) -> Calls:
    make = partial(NeedlePool, **{"pay": TEAM_PAY, **settings})
    return draw_calls(make, team or Team(), groups=groups, size=size, seed=0)


@pytest.fixture(scope="module", params=["sum", "product"])
def calls(request):
    return drawn(reward=request.param)


@pytest.fixture(scope="module")
def varying():
    return drawn(level=5, groups=12, pay=Pay())


@dataclass(frozen=True)
class OpensOnce:
    """Calls for all needles at once, then answers."""

    name: str = "once"

    def act(self, game, agent, rng):
        call = game.call_of(agent)
        return "done" if call.calls else game.solve(call, rng)


def test_everybody_reports_and_the_values_of_an_episode_sum_to_its_answer(calls):
    for episode in calls.episodes:
        of = calls.batch.episode[calls.rows] == episode.id
        assert calls.shapley[of].sum() == pytest.approx(episode.returns["planner"])
        called = {o for a, o in episode.outcomes.items() if o is not Outcome.ABSENT}
        assert called <= {Outcome.WIN, Outcome.LOSS}
        assert episode.turns[-1].action == "done"


def test_the_team_is_uneven_and_makes_all_kinds_of_calls(calls):
    made = np.bincount(calls.batch.episode[calls.rows], minlength=len(calls.episodes))
    assert set(made) == {0, 1, 2, 3, 4}
    assert 0.05 < np.mean([e.returns["planner"] for e in calls.episodes]) < 0.6
    assert np.any(calls.shapley != calls.left_out)
    assert np.any(calls.shapley == 0)


def test_the_signals_are_what_rules_need(calls):
    planner = calls.batch.depth == 0
    for name in ("return_without", "shapley_value"):
        assert np.array_equal(calls.batch.known(name), ~planner)
    credit = of_calls(assign(LeaveOneOut(), calls.batch), calls)
    np.testing.assert_allclose(credit, calls.left_out, atol=1e-12)


def test_rules_that_are_told_the_worth_reach_the_truth_and_broadcast_does_not(calls):
    told = score(of_calls(assign(LeaveOneOut(), calls.batch), calls), calls, 0)
    assert told.left_out.low > 0.999
    assert told.shapley.low > 0.8
    shared = score(of_calls(assign(Shapley(by=("group", "role")), calls.batch), calls), calls, 0)
    assert shared.within.low > 0.999
    assert shared.shapley.low > 0.85
    blind = score(of_calls(assign(MGRPO(), calls.batch), calls), calls, 0)
    assert 0.2 < blind.shapley.low < blind.shapley.high < 0.8


def test_credit_of_a_call_is_the_mean_over_its_turns(calls):
    batch = calls.batch
    credit = assign(LeaveOneOut(), batch)
    moved = credit.advantage + np.where(batch.agents().after > 0, 1.0, 0.0)
    turns = (batch.agents().before + 1)[calls.rows]
    found = of_calls(type(credit)(advantage=moved, weight=credit.weight), calls)
    np.testing.assert_allclose(found, calls.left_out + (turns - 1) / turns)


def test_playing_on_without_a_report_is_what_it_was_worth_where_nobody_reacts():
    team = Team(planner=OpensOnce(), others={"solver": Solver()})
    calls = drawn(team, groups=10, size=2)
    without = replayed_without(calls, 1)
    np.testing.assert_allclose(1.0 - without[calls.rows], calls.left_out)
    assert np.array_equal(np.isnan(without), calls.batch.depth == 0)


def test_a_planner_that_calls_again_makes_up_for_a_missing_report():
    calls = drawn(Team(planner=Solver(), others={"solver": Solver()}), groups=10, size=2)
    spare = replayed_without(calls, 1)[calls.rows]
    np.testing.assert_allclose(spare, 1.0)  # three needles at most, four calls


def test_the_same_seed_is_the_same_sample():
    one, two = drawn(groups=3), drawn(groups=3)
    assert np.array_equal(one.shapley, two.shapley)
    assert np.array_equal(one.batch.reward, two.batch.reward)


@pytest.mark.parametrize("size", [2, 8])
def test_weights_and_random_alignment_agree_in_expectation(varying, size):
    batch, draws = varying.batch, 800
    rng = np.random.default_rng(0)
    fixed = assign(MGRPO(), batch)
    drawn = [assign(MGRPORandom(size=size), batch, Given(rng)) for _ in range(draws)]
    rows = varying.rows
    assert len(set(np.bincount(batch.episode[rows]))) >= 5  # calls of an episode vary
    for what in (
        lambda credit: credit.weight[rows],
        lambda credit: credit.components["baseline"][rows],
    ):
        each = np.stack([what(credit) for credit in drawn])
        # 4.5 standard errors: one in 150,000, for some hundred numbers. Copies of a call that
        # always counts the same have no spread.
        error = 4.5 * each.std(axis=0, ddof=1) / np.sqrt(draws)
        assert np.all(np.abs(each.mean(axis=0) - what(fixed)) <= error + 1e-9)
        assert np.median(error) < 0.1


def test_the_noise_of_random_alignment(varying):
    few, many = (alignment_noise(varying.batch, size, 100, 0) for size in (1, 16))
    assert few.dropped > 0.6
    assert many.dropped == 0.0
    assert few.baseline > 3 * many.baseline > 0
    # With one call an episode, each of n calls weighs 1 with probability 1/n, instead of 1/n.
    assert few.variance > 3 > 1.3 > many.variance > 1
    for noise in (few, many):
        assert abs(noise.bias) < 4 * noise.bias_error


def test_one_call_in_every_episode_leaves_nothing_to_chance():
    team = Team(planner=OpensOnce(), others=Team().others)
    calls = drawn(team, level=1)
    noise = alignment_noise(calls.batch, 4, 20, 0)
    assert (noise.dropped, noise.baseline, noise.bias) == (0, 0, 0)
    assert noise.variance == pytest.approx(1)
