"""Each small task does to credit what it was made for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from marl_llm.credit.mars import Mars
from marl_llm.credit.mars_shipped import MarsShipped
from marl_llm.credit.rloo import RLOO
from marl_llm.credit.truth.bifurcation import all_good, bifurcations
from marl_llm.credit.truth.delegation import needle_pool, two_level
from marl_llm.credit.truth.process import solve
from marl_llm.credit.truth.sample import sample
from marl_llm.credit.truth.tasks import alias, coupled, dummy_agent, key_lock, redundant, stopping
from marl_llm.errors import ConfigError


def test_buying_the_same_again_is_worth_nothing():
    process = redundant(turns=3, at=(0, 1, 2))
    solution = solve(process)
    bought = process.find(1, (1, (1,)))
    missing = process.find(1, (1, (0,)))
    np.testing.assert_allclose(solution.advantage[bought, :2], 0)
    np.testing.assert_allclose(solution.advantage[missing, :2], [-0.25, 0.25])


def test_the_dummy_cannot_matter():
    process = dummy_agent()
    solution = solve(process)
    dummy = process.agent == process.agents.index("dummy")
    assert dummy.any() and not solution.decisive[dummy].any()
    for name in ("planner", "executor"):
        assert solution.decisive[process.agent == process.agents.index(name)].any()


def test_coupled_agents_have_own_and_joint_worth():
    # R = .15 (x1 + x2) + .55 x1 x2, p = .6: the first choice is worth .15 + .55 · .6 = .48.
    process = coupled(agents=2)
    advantage = solve(process).advantage
    first = process.find(1, (1, ()))
    assert advantage[first, 1] - advantage[first, 0] == pytest.approx(0.48)
    good, bad = (process.find(3, (3, made)) for made in ((1,), (0,)))
    assert advantage[good, 1] - advantage[good, 0] == pytest.approx(0.7)
    assert advantage[bad, 1] - advantage[bad, 0] == pytest.approx(0.15)


def test_the_key_deserves_what_the_lock_is_paid():
    process = key_lock(turns=5, key=1, delay=2)
    solution = solve(process)
    np.testing.assert_allclose(solution.advantage[process.find(1, (1, 0))], [-0.5, 0.5])
    for held in (0, 1):
        assert not solution.advantage[process.find(3, (3, held))].any()
    drawn = sample(process, np.random.default_rng(0), groups=5)
    reward = drawn.batch.reward.reshape(-1, 5)
    np.testing.assert_array_equal(reward[:, 3], drawn.action.reshape(-1, 5)[:, 1])


@pytest.mark.parametrize("options", [{"delay": 7}, {"delay": 0}, {"key": -1}])
def test_a_key_without_a_lock(options):
    with pytest.raises(ConfigError, match="meets its lock at turn"):
        key_lock(turns=8, **options)


def test_an_alias_has_a_sign_that_no_text_tells():
    process = alias()
    solution = solve(process)
    zero, one = (process.find(1, (1, z, 0)) for z in (0, 1))
    assert process.key[zero] == process.key[one]
    np.testing.assert_allclose(solution.advantage[zero], [0.5, -0.5])
    np.testing.assert_allclose(solution.advantage[one], [-0.5, 0.5])
    mean = solution.reach @ (solution.advantage * (process.turn == 1)[:, None])
    np.testing.assert_allclose(mean, 0)


def test_a_baseline_per_turn_index_cannot_see_what_going_on_is_worth():
    process = stopping(turns=2)
    # Going on at turn 0 opens one more turn, which pays .3; stopping ends it.
    np.testing.assert_allclose(solve(process).advantage[0], [-0.15, 0.15])
    drawn = sample(process, np.random.default_rng(0), groups=1500, size=4)
    batch, first = drawn.batch, drawn.batch.turn == 0

    def told(credit):
        on = drawn.action == 1
        return credit[first & on].mean() - credit[first & ~on].mean()

    whole = RLOO().estimate(batch).advantage
    assert told(whole) == pytest.approx(0.3, abs=0.04)
    # Each turn's own reward against the mean of its turn index: the coin and nothing else.
    index = Mars(by=("agent_turn",), gamma=0.0).estimate(batch).advantage
    assert told(index) < 0.1


@pytest.mark.parametrize("step", [0.3, -0.3])
def test_what_turns_pay_is_lost_where_rewards_are_centred_before_they_are_summed(step):
    """As MARS's published code does; its formula sums first."""
    drawn = sample(stopping(step=step), np.random.default_rng(0), groups=1500, size=4)
    first = drawn.batch.turn == 0

    def going_on(estimator):
        credit = estimator.estimate(drawn.batch).advantage
        on, off = (credit[first & (drawn.action == a)].mean() for a in (1, 0))
        return on - off

    # From turn 0 on ½ + ¼ + ⅛ of three more turns are expected: 1 + ½ + ¼ once it goes on.
    assert going_on(Mars()) == pytest.approx(1.75 * step, abs=0.04)
    assert going_on(MarsShipped()) == pytest.approx(0, abs=0.05)


def test_needles():
    # Sum of three boxes: careful work finds .9 instead of .3, so it is worth .4 · .6 / 3 = .08.
    process = needle_pool()
    solution = solve(process)
    call = process.find(1, (2, 0, 0))
    np.testing.assert_allclose(solution.advantage[call, :2], [-0.12, 0.08])
    # Opening one more brings (.4 · .3 + .6 · .9) / 3 = .22 for .05.
    opened = np.diff(solution.action_value[0])
    np.testing.assert_allclose(opened, 0.22 - 0.05)
    # All of two: the second call is worth nothing once the first has failed.
    process = needle_pool(needed="all")
    solution = solve(process)
    assert not solution.advantage[process.find(2, (2, 1, 0))].any()
    np.testing.assert_allclose(solution.advantage[process.find(2, (2, 1, 1)), :2], [-0.36, 0.24])


def test_the_best_planner_switches_once():
    process = two_level(segments=4, pulls=1)
    solution = solve(process)

    def gain(turn, segment, machine):
        row = solution.advantage[process.find(turn, (segment, 0, machine))]
        return row[1] - row[0]

    for turn, segment in ((0, 0), (2, 1)):
        assert gain(turn, segment, 0) < 0 < gain(turn, segment, 1)
    for turn, segment in ((4, 2), (6, 3)):
        assert gain(turn, segment, 1) < 0 < gain(turn, segment, 0)


@pytest.mark.parametrize("needed", ["sum", "all", "any"])
def test_needles_are_worth_the_sum_over_all_that_may_be_found(needed):
    """Written from the rules of the game: careless work finds .3, careful work .9, p = .6."""
    process, skill = needle_pool(needed=needed), (0.3, 0.9)
    solution = solve(process)

    def won(count, found):
        share = {"sum": found / 3, "all": found == count, "any": found > 0}[needed]
        return share - 0.05 * count

    def expected(count, call, found):
        total = 0.0
        for work in product((0, 1), repeat=count - call):
            for finds in product((0, 1), repeat=count - call):
                chance = np.prod([0.6 if careful else 0.4 for careful in work])
                chance *= np.prod([skill[w] if f else 1 - skill[w]
                                   for w, f in zip(work, finds, strict=True)])  # fmt: skip
                total += chance * won(count, found + sum(finds))
        return total

    for number, (count, call, found) in enumerate(process.states):
        if count == 0:
            each = [expected(k, 0, 0) for k in (1, 2, 3)]
            value = np.dot((0.2, 0.3, 0.5), each)
        elif call == count:
            each, value = [won(count, found)] * 2, won(count, found)
        else:
            ahead = [expected(count, call + 1, found + f) for f in (0, 1)]
            each = [(1 - finds) * ahead[0] + finds * ahead[1] for finds in skill]
            value = expected(count, call, found)
        assert solution.value[number] == pytest.approx(value)
        gained = solution.advantage[number, : len(each)]
        np.testing.assert_allclose(gained, np.array(each) - value, atol=1e-12)


@pytest.mark.parametrize("segments", [4, 5])
def test_two_levels_are_worth_the_sum_over_all_switches(segments):
    process = two_level(segments=segments, pulls=2)
    solution = solve(process)

    def arm(segment, machine):
        """What the right arm pays on average; the wrong one pays half of it."""
        return 0.9 if machine == (2 * segment >= segments) else 0.1

    def expected(segment, machine):
        total = 0.0
        for switches in product((0, 1), repeat=segments - segment):
            machines = (machine + np.cumsum(switches)) % 2
            pulls = [2 * (0.6 + 0.4 / 2) * arm(segment + k, m) for k, m in enumerate(machines)]
            total += np.prod([0.4 if s else 0.6 for s in switches]) * sum(pulls)
        return total

    for number, (segment, pull, machine) in enumerate(process.states):
        right = arm(segment, machine)
        if pull == 0:
            value = expected(segment, machine)
            assert solution.value[number] == pytest.approx(value)
            here, there = (
                2 * 0.8 * arm(segment, m) + expected(segment + 1, m) - value
                for m in (machine, 1 - machine)
            )
            gain = here, there
        else:
            gain = right / 2 - 0.8 * right, right - 0.8 * right
        np.testing.assert_allclose(solution.advantage[number], gain, atol=1e-12)


def test_owners_have_roles_of_their_own():
    process = bifurcations(all_good, owner=lambda turn: ("even", "odd")[turn % 2])
    assert process.agents == process.roles == ("even", "odd")
    assert process.agent.tolist() == (process.turn % 2).tolist()
