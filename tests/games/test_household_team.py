"""The household for a team: who sees what, hand-over in the hall, sub-tasks that can be checked."""

import io
import warnings
from contextlib import redirect_stdout

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Uniform
from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Pay
from marl_llm.games.household.errands import FAMILIES
from marl_llm.games.household.house import CORRIDOR, House
from marl_llm.games.household.team import HALL, TEAM_LEVELS, HouseholdTeam
from marl_llm.types import Move, Outcome

PLANNER, FIRST, SECOND = "planner", "executor_0", "executor_1"


@pytest.fixture
def game():
    """The apple lies in the bedroom's drawer and is to be in the fridge, hot; doors are shut."""
    game = HouseholdTeam(level=1)
    for seed in range(10_000):
        game.reset(seed, {"family": "heat"})
        (errand,) = game.errands
        apple, cup = (game.layout.places[place] for place in game.house.where)
        target = game.layout.places[errand.place]
        if (errand.things, apple, cup, target) == ((0,), "drawer", "counter", "fridge"):
            return game
    raise AssertionError("no such episode")


def play(game, agent, *actions):
    for action in actions:
        assert agent in game.acting(), (agent, action)
        game.act(agent, Move(action))


def to_the_end(game, player, seed=0):
    rng = np.random.default_rng(seed)
    while game.acting():
        for agent in game.acting():
            if agent in game.acting():
                game.act(agent, Move(player.act(game, agent, rng)))


def test_a_thing_goes_from_hand_to_hand_through_the_hall(game):
    play(game, PLANNER, "send bedroom: bring apple")
    play(game, FIRST, "go to drawer", "open drawer", "take apple from drawer", "report done")
    hall = game.layout.places.index(HALL)
    assert game.house.where[0] == hall  # what it carried at the end
    play(game, PLANNER, "send kitchen: heat apple")
    assert "hall table: apple" in game.observation(SECOND).text
    play(game, SECOND, f"go to {HALL}", f"take apple from {HALL}", "go to oven", "heat apple")
    play(game, SECOND, "report done")
    assert not game.done
    play(game, PLANNER, "send kitchen: place apple in fridge")
    play(game, "executor_2", f"go to {HALL}", f"take apple from {HALL}", "go to fridge")
    play(game, "executor_2", "open fridge", "put apple in fridge", "report done")
    assert game.done and game.acting() == (PLANNER,)  # who does not know it
    play(game, PLANNER, "finish")
    outcomes = game.outcomes()
    assert [outcomes[a] for a in (PLANNER, FIRST, SECOND, "executor_2")] == [Outcome.WIN] * 4
    assert game.take_rewards() == {PLANNER: 1.0, FIRST: 1.0, SECOND: 1.0, "executor_2": 1.0}
    # 1 round to send, 4 in the bedroom: found after 3. Hot after 10, placed after 17.
    assert [turns for _, turns in game.subgoals()] == [3, 10, 17]


def test_the_planner_reads_the_reports_and_nothing_else(game):
    before = game.observation(PLANNER)
    play(game, PLANNER, "send bedroom: bring apple")
    play(game, FIRST, "go to drawer", "open drawer", "take apple from drawer", "report done")
    seen = game.observation(PLANNER)
    assert seen.text == f"{before.text} bedroom: bring apple: done."
    assert "drawer" not in seen.text.replace(before.text, "")
    assert seen.brief == "heat apple fridge; bedroom: bring apple done"


def test_an_executor_sees_its_room_the_hall_and_its_sub_task(game):
    play(game, PLANNER, "send kitchen: find cup; send bedroom: find apple")
    play(game, FIRST, "go to counter")
    play(game, SECOND, "go to drawer")
    one, two = game.observation(FIRST), game.observation(SECOND)
    assert "Your task in the kitchen: find cup." in one.text
    assert "Seen: counter: cup; hall table: nothing." in one.text
    assert "apple" not in one.text and "bedroom" not in one.text and "drawer" not in one.text
    assert "Your task in the bedroom: find apple." in two.text
    assert "cup" not in two.text and "counter" not in two.text
    assert "heat" not in two.text  # of the whole task it knows nothing
    assert game.observation("executor_5").text == "You have not been called."


def test_executors_in_different_rooms_work_at_the_same_time(game):
    play(game, PLANNER, "send kitchen: find cup; send bedroom: bring apple")
    assert game.acting() == (FIRST, SECOND)
    before = [game.observation(agent) for agent in (FIRST, SECOND)]
    play(game, SECOND, "go to drawer")
    # The other one's move is pending: everything is as it was.
    assert [game.observation(agent) for agent in (FIRST, SECOND)] == before
    play(game, FIRST, "go to counter")
    assert [game.observation(agent) for agent in (FIRST, SECOND)] != before
    play(game, FIRST, "report done")
    play(game, SECOND, "open drawer")
    assert game.acting() == (SECOND,)
    play(game, SECOND, "take apple from drawer", "report done")
    # In the order of the calls, though the second was longer at it.
    assert game.observation(PLANNER).text.endswith(
        "kitchen: find cup: done. bedroom: bring apple: done."
    )


@pytest.mark.parametrize(
    "action",
    [
        "send kitchen: find cup; send kitchen: find apple",  # two in one room
        "send cellar: find cup",
        "send kitchen: find spoon",  # not a thing of this level
        "send kitchen: eat cup",
        "send kitchen: find cup in fridge",
        "send kitchen: place cup",
        "send kitchen: place cup in cellar",
        "send kitchen:find cup",
        "send kitchen: find cup;",
        "ask kitchen: find cup",
        "go to fridge",
        "report done",
        "",
    ],
)
def test_what_is_no_order_is_illegal_and_ends_the_planners_call(game, action):
    assert not game.accepts(PLANNER, action)
    play(game, PLANNER, action)
    assert game.outcomes()[PLANNER] is Outcome.ILLEGAL
    assert game.take_rewards() == {}


def test_an_executor_does_not_leave_its_room(game):
    play(game, PLANNER, "send bedroom: find cup")
    for action in ("go to kitchen", "go to fridge", "finish", "send kitchen: find cup"):
        assert not game.accepts(FIRST, action)
    assert game.accepts(FIRST, f"go to {HALL}")


def test_two_hands_for_one_thing_in_the_hall(game):
    play(game, PLANNER, "send bedroom: bring apple")
    play(game, FIRST, "go to drawer", "open drawer", "take apple from drawer", "report done")
    play(game, PLANNER, "send kitchen: find apple; send bedroom: find apple")
    play(game, SECOND, f"go to {HALL}")
    play(game, "executor_2", f"go to {HALL}")
    for agent in (SECOND, "executor_2"):
        assert game.accepts(agent, f"take apple from {HALL}")
        play(game, agent, f"take apple from {HALL}")
    # Both reached for it in the same round; the first one has it, the other has lost a turn.
    assert "In your hand: apple." in game.observation(SECOND).text
    assert "In your hand: nothing." in game.observation("executor_2").text
    assert game.call_of("executor_2").turns == 2


@pytest.mark.parametrize(
    ("order", "actions", "report", "right"),
    [
        ("bedroom: find apple", ["go to drawer", "open drawer"], "done", True),
        ("bedroom: find apple", ["go to drawer"], "done", False),  # it has not looked
        ("bedroom: find apple", ["go to drawer"], "failed", False),  # it is there
        ("kitchen: find apple", [], "failed", True),
        ("kitchen: find apple", [], "done", False),
        ("bedroom: bring apple", ["go to drawer", "open drawer", "take apple from drawer"], "done",
         True),
        ("bedroom: bring cup", [], "failed", True),
        ("bedroom: heat apple", [], "failed", True),  # there is no oven
        ("kitchen: heat cup", ["go to counter", "take cup from counter", "go to oven", "heat cup"],
         "done", True),
        ("kitchen: cool cup", ["go to counter", "take cup from counter", "go to oven", "heat cup"],
         "done", False),
        ("kitchen: light cup", ["go to counter", "take cup from counter", "go to table",
         "use lamp"], "done", True),
        ("kitchen: place cup in sink", ["go to counter", "take cup from counter", "go to sink",
         "put cup in sink"], "done", True),
        ("kitchen: place cup in bed", [], "failed", True),  # the bed is elsewhere
        ("kitchen: place cup in counter", [], "done", True),  # there it lies
    ],
)  # fmt: skip
def test_a_report_is_right_if_it_is_true(game, order, actions, report, right):
    play(game, PLANNER, f"send {order}")
    play(game, FIRST, *actions, f"report {report}")
    play(game, PLANNER, "finish")
    assert game.outcomes()[FIRST] is (Outcome.WIN if right else Outcome.LOSS)
    pay = Pay()
    assert game.take_rewards()[FIRST] == pytest.approx(pay.sub_format + pay.sub_own * right)


def test_who_runs_out_of_turns_leaves_its_load_in_the_hall(game):
    play(game, PLANNER, "send bedroom: bring apple")
    play(game, FIRST, "go to drawer", "open drawer", "take apple from drawer")
    play(game, FIRST, *["go to bed", "go to drawer"] * 3, "go to bed")
    assert game.acting() == (PLANNER,)
    assert game.observation(PLANNER).text.endswith("bedroom: bring apple: no report.")
    assert game.layout.room_of[game.house.where[0]] == CORRIDOR


@pytest.mark.parametrize("level", TEAM_LEVELS)
@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_the_solver_wins_with_reports_that_are_right(level, family):
    game = HouseholdTeam(level=level)
    together = 0
    for seed in range(10):
        game.reset(seed, {"family": family})
        to_the_end(game, Solver(), seed)
        called = [call for call in game.all_calls() if call.caller is not None]
        together += len({call.turn for call in called}) < len(called)
        outcomes = game.outcomes()
        assert outcomes[PLANNER] is Outcome.WIN
        assert {outcomes[call.agent] for call in called} == {Outcome.WIN}
        assert None not in [turn for _, turn in game.subgoals()]
    if level >= 3 and family is None:
        assert together > 0  # it sends several at once


@pytest.mark.parametrize("player", [Uniform(), Hasty(), Hasty(hasty=0.1)])
@pytest.mark.parametrize("level", [1, 4])
def test_players_without_a_model_only_do_what_is_allowed(player, level):
    game = HouseholdTeam(level=level)
    for seed in range(15):
        game.reset(seed)
        to_the_end(game, player, seed)
        assert Outcome.ILLEGAL not in game.outcomes().values()


def test_a_planner_without_executors_can_only_finish():
    game = HouseholdTeam(level=1, calls=1)
    game.reset(0)
    play(game, PLANNER, "send kitchen: find cup")
    play(game, FIRST, "report failed")
    assert not game.accepts(PLANNER, "send kitchen: find cup")
    assert Solver().act(game, PLANNER, np.random.default_rng(0)) == "finish"
    assert game.sample(PLANNER, np.random.default_rng(0)) == "finish"


def transcript(game, seed):
    game.reset(seed)
    rng, seen = np.random.default_rng(seed), []
    while game.acting():
        agent = game.acting()[0]
        seen.append((game.observation(agent), action := game.sample(agent, rng)))
        game.act(agent, Move(action))
    return seen, game.outcomes()


def test_equal_seeds_are_equal_episodes_and_a_game_forgets_the_last_one():
    game, fresh = HouseholdTeam(level=3), HouseholdTeam(level=3)
    first = transcript(game, 3)
    transcript(game, 4)
    assert transcript(game, 3) == first == transcript(fresh, 3)
    assert transcript(fresh, 4) != first


def test_an_episode_goes_on_from_a_snapshot(game):
    play(game, PLANNER, "send kitchen: find cup; send bedroom: bring apple")
    play(game, FIRST, "go to counter")  # ... and the second's move of this round is missing
    saved = game.snapshot()
    again = HouseholdTeam(level=1)
    again.restore(saved)
    for one in (game, again):
        to_the_end(one, Solver())
    assert again.outcomes() == game.outcomes() and again.subgoals() == game.subgoals()
    assert [call.report for call in again.all_calls()] == [c.report for c in game.all_calls()]


def test_looking_changes_nothing():
    game, watched = HouseholdTeam(level=2), HouseholdTeam(level=2)
    for seed in range(5):
        plain, outcomes = transcript(game, seed)
        watched.reset(seed)
        for seen, action in plain:
            for agent in watched.possible_agents:
                assert watched.observation(agent) == watched.observation(agent)
            assert watched.observation(seen.agent) == seen
            watched.act(seen.agent, Move(action))
        assert watched.outcomes() == outcomes


def test_equal_keys_show_equal_texts():
    game, shown = HouseholdTeam(level=1), {}
    for seed in range(60):
        for seen, _ in transcript(game, seed)[0]:
            known = shown.setdefault((seen.role, seen.key), (seen.text, seen.brief))
            assert known == (seen.text, seen.brief)
    assert len(set(shown.values())) == len(shown)


def test_the_list_of_commands_can_be_left_out():
    game, bare = HouseholdTeam(level=1), HouseholdTeam(level=1, list_legal=False)
    for one in (game, bare):
        one.reset(0)
        play(one, PLANNER, "send kitchen: find cup")
    full, short = game.observation(FIRST), bare.observation(FIRST)
    assert full.text.startswith(f"{short.text}\nCommands: go to counter, ")
    assert (full.key, full.brief) == (short.key, short.brief)


def test_the_instructions_name_what_there_is():
    game = HouseholdTeam(level=5)
    for role in ("planner", "executor"):
        told = game.instructions(role)
        for name in (*game.layout.rooms, *game.layout.places, *game.layout.things):
            assert name in told
    assert isinstance(game.read(game_root(game), "send kitchen: find cup"), Ask)


def game_root(game):
    game.reset(0)
    return game.call_of(PLANNER)


def test_pettingzoo():
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        api_test(HouseholdTeam())
        seed_test(HouseholdTeam)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(GameError, match="level of household_team"):
        HouseholdTeam(level=0)
    with pytest.raises(GameError, match="executor"):
        HouseholdTeam(calls=0)


def test_a_body_in_one_room_knows_only_the_hall_at_first():
    layout = TEAM_LEVELS[2].layout(corridor=HALL)
    house = House(layout, [0] * len(layout.things), [0] * len(layout.things))
    body = house.enter(1, leaves=False)
    assert [layout.places[n] for n, seen in enumerate(body.seen) if seen] == [HALL]
    assert not any(name.startswith("go to kitchen") for name in house.possible(body))
