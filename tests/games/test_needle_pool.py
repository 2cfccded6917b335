"""Needle pool: what is told, what a call is worth, crates, and weights down a tree of calls."""

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.credit.calls import call_chains, nested_shares
from marl_llm.credit.columns import from_episodes
from marl_llm.errors import GameError
from marl_llm.games.delegation import Pay
from marl_llm.games.needle_pool import FAINT, LEVELS, LOUD, Box, NeedlePool
from marl_llm.rollout.plans import Plan
from marl_llm.rollout.play import play
from marl_llm.types import Move, Outcome


def placed(*boxes, depth=1, **more):
    """A game with these boxes instead of those of chance."""
    game = NeedlePool(depth=depth, **more)
    game.reset(0)
    pool = Box("", inner=boxes)
    root = game.call_of("planner")
    root.task, game._pool = pool.card, pool
    every = [pool, *boxes, *(leaf for box in boxes for leaf in box.leaves())]
    game._boxes = {box.card: box for box in every}
    return game


def locked(name, weight=0, lock="a", clue=1):
    return Box(name, weight, lock, clue, "abcd"[("abcd".index(lock) + clue) % 4])


A, B, C, D = locked("A", LOUD), locked("B"), locked("C", FAINT, "d"), locked("D", FAINT, "b", 0)


def act(game, agent, action):
    game.act(agent, Move(None, action) if isinstance(action, Outcome) else Move(action))


def report(game, *keys):
    """The executors that are at work name these keys."""
    for agent, key in zip(game.acting(), keys, strict=True):
        act(game, agent, key if isinstance(key, Outcome) else f"key {key}")


def values(game):
    found = game.call_values().values()
    return [each.shapley for each in found], [each.left_out for each in found]


def test_the_planner_hears_the_boxes_and_reads_what_was_opened():
    game = placed(A, B, C, D)
    seen = game.observation("planner")
    assert seen.text == "The boxes: A loud, B silent, C faint, D faint. You can send 4 more."
    assert seen.brief == "A loud B silent C faint D faint 4"
    act(game, "planner", "open A C B")
    report(game, "b", Outcome.LENGTH, "c")
    seen = game.observation("planner")
    assert seen.text == (
        "The boxes: A loud, B silent, C faint, D faint. A open. C no report. B shut. "
        "You can send 1 more."
    )
    assert seen.brief == "A loud B silent C faint D faint 1 A open C no report B shut"


def test_an_executor_sees_its_lock_and_inspects_it():
    game = placed(A, B, C, D)
    act(game, "planner", "open C")
    assert game.observation("executor_0").text == (
        "You are to open box C. Its lock is d, its clue 1."
    )
    act(game, "executor_0", "inspect")
    seen = game.observation("executor_0")
    assert seen.text.endswith("You inspected the lock: its key is a.")  # after d comes a
    assert seen.brief == "d 1 a"
    act(game, "executor_0", "key a")
    act(game, "planner", "done")
    assert game.right_answer() == pytest.approx(1 / 5)
    assert game.outcomes()["executor_0"] is Outcome.WIN
    assert game.outcomes()["planner"] is Outcome.LOSS


def test_sum_by_hand():
    game = placed(A, B, C, D)
    act(game, "planner", "open A A B C")
    report(game, "b", "b", "b", "d")  # right, right again, right but empty, wrong
    act(game, "planner", "done")
    assert game.right_answer() == pytest.approx(0.6)
    # The two at A share its 3 of 5, neither is missed; an empty box adds nothing.
    shapley, left_out = values(game)
    assert shapley == pytest.approx([0.3, 0.3, 0, 0])
    assert left_out == pytest.approx([0, 0, 0, 0])
    paid = game.take_rewards()
    assert paid["planner"] == pytest.approx(0.1 + 0.9 * 0.6)
    assert paid["executor_2"] == pytest.approx(0.1 + 0.4 * 0.6 + 0.5)  # its key was right
    assert paid["executor_3"] == pytest.approx(0.1 + 0.4 * 0.6)


def test_product_by_hand():
    game = placed(A, B, C, reward="product")
    act(game, "planner", "open A B C C")
    report(game, "b", "b", "a", "a")
    act(game, "planner", "done")
    assert game.right_answer() == 1
    # A with one of two at C, as in the glove game.
    shapley, left_out = values(game)
    assert shapley == pytest.approx([2 / 3, 0, 1 / 6, 1 / 6])
    assert left_out == pytest.approx([1, 0, 0, 0])


def test_a_product_of_which_one_is_missing_is_worth_nothing():
    game = placed(A, C, reward="product")
    act(game, "planner", "open A C")
    report(game, "b", "b")
    act(game, "planner", "done")
    assert game.right_answer() == 0
    assert values(game) == ([0, 0], [0, 0])


def test_a_second_round_can_mend_the_first():
    game = placed(A, C)
    act(game, "planner", "open A C")
    report(game, "b", "b")
    assert game.solve(game.call_of("planner"), np.random.default_rng(0)) == "open C"
    act(game, "planner", "open C")
    report(game, "a")
    act(game, "planner", "done")
    assert game.right_answer() == 1


def crates():
    """Crate A: a loud and an empty box; crate B: a faint box."""
    boxes = [locked("A1", LOUD), locked("A2")], [locked("B1", FAINT), locked("B2")]
    crates = [Box(name, inner=tuple(inner)) for name, inner in zip("AB", boxes, strict=True)]
    return placed(*crates, depth=2, level=2)


def test_crates_by_hand():
    game = crates()
    assert game.observation("planner").text.startswith("The crates: A loud, B faint.")
    act(game, "planner", "open A B")
    assert game.observation("executor_0").brief == "A1 loud A2 silent 2"
    act(game, "executor_0", "open A1 A2")
    act(game, "executor_1", "open B1")
    report(game, "b", "b", "c")
    assert game.observation("executor_0").brief == "A1 loud A2 silent 0 A1 open A2 open"
    act(game, "executor_0", "done")
    act(game, "executor_1", "done")
    assert game.observation("planner").brief == "A loud B faint 1 A A1 A2 open B shut"
    act(game, "planner", "done")
    assert game.right_answer() == 0.75
    # The executor of A and its opener need each other; all others add nothing.
    assert list(game.call_values()) == [
        "executor_0", "opener_0", "opener_1", "executor_1", "opener_2"
    ]  # fmt: skip
    shapley, left_out = values(game)
    assert shapley == pytest.approx([0.375, 0.375, 0, 0, 0])
    assert left_out == pytest.approx([0.75, 0.75, 0, 0, 0])
    outcomes = game.outcomes()
    assert (outcomes["executor_0"], outcomes["executor_1"]) == (Outcome.WIN, Outcome.LOSS)


def test_a_crate_whose_executor_does_not_report_is_lost():
    game = crates()
    act(game, "planner", "open A")
    act(game, "executor_0", "open A1")
    report(game, "b")
    act(game, "executor_0", Outcome.FORMAT)
    assert game.observation("planner").brief == "A loud B faint 2 A no report"
    act(game, "planner", "done")
    assert game.right_answer() == 0
    assert values(game) == ([0, 0], [0, 0])


@pytest.mark.parametrize("reward", ["sum", "product"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("level", list(LEVELS))
def test_the_solver_wins_and_values_sum_to_the_answer(level, depth, reward):
    game, rng = NeedlePool(level=level, depth=depth, reward=reward), np.random.default_rng(0)
    for seed in range(20):
        for player in (Solver(), Hasty(0.2, 0.8)):
            game.reset(seed)
            while game.acting():
                agent = game.acting()[0]
                act(game, agent, player.act(game, agent, rng))
            if player.name == "solver":
                assert game.right_answer() == 1
            calls = game.all_calls()
            everything = game.worth(frozenset(range(len(calls) - 1)))
            if calls[0].report is not None:
                assert game.right_answer() == pytest.approx(everything)
            if len(calls) <= 9:
                total = sum(each.shapley for each in game.call_values().values())
                assert total == pytest.approx(everything)


@pytest.mark.parametrize("reward", ["sum", "product"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_lost_without_a_call_is_what_the_game_pays_less_without_its_report(depth, reward):
    # Told again with a fault in the place of one report, everybody else as they were.
    game, rng = NeedlePool(depth=depth, level=2, reward=reward), np.random.default_rng(0)
    lost = 0
    for seed in range(60):
        game.reset(seed)
        moves = []
        while game.acting():
            agent = game.acting()[0]
            moves.append((agent, Hasty(0.1, 0.9).act(game, agent, rng)))
            act(game, *moves[-1])
        right, values = game.right_answer(), game.call_values()
        if game.call_of("planner").report is None:
            continue
        for agent in [a for a in values if game.call_of(a).report is not None]:
            last = max(place for place, (who, _) in enumerate(moves) if who == agent)
            game.reset(seed)
            for place, (who, action) in enumerate(moves):
                act(game, who, Outcome.TIME if place == last else action)
            assert right - game.right_answer() == pytest.approx(values[agent].left_out)
            lost += right > game.right_answer()
    assert lost > 5


def test_hasty_play_is_accepted_to_the_end():
    game, rng = NeedlePool(), np.random.default_rng(0)
    for seed in range(100):
        game.reset(seed)
        while game.acting():
            agent = game.acting()[0]
            action = Hasty().act(game, agent, rng)
            assert game.accepts(agent, action)
            act(game, agent, action)


def test_weights_follow_the_tree_of_a_real_episode():
    game = NeedlePool(depth=2, level=3)
    plans = [Plan(n, n, "crates", n, dict.fromkeys(game.possible_agents, "h")) for n in range(20)]
    episodes = play(
        plans, {"crates": lambda: NeedlePool(depth=2, level=3)}, {"h": Hasty(0.1, 0.7)}, {}, seed=1
    )
    spoken = [stamped(episode) for episode in episodes]
    batch = from_episodes(spoken, "team")
    weight = nested_shares(batch, call_chains(batch))
    deepest = 0
    for episode, plan in zip(episodes, plans, strict=True):
        game.reset(plan.seed)
        for turn in episode.turns:
            act(game, turn.observation.agent, turn.action)
        for call in game.all_calls():
            rows = [
                row for row in range(len(batch))
                if batch.episode[row] == episode.id
                and batch.name("agent", batch.agent[row]) == call.agent
            ]  # fmt: skip
            share, at = 1.0, call
            while at.caller is not None:
                share, at = share / len(at.caller.calls), at.caller
            np.testing.assert_allclose(weight[rows], share)
            deepest = max(deepest, len(call.path))
    assert deepest == 2


def stamped(episode):
    """The episode as if a policy had sampled one token a turn."""
    turns = [replace(turn, policy="team", ids=(0,), logprobs=(0.0,)) for turn in episode.turns]
    return replace(episode, turns=tuple(turns))


def test_shaping_is_capped_by_a_single_needle():
    assert NeedlePool(level=3).gap() == pytest.approx(0.4 / 9)
    assert NeedlePool(level=3, reward="product").gap() == pytest.approx(0.1)
    assert NeedlePool(pay=Pay(sub_main=0.0)).gap() == pytest.approx(0.5 / 9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": 6}, "level of needle_pool is one of"),
        ({"reward": "mean"}, "reward of needle_pool"),
        ({"depth": 3}, "depth of needle_pool is 1 or 2"),
        ({"level": 5, "calls": 4}, "up to 5 needles, so calls must be at least that, got 4"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(GameError, match=words):
        NeedlePool(**settings)


@pytest.mark.parametrize(
    "action",
    ["open", "open ", "open E", "open A  B", "open A B C D A", "done now", "key a", "inspect", ""],
)
def test_what_a_planner_cannot_do(action):
    assert not placed(A, B, C, D).accepts("planner", action)


@pytest.mark.parametrize(
    "action", ["key", "key e", "key ab", "key ", "inspect it", "done", "open A"]
)
def test_what_an_executor_cannot_do(action):
    game = placed(A, B, C, D)
    act(game, "planner", "open A")
    assert not game.accepts("executor_0", action)
