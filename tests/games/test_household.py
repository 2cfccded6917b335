"""The household for one agent: predicates by hand, sub-goals in order, nothing through doors."""

import io
import itertools
import re
import warnings
from contextlib import redirect_stdout

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

from marl_llm.errors import GameError
from marl_llm.games.household.errands import FAMILIES, LEVELS, Errand, Steps, SubGoal
from marl_llm.games.household.house import CLEAN, COLD, HOT, LIT, House
from marl_llm.games.household.single import Household
from marl_llm.types import Move, Outcome

ME = "player_0"
LAYOUT = LEVELS[1].layout()  # counter 0, table 1, sink 2, fridge 3, oven 4; apple 0, cup 1
COUNTER, TABLE, SINK, FRIDGE, OVEN = range(5)
APPLE, CUP = range(2)


def house(apple=COUNTER, cup=FRIDGE, state=(0, 0)):
    return House(LAYOUT, [apple, cup], list(state))


def do(house, body, *commands):
    for command in commands:
        assert command in house.possible(body), (command, house.possible(body))
        house.carry_out(body, command)


def play(game, *commands):
    for command in commands:
        game.act(ME, Move(command))


def playing(game, seed, player):
    """Each observation with the command that follows it, to the end of an episode."""
    game.reset(seed)
    rng = np.random.default_rng(seed)
    while game.acting():
        command = player(game, rng)
        yield game.observation(ME), command
        game.act(ME, Move(command))


def solve(game, rng):
    return game.solve(ME, rng)


def wander(game, rng):
    return game.sample(ME, rng)


# The six families, each with a way that is right and one that is not.


def test_place():
    errand, h = Errand("place", (APPLE,), FRIDGE), house()
    body = h.enter(0)
    do(h, body, "go to counter", "take apple from counter")
    assert not errand.done(h)
    do(h, body, "go to fridge")
    assert "put apple in fridge" not in h.possible(body)  # it is closed
    do(h, body, "open fridge", "put apple in fridge")
    assert errand.done(h) and h.inside[FRIDGE] == [APPLE, CUP]
    do(h, body, "close fridge")
    assert errand.done(h)  # ... and stays done behind a closed door
    do(h, body, "open fridge", "take apple from fridge")
    assert not errand.done(h)


def test_light():
    errand, h = Errand("light", (APPLE,)), house()
    body = h.enter(0)
    do(h, body, "go to table")
    assert "use lamp" not in h.possible(body)  # with nothing in the hand
    do(h, body, "go to counter", "take apple from counter")
    assert "use lamp" not in h.possible(body)  # there is no lamp here
    do(h, body, "go to table", "use lamp")
    assert h.state[APPLE] == LIT and errand.done(h)


@pytest.mark.parametrize(
    ("family", "place", "state"),
    [("clean", SINK, CLEAN), ("heat", OVEN, HOT), ("cool", FRIDGE, COLD)],
)
def test_treated_and_placed(family, place, state):
    errand, h = Errand(family, (APPLE,), TABLE), house()
    body = h.enter(0)
    do(h, body, "go to counter", "take apple from counter", "go to table", "put apple in table")
    assert not errand.done(h)  # it lies there, and is as it was
    do(h, body, "take apple from table", f"go to {LAYOUT.places[place]}", f"{family} apple")
    assert h.state[APPLE] == state and not errand.done(h)
    assert f"{family} apple" not in h.possible(body)  # nothing would change
    do(h, body, "go to table", "put apple in table")
    assert errand.done(h)


def test_hot_and_cold_exclude_each_other():
    h = house(state=(CLEAN, 0))
    body = h.enter(0)
    do(h, body, "go to counter", "take apple from counter", "go to oven", "heat apple")
    do(h, body, "go to fridge", "cool apple")
    assert h.state[APPLE] == CLEAN | COLD
    do(h, body, "go to oven", "heat apple")
    assert h.state[APPLE] == CLEAN | HOT


def test_two():
    errand, h = Errand("two", (APPLE, CUP), TABLE), house(cup=SINK)
    body = h.enter(0)
    do(h, body, "go to counter", "take apple from counter", "go to table", "put apple in table")
    assert not errand.done(h)
    do(h, body, "go to sink", "take cup from sink")
    assert "take apple from table" not in h.possible(body)
    do(h, body, "go to table")
    assert "take apple from table" not in h.possible(body)  # the hand is full
    do(h, body, "put cup in table")
    assert errand.done(h)


def test_sub_goals_in_order_and_when_each_was_reached():
    errand, h = Errand("heat", (APPLE,), TABLE), house()
    steps, body = Steps([errand]), h.enter(0)
    assert [step.text(LAYOUT) for step in errand.steps()] == [
        "find apple", "heat apple", "place apple",
    ]  # fmt: skip
    commands = ("go to counter", "take apple from counter", "go to table", "put apple in table",
                "take apple from table", "go to oven", "heat apple", "go to table",
                "put apple in table")  # fmt: skip
    steps.look(h, 0)
    for turn, command in enumerate(commands, 1):
        do(h, body, command)
        steps.look(h, turn)
    # Seen after turn 1; placed after 4, which does not count before it is hot; hot after 7.
    assert [reached for _, reached in steps.record()] == [1, 7, 9]


def test_a_step_that_was_done_ahead_counts_from_where_the_one_before_is_reached():
    steps, h = Steps([Errand("place", (CUP,), OVEN), Errand("light", (APPLE,))]), house()
    body = h.enter(0)
    do(h, body, "go to counter", "take apple from counter", "go to table", "use lamp")
    steps.look(h, 4)
    assert [reached for _, reached in steps.record()] == [None] * 4
    do(h, body, "put apple in table", "go to fridge", "open fridge")
    steps.look(h, 7)
    do(h, body, "take cup from fridge", "go to oven", "open oven", "put cup in oven")
    steps.look(h, 11)
    assert [reached for _, reached in steps.record()] == [7, 11, 11, 11]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_the_solver_wins_and_reaches_its_sub_goals_in_order(level, family):
    game, rng = Household(level=level), np.random.default_rng(0)
    for seed in range(20):
        game.reset(seed, {"family": family})
        said = []
        while game.acting():
            said.append(game.subgoal(ME))
            play(game, game.solve(ME, rng))
        assert game.outcomes()[ME] is Outcome.WIN
        assert game.take_rewards() == {ME: 1.0}
        record = game.subgoals()
        turns = [turn for _, turn in record]
        assert turns == sorted(turns) and turns[-1] == game.taken
        # It is after what is not reached yet: its boundaries are those of the record.
        texts = [step.text(game.layout) for step, _ in record]
        starts = [0, *turns[:-1]]
        for text, start, end in zip(texts, starts, turns, strict=True):
            assert set(said[start:end]) <= {text}
        assert family is None or {errand.family for errand in game.errands} == {family}


def test_levels_grow():
    facts = [
        (len(level.rooms), sum(map(len, level.rooms.values())), level.things, level.longest,
         level.turns)
        for level in LEVELS.values()
    ]  # fmt: skip
    assert facts == sorted(facts)
    for level, facts in LEVELS.items():
        game = Household(level=level)
        game.reset(1)
        lengths = set()
        for seed in range(200):
            game.reset(seed)
            lengths.add(len(game.errands))
            things = [thing for errand in game.errands for thing in errand.things]
            assert len(set(things)) == len(things)
        assert lengths == set(range(facts.shortest, facts.longest + 1))


@pytest.mark.parametrize("level", [1, 3])
def test_nobody_sees_through_doors_or_walls(level):
    """Outside the task a thing is named only once the receptacle that holds it was looked into."""
    game, named = Household(level=level), 0
    for seed in range(30):
        for seen, command in playing(game, seed, wander if seed % 2 else solve):
            task = "; then ".join(errand.text(game.layout) for errand in game.errands)
            text = seen.text.replace(f"Your task: {task}.", "")
            brief = re.findall(r"\w+", seen.brief.partition("; at")[2])
            for thing, name in enumerate(game.layout.things):
                place = game.house.where[thing]
                known = place < 0 or game.body.seen[place]
                assert known == (name in text) == (name in brief), text
                named += known
            assert (command in seen.legal) and command in text
    assert named > 100


def test_looking_around_shows_what_lies_in_the_open_and_no_more():
    h = house(apple=COUNTER, cup=FRIDGE)
    body = h.enter(0)
    do(h, body, "look")
    assert body.seen == [True, True, True, False, False]
    assert "look" not in h.possible(body)
    assert "cup" not in h.told(body) and "counter: apple" in h.told(body)


def test_inventory_tells_whether_what_is_carried_is_clean():
    h = house(state=(CLEAN, 0))
    body = h.enter(0)
    do(h, body, "go to counter", "take apple from counter")
    assert "In your hand: apple." in h.told(body)
    do(h, body, "inventory")
    assert "In your hand: apple (clean)." in h.told(body)
    assert "inventory" not in h.possible(body)
    assert "clean apple" not in h.possible(body)


@pytest.mark.parametrize("level", [1, 5])
def test_equal_seeds_are_equal_episodes_and_other_seeds_are_others(level):
    plays = [
        [(seen.text, command) for seen, command in playing(Household(level=level), seed, wander)]
        for seed in (3, 3, 4)
    ]
    assert plays[0] == plays[1] != plays[2]


def test_the_limit_cuts_the_episode_short_and_the_agent_is_not_told():
    game = Household(turns=3)
    game.reset(0)
    play(game, "go to sink", "go to table", "go to sink")
    assert game.outcomes() == {ME: Outcome.TRUNCATED}
    assert game.truncations[ME] and not game.terminations[ME]
    assert "left" not in game.observation(ME).text.lower()


def test_the_limit_as_a_rule_is_a_loss_that_is_announced():
    game = Household(turns=3, limit="loss")
    game.reset(0)
    assert "after 3 turns" in game.rules()
    play(game, "go to sink", "go to table")
    assert "Turns left: 1." in game.observation(ME).text
    play(game, "go to sink")
    assert game.outcomes() == {ME: Outcome.LOSS}
    assert game.terminations[ME] and not game.truncations[ME]


def test_a_price_is_paid_every_turn():
    game, rng = Household(price=0.01), np.random.default_rng(0)
    game.reset(3)
    paid = []
    while game.acting():
        play(game, game.solve(ME, rng))
        paid.append(game.take_rewards()[ME])
    assert paid[:-1] == pytest.approx([-0.01] * (len(paid) - 1))
    assert paid[-1] == pytest.approx(0.99)
    assert game.gap() == pytest.approx(0.01)  # so shaping stays below half a turn


def test_an_episode_goes_on_from_a_snapshot():
    game, rng = Household(level=3), np.random.default_rng(0)
    game.reset(5)
    for _ in range(4):
        play(game, game.solve(ME, rng))
    saved, before = game.snapshot(), game.observation(ME)
    while game.acting():
        play(game, game.solve(ME, rng))
    ended = game.subgoals()
    again = Household(level=3)
    again.restore(saved)
    assert again.observation(ME) == before
    while again.acting():
        play(again, again.solve(ME, rng))
    assert again.subgoals() == ended


@pytest.mark.parametrize("level", [1, 4])
def test_pettingzoo(level):
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        api_test(Household(level=level))
        seed_test(lambda: Household(level=level))


def test_towards_any_sub_goal_from_anywhere():
    """Also towards those that the task does not ask for, out of the mess of random play."""
    game = Household(level=3)
    verbs = ("find", "clean", "heat", "cool", "light", "place")
    for seed, (verb, thing) in enumerate(itertools.product(verbs, game.layout.things)):
        game.reset(seed)
        rng, goal = np.random.default_rng(seed), f"{verb} {thing}"
        for _ in range(15):
            play(game, game.sample(ME, rng))
        for _ in range(20):
            command = game.toward(ME, goal) if game.acting() else None
            if command is None:
                break
            assert command in game.legal(ME)
            play(game, command)
        assert not game.acting() or game.toward(ME, goal) is None


def test_what_leaves_steps_out_pursues_the_rest_and_then_stays():
    game = Household()
    game.reset(0, {"family": "heat"})
    (errand,) = game.errands
    thing = game.layout.things[errand.things[0]]
    said = []
    while (command := game.toward(ME, game.subgoal(ME, [True]))) is not None:
        said.append(game.subgoal(ME, [True]))
        play(game, command)
    assert list(dict.fromkeys(said)) == [f"find {thing}", f"place {thing}"]
    assert game.subgoal(ME, [True]) == f"place {thing}"  # though it lies there
    assert game.subgoal(ME) == f"heat {thing}"
    assert not game.done


def test_luck_hangs_on_the_episode_and_the_name():
    game = Household()
    game.reset(1)
    drawn = game.luck("a"), game.luck("b")
    play(game, game.legal(ME)[0])
    assert (game.luck("a"), game.luck("b")) == drawn
    game.reset(2)
    assert game.luck("a") != drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": 6}, "level of household"),
        ({"limit": "win"}, "'truncated' or 'loss'"),
        ({"price": -1.0}, "at least 0"),
        ({"turns": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(GameError, match=words):
        Household(**settings)


def test_names_that_are_none_are_refused():
    game = Household()
    with pytest.raises(GameError, match="did you mean 'clean'"):
        game.reset(0, {"family": "clear"})
    game.reset(0)
    with pytest.raises(GameError, match="no sub-goal of household"):
        game.toward(ME, "eat apple")


def test_a_sub_goal_is_written_as_it_is_read():
    game = Household(level=5)
    game.reset(0)
    for errand in game.errands:
        for step in errand.steps():
            assert game._read(step.text(game.layout)) == step
    assert SubGoal("find", APPLE).text(LAYOUT) == "find apple"
