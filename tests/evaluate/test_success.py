"""Success on held-out tasks: counted by the first agent's win, the same tasks every time."""

import pytest

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Uniform
from marl_llm.errors import EpisodeError
from marl_llm.evaluate import success as success_module
from marl_llm.evaluate.success import held_out_success
from marl_llm.games.departments.game import Departments
from marl_llm.games.faults import Faults
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


def test_what_calls_were_good_for_is_asked_of_the_game():
    best = success("solver", "solver")
    assert best.useful == best.preserved == 1.0  # every link is needed, and the next one is asked
    poor = success("solver", "random")
    assert poor.preserved == 1.0, "the planner goes where it was told to go, true or not"
    assert poor.useful < 0.3
    lost = success("hasty", "solver")
    assert lost.useful < lost.preserved < 1.0


def test_a_game_that_cannot_say_it_has_no_such_share():
    def make():
        return Departments(level=1)

    lineup = {"planner": "solver", "clerk": "solver"}
    found = held_out_success(
        "departments", make, lineup, SEATS, {}, episodes=2, seed=0, greedy=False
    )
    assert found.calls > 0 and found.useful is None and found.preserved is None


def test_more_calls_than_can_be_enumerated_are_not_valued(monkeypatch):
    """Chains of one to three links, so 1 call is valued and 2 or 3 are not."""
    monkeypatch.setattr(success_module, "MOST_VALUED", 1)
    valued = []
    monkeypatch.setattr(
        RelayChain, "call_values", lambda game: valued.append(len(game.all_calls()) - 1) or {}
    )
    found = success("solver", "solver")
    assert found.calls > 1.5 and set(valued) == {1} and found.useful is None


def test_the_same_seed_is_the_same_tasks():
    assert success("hasty", "hasty") == success("hasty", "hasty")
    assert success("hasty", "hasty", seed=4) != success("hasty", "hasty")


def test_nobody_called_is_no_share():
    found = held_out_success(
        "relay", lambda: RelayChain(solo=True), ["solver"], SEATS, {},
        episodes=10, seed=0, greedy=False,
    )  # fmt: skip
    assert (found.success.value, found.calls, found.reports_right) == pytest.approx((1.0, 0, 0))
    assert found.useful is None and found.preserved is None


def faulty(rate, **more):
    return held_out_success(
        "relay", lambda: RelayChain(faults=Faults(timeout=rate)), ["solver"] * 5, SEATS, {},
        episodes=60, seed=3, greedy=False, **more,
    )  # fmt: skip


def test_a_tool_that_fails_is_no_failure_of_the_team():
    found = faulty(0.1, retries=9)
    assert (found.episodes, found.success.value) == (60, 1.0)
    once = faulty(0.3, retries=0)
    assert once.episodes < 60 and once.success.value == 1.0, "void episodes are left out"
    with pytest.raises(EpisodeError, match="0 could be played in 3 attempts: attempt 2: the get"):
        faulty(1.0, retries=2)
