"""What a run writes down: counted once, forgotten when it is made again, shown once."""

import json
from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from marl_llm import config
from marl_llm.agents.plan_execute import PlanExecute
from marl_llm.evaluate.nash_conv import Measured, nash_conv
from marl_llm.evaluate.text_tree import text_tree, uniform, written_policy
from marl_llm.games import catalog
from marl_llm.journal import (
    Journal,
    Progress,
    forget_after,
    kept_games,
    measured_after,
    plan_metrics,
    record_end,
    rollout_metrics,
    score_at,
)
from marl_llm.measure import Measurement
from marl_llm.report.html import report_data
from marl_llm.report.live import LiveView, RunHeader
from marl_llm.report.metrics import MetricsLog, read
from marl_llm.report.summary import read_summary
from marl_llm.runtime import Collected, Reading
from marl_llm.settings import RunSettings
from marl_llm.trainer import Lesson
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn


def settings(*words):
    return RunSettings.of(config.compose(["experiment=kuhn_selfplay", *words]))


def turn(agent, tokens, policy="main", role="player"):
    return Turn(
        observation=Observation(agent, role, "", "", None, "k"),
        policy=policy,
        player="self",
        prompt_ids=(1,),
        ids=(2,) * tokens,
        logprobs=(-0.5,) * tokens,
        versions=((0, 0, tokens),),
        reply="",
        action="bet",
        fault=None,
        finish=Finish.STOP,
        reward=0.0,
        shaping=0.1,
    )


def episode(number, turns, outcomes, returns=(1.0, -1.0), terminated=True):
    agents = ("player_0", "player_1")
    return Episode(
        id=number,
        attempt=0,
        game="g",
        group=number,
        seed=0,
        turns=tuple(turns),
        seats=MappingProxyType(dict.fromkeys(agents, "self")),
        returns=dict(zip(agents, returns, strict=True)),
        outcomes=dict(zip(agents, outcomes, strict=True)),
        terminated=terminated,
    )


def test_shares_count_an_episode_once_and_scripted_turns_have_no_tokens():
    both = (Outcome.FORMAT, Outcome.LENGTH)  # simultaneous moves: both at fault
    fine = (Outcome.WIN, Outcome.LOSS)
    metrics = rollout_metrics(
        [
            episode(0, [turn("player_0", 3), turn("player_1", 5)], both, (-2.0, -2.0)),
            episode(1, [turn("player_0", 4), turn("player_1", 0, policy=None)], fine),
            episode(2, [turn("player_0", 4)], fine),
            episode(3, [turn("player_0", 4)], (Outcome.TRUNCATED,) * 2, (0.0, 0.0), False),
        ],
        seconds=2.0,
    )
    player = {
        key.removeprefix("rollout/player/"): value
        for key, value in metrics.items()
        if key.startswith("rollout/player/")
    }
    assert player["forfeit_share"] == 1 / 4
    assert player["forfeit_format_share"] == player["forfeit_length_share"] == 1 / 4
    assert player["forfeit_illegal_share"] == 0.0
    assert player["truncated_share"] == 1 / 4
    assert player["reply_tokens"] == (3 + 5 + 4 + 4 + 4) / 5
    assert player["tokens_per_second"] == 20 / 2.0
    assert player["game_turns"] == (2 + 2 + 1 + 1) / 4
    assert player["shaping"] == pytest.approx(0.1)
    assert metrics["rollout/player_0/return"] == (-2.0 + 1.0 + 1.0 + 0.0) / 4
    assert metrics["rollout/player_1/return"] == (-2.0 - 1.0 - 1.0 + 0.0) / 4


def test_several_roles_are_pooled_as_all():
    fine = (Outcome.WIN, Outcome.LOSS)
    turns = [turn("player_0", 1, role="planner"), turn("player_1", 1, role="executor")]
    metrics = rollout_metrics([episode(0, turns, fine)], seconds=1.0)
    assert metrics["rollout/all/reply_tokens"] == 1.0


def test_calls_are_counted_with_the_rest():
    planner = turn("planner", 1, role="planner")
    asked = replace(turn("executor_0", 1, role="executor"), parent=0)
    fine = (Outcome.WIN, Outcome.LOSS)
    metrics = rollout_metrics([episode(0, [planner, asked], fine)], seconds=1.0)
    assert metrics["rollout/planner/delegation_rate"] == metrics["rollout/planner/calls"] == 1.0
    plain = rollout_metrics([episode(0, [turn("player_0", 1)], fine)], seconds=1.0)
    assert not any(key.endswith(("/calls", "/delegation_rate")) for key in plain)


def test_a_sub_goal_is_kept_or_not_where_there_is_one():
    def said(agent, switch, fault=None):
        reply = PlanExecute().render_plan(None, "find apple", "look", switch=switch)
        return replace(turn(agent, 1), reply=reply, fault=fault, action=None if fault else "look")

    fine = (Outcome.WIN, Outcome.LOSS)
    turns = [
        said("player_0", True),  # the first turn of each has nothing to keep
        said("player_1", False),
        said("player_0", False),
        said("player_0", True),
        said("player_1", False),
        said("player_1", False, fault=Outcome.FORMAT),
        replace(said("player_1", False), player="random"),  # no seat with sub-goals
    ]
    played = [episode(0, turns, fine)]
    assert plan_metrics(played, {"self": PlanExecute()}) == {"rollout/player/keep_share": 2 / 3}
    assert plan_metrics(played, {}) == {}
    assert plan_metrics([episode(0, turns[:2], fine)], {"self": PlanExecute()}) == {}


def test_the_summary_has_the_alarms_that_hold(tmp_path):
    with LiveView(RunHeader("e", tmp_path, 0, 1)) as view:
        journal = Journal(settings("updates=1"), tmp_path, view, {}, Progress())
        journal.summarise(0, "running")
        assert read_summary(tmp_path)["alarms"] == []
        with MetricsLog(tmp_path) as log:
            for update in range(1, 11):
                log.log(update, {"rollout/player/forfeit_share": 0.75})
        journal.summarise(10, "running")
        journal.close()
    assert read_summary(tmp_path)["alarms"] == [
        {"name": "forfeits", "says": "75.0 % of the episodes have a forfeit", "since": 10}
    ]


def test_policies_are_measured_every_so_often_and_at_the_end():
    run = settings("updates=5", "evaluation.every=2")
    assert [update for update in range(1, 6) if measured_after(run, update)] == [2, 4, 5]


def test_what_will_be_made_again_is_forgotten(tmp_path):
    for folder, ending in (("episodes", "jsonl"), ("policies", "json")):
        (tmp_path / folder).mkdir()
        for update in (0, 2, 4):
            (tmp_path / folder / f"update_{update:06d}.{ending}").write_text("")
    forget_after(tmp_path, 2)
    for folder in ("episodes", "policies"):
        assert sorted(p.stem[-1] for p in (tmp_path / folder).iterdir()) == ["0", "2"]


def test_an_early_end_is_written_down_whenever_it_comes(tmp_path):
    run = settings("seed=3")
    record_end(run, tmp_path, "failed", "no model")
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["status"], found["error"], found["updates"]) == ("failed", "no model", 0)
    with MetricsLog(tmp_path) as log:
        log.log(7, {"learn/main/loss": 0.5})
    record_end(run, tmp_path, "stopped", "KeyboardInterrupt")
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["status"], found["updates"], found["seed"]) == ("stopped", 7, 3)


def test_kept_games_are_spread_over_the_batch():
    games = [episode(number, [], (Outcome.WIN, Outcome.LOSS)) for number in range(10)]
    assert [e.id for e in kept_games(games, 3)] == [0, 3, 6]
    assert [e.id for e in kept_games(games, 99)] == list(range(10))
    assert kept_games(games, 0) == []


def test_kept_groups_are_whole_and_of_every_game():
    """48 groups of 4; as rollouts are planned, the games take turns: game = group mod 3."""
    fine = (Outcome.WIN, Outcome.LOSS)
    games = [
        replace(episode(number, [], fine), group=number // 4, game="abc"[number // 4 % 3])
        for number in range(4 * 48)
    ]
    kept = kept_games(games, 8)
    assert Counter(e.group for e in kept) == {0: 4, 1: 4, 2: 4}  # ceil(8 / 3) episodes of each game
    assert {e.game for e in kept} == set("abc")
    spread_out = kept_games(games, 24)  # 2 groups of each game's 16: its first and its ninth
    assert sorted({e.group for e in spread_out}) == [0, 1, 2, 24, 25, 26]


def test_a_checkpoint_has_the_score_of_its_own_update_and_higher_is_better():
    rows = [{"update": 0}, {"update": 2, "evaluate/self/nash_conv": 0.5}, {"update": 3}]
    assert score_at(rows, 2) == -0.5
    assert score_at(rows, 3) is None, "the weights of update 3 have not earned what 2 was given"
    assert score_at([{"update": 2, "evaluate/self/score_random": 0.7}], 2) == 0.7
    assert score_at([{"update": 2, "evaluate/self/nash_conv": None}], 2) is None
    assert score_at(rows[:1], 0) is None


def test_every_solved_game_keeps_its_policies(tmp_path):
    games = ("kuhn", "matching_pennies")
    trees = {game: text_tree(catalog.build(game)) for game in games}
    played = {game: written_policy(tree, uniform) for game, tree in trees.items()}
    found = {game: Measured(played[game], nash_conv(played[game], trees[game])) for game in games}
    run = settings("updates=1")
    with LiveView(RunHeader("e", tmp_path, 0, 1)) as view:
        journal = Journal(run, tmp_path, view, {}, Progress())
        for update in (0, 1):
            journal.measured(update, Measurement({}, found))
        journal.close()
    drawn = report_data(tmp_path, read(tmp_path), {})["policies"]
    expected = [("kuhn", 12), ("matching_pennies", 2)]  # states: 3 cards · 4 histories; one each
    assert [(t["game"], t["update"], t["total"]) for t in drawn] == [
        (game, update, states) for game, states in expected for update in (0, 1)
    ]


def test_how_busy_each_server_was_is_written_down_by_policy(tmp_path):
    games = [episode(0, [turn("player_0", 3)], (Outcome.WIN, Outcome.LOSS))]
    run = settings("updates=5", "evaluation.every=5")
    lesson = Lesson("main", {"learn/version": 1.0, "store/waiting": 8.0}, np.zeros(3), (0,))
    with LiveView(RunHeader("e", tmp_path, 0, 5)) as view:
        journal = Journal(run, tmp_path, view, {}, Progress())
        journal.learned(1, Collected(0, games, 2.0, {"main": 0.7, "other": 0.2}), {"main": lesson})
        journal.close()
    (row,) = read(tmp_path)
    assert (row["serve/main/busy_share"], row["serve/other/busy_share"]) == (0.7, 0.2)
    assert (row["learn/main/version"], row["store/main/waiting"]) == (1.0, 8.0)


def test_a_busy_share_is_of_the_time_between_two_readings():
    before = Reading(100.0, {"a": 5.0, "b": 9.0, "c": 1.0})
    after = Reading(104.0, {"a": 8.0, "b": 2.0, "c": 1.0})
    # a: 3 of 4 s; b was started anew and has decoded for 2 s since; c did nothing.
    assert before.busy(after) == {"a": 0.75, "b": 0.5, "c": 0.0}
