"""Success on held-out tasks: counted by the first agent's win, the same tasks every time."""

import pytest

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Uniform
from marl_llm.evaluate.success import held_out_success
from marl_llm.games.relay_chain import RelayChain

SEATS = {"solver": Solver(), "hasty": Hasty(), "random": Uniform()}


def success(planner, executor, **more):
    asked = {"episodes": 100, "seed": 3, "greedy": False, **more}
    lineup = {"planner": planner, "executor": executor}
    return held_out_success("relay", RelayChain, lineup, SEATS, {}, **asked)


def test_the_solver_succeeds_with_as_many_calls_as_links():
    found = success("solver", "solver")
    assert found.success.value == 1.0
    assert found.reports_right == 1.0
    assert found.forfeits == 0.0
    assert 1.5 < found.calls < 2.5  # chains of one to three


def test_a_good_planner_with_poor_executors_fails_and_it_shows_why():
    found = success("solver", "random")
    assert found.success.value < 0.3
    assert found.reports_right < 0.3


def test_the_same_seed_is_the_same_tasks():
    assert success("hasty", "hasty") == success("hasty", "hasty")
    assert success("hasty", "hasty", seed=4) != success("hasty", "hasty")


def test_nobody_called_is_no_share():
    found = held_out_success(
        "relay", lambda: RelayChain(solo=True), ["solver"], SEATS, {},
        episodes=10, seed=0, greedy=False,
    )  # fmt: skip
    assert (found.success.value, found.calls, found.reports_right) == pytest.approx((1.0, 0, 0))
