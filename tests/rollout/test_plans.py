from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.rollout.plans import balanced

TWO = {"kuhn": ["player_0", "player_1"]}


def test_a_group_shares_game_and_seed_and_ids_are_unique_over_updates():
    plans = [p for u in range(3) for p in balanced(7, u, 8, 4, TWO, [("self",)])]
    assert len({p.id for p in plans}) == 24
    by_group = {}
    for plan in plans:
        by_group.setdefault(plan.group, set()).add(
            (plan.game, plan.seed, tuple(plan.players.items()))
        )
    assert len(by_group) == 6
    assert all(len(starts) == 1 for starts in by_group.values())
    assert len({start for starts in by_group.values() for start in starts}) == 6


def test_self_play_fills_every_seat():
    (plan,) = balanced(0, 0, 1, 1, {"kuhn_3p": ["a", "b", "c"]}, [("self",)])
    assert plan.players == {"a": "self", "b": "self", "c": "self"}


@given(st.integers(1, 5), st.integers(2, 4))
def test_every_player_of_a_lineup_has_every_seat_equally_often(rotations, seats):
    agents = [f"player_{i}" for i in range(seats)]
    lineup = [f"who_{i}" for i in range(seats)]
    plans = balanced(0, 0, rotations * seats, 1, {"g": agents}, [lineup])
    count = Counter((agent, who) for plan in plans for agent, who in plan.players.items())
    assert set(count.values()) == {rotations}
    assert len(count) == seats * seats


def test_games_get_equally_many_groups():
    games = {name: ["player_0", "player_1"] for name in ("a", "b", "c")}
    assert Counter(p.game for p in balanced(0, 0, 30, 5, games, [("self",)])) == dict.fromkeys(
        "abc", 10
    )


def test_plans_repeat_by_seed_and_differ_by_seed():
    assert balanced(1, 2, 4, 1, TWO, [("self",)]) == balanced(1, 2, 4, 1, TWO, [("self",)])
    assert balanced(1, 2, 4, 1, TWO, [("self",)]) != balanced(2, 2, 4, 1, TWO, [("self",)])


def test_a_broken_group_is_refused():
    with pytest.raises(ConfigError, match="multiple"):
        balanced(0, 0, 10, 4, TWO, [("self",)])
    with pytest.raises(ConfigError, match="at least one game"):
        balanced(0, 0, 4, 4, {}, [("self",)])


TEAM = {"relay": {"planner": "planner", "executor_0": "executor", "executor_1": "executor"}}


def test_a_line_up_by_role_seats_every_agent_of_the_role_and_never_rotates():
    lineup = {"planner": "boss", "executor": "worker"}
    for plan in balanced(0, 0, 8, 2, TEAM, [lineup]):
        assert plan.players == {"planner": "boss", "executor_0": "worker", "executor_1": "worker"}


def test_a_line_up_that_leaves_a_role_out_is_refused():
    with pytest.raises(ConfigError, match="executor"):
        balanced(0, 0, 2, 1, TEAM, [{"planner": "boss"}])
