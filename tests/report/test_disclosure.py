"""What a paper should say of a run: filled in where the run knows it, and honest where not."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from marl_llm.report.disclosure import (
    NOT_STATED,
    Run,
    as_html,
    checklist,
    credit_card,
    read_config,
    rule_of,
)
from marl_llm.report.episodes import RecordedEpisode
from marl_llm.types import Episode, Observation, Turn

CONFIG = {
    "seed": 3,
    "games": {"kuhn": {}, "leduc": {}},
    "held_out": {"hanabi": {}},
    "policies": {
        "main": {
            "model": {"_target_": "marl_llm.serve.sources.PretrainedModel", "name": "org/small"},
            "engine": {"device": "cuda:0"},
            "credit": {"_target_": "marl_llm.credit.grpo.GRPO", "by": ["group", "agent"]},
            "learner": {
                "loss": {"_target_": "marl_llm.learn.losses.GSPO"},
                "aggregation": {"mode": "trajectory"},
            },
            "coldstart": {"player": {"name": "win_or_block"}},
        }
    },
    "rollout": {"episodes": 64, "lineups": [["self"]]},
    "evaluation": {"games": ["kuhn", "hanabi"], "panel": {"random": {}}, "pairs": 50},
}
ROWS = [
    {"update": 1, "learn/main/tokens": 1000.0, "credit/main/seconds": 0.01,
     "rollout/player/game_turns": 4.0, "rollout/player/reply_tokens": 6.0,
     "run/all/update_seconds": 1.0, "evaluate/self/score_random": 0.5},
    {"update": 2, "learn/main/tokens": 1200.0, "credit/main/seconds": 0.03,
     "rollout/player/game_turns": 6.0, "rollout/player/reply_tokens": 8.0,
     "run/all/update_seconds": 3.0, "credit/main/groups": 16.0, "credit/main/singletons": 2.0},
]  # fmt: skip
SUMMARY = {"seed": 3, "updates": 2, "seconds": 7200.0}


def game(number, lengths):
    """An episode whose turns have so many sampled tokens."""
    turns = tuple(
        Turn(
            observation=Observation("player_0", "player", "", "", None, "k"), policy="main",
            player="self", prompt_ids=(), ids=(1,) * n, logprobs=(-1.0,) * n, versions=(),
            reply="", action="bet", fault=None, finish=None, reward=0.0, shaping=0.0,
        )
        for n in lengths
    )  # fmt: skip
    episode = Episode(number, 0, "kuhn", number, 0, turns, {}, {}, {}, terminated=True)
    return RecordedEpisode(2, episode, (), ())


@pytest.fixture
def run():
    return Run(CONFIG, ROWS, SUMMARY, [game(0, [2]), game(1, [2, 4]), game(2, [2, 2, 2])])


def said(items):
    return {item.name: item.said for item in items}


def test_fourteen_things_of_which_ten_must_be_said(run):
    items = checklist(run)
    assert len(items) == 14
    assert sum(item.must for item in items) == 10


def test_what_a_run_knows_is_filled_in(run):
    found = said(checklist(run))
    assert found["base model and version"] == "main: org/small, revision not stated"
    data = found["training data and filtering"]
    assert "own play of kuhn, leduc: 2 updates of 64 episodes, 128 in all" in data
    assert "win_or_block" in data and "no episode is left out" in data
    assert found["credit granularity"] == "one number per response (grpo)"
    assert found["methodology family"] == "monte carlo (grpo)"
    assert found["equal compute, or an explicit comparison"].startswith("this run: 2,200 tokens")
    assert found["benchmark and split"] == (
        "matches in kuhn, hanabi against random, 50 paired deals each (held out: hanabi)"
    )
    assert found["definition of the metric"].startswith("score: 1 for a win")
    assert found["GPU-hours in all"].startswith("2.00, ")
    assert found["mean length of a trajectory"].startswith(
        "5.0 turns, all agents together; 7.0 sampled tokens per turn"
    )
    # (10 + 30) / 2 ms of (1 + 3) / 2 s
    assert found["overhead of the credit rule"].startswith("20 ms of an update's 2.0 s, 1.0 %")
    assert found["distribution of trajectory lengths"].startswith(
        "turns from 1 to 3, quartiles 2, 2, 2; sampled tokens from 2 to 6"
    )


def test_what_one_run_cannot_know_is_not_stated(run):
    found = said(checklist(run))
    assert found["the credit rule ablated alone"] is None
    assert NOT_STATED in found["three seeds or more, with their variance"]
    assert NOT_STATED in found["equal compute, or an explicit comparison"]
    assert "this run is one: grpo" in found["an episode-level baseline on the same base model"]
    credit = {"_target_": "marl_llm.credit.mars.Mars"}
    finer = Run({"policies": {"main": {"credit": credit}}}, ROWS, SUMMARY, [])
    assert said(checklist(finer))["an episode-level baseline on the same base model"] is None


def hours(device, seconds):
    config = {"policies": {"main": {"engine": {"device": device}}}}
    return said(checklist(Run(config, [], {"seconds": seconds}, [])))["GPU-hours in all"]


def test_cpus_need_no_gpu_hours():
    assert hours("cpu", 7200) == "0: it ran on CPUs, 2.00 hours of training and measuring"


def test_a_short_run_does_not_take_no_time():
    assert hours("cpu", 8.3) == "0: it ran on CPUs, 8 seconds of training and measuring"
    assert hours("cuda", 9).startswith("0.0025, ")


def test_a_teacher_that_changes_another_names_that_too():
    teacher = {"_target_": "marl_llm.agents.scripted.Noisy", "player": {"name": "win_or_block"}}
    config = {"games": {"tictactoe": {}}, "policies": {"main": {"coldstart": {"player": teacher}}}}
    data = said(checklist(Run(config, [], SUMMARY, [])))["training data and filtering"]
    assert "from scripted games of Noisy over win_or_block; " in data


def test_the_six_fields_of_a_rule(run):
    (rule,) = run.rules()
    found = said(credit_card(run, rule))
    assert len(found) == 6
    assert found["unit and estimand"].endswith("compared with the group")
    assert found["effective state"].startswith("observed")
    assert "observational" in found["source of the intervention"]
    assert "line-ups [['self']]" in found["downstream protocol"]
    assert found["support and uncertainty"].startswith(
        "16 compared cells, 2 of them with one member in the last update"
    )
    assert found["use in the update"].startswith(
        "an advantage, the same for all tokens of a turn, in the loss GSPO, averaged by trajectory"
    )


def test_settings_that_are_not_written_down_are_the_usual_ones():
    rule = rule_of("main", {"_target_": "marl_llm.credit.mars.MarsByState"})
    assert rule.settings["by"] == ("state_key",)
    assert said(credit_card(Run({}, [], {}, []), rule))["effective state"].startswith("matched")


@pytest.mark.parametrize("target", ["their.rules.Rule", "marl_llm.credit.gone.Rule", "x", "", 7])
def test_a_rule_of_somebody_else_is_named_and_its_code_not_run(target):
    rule = rule_of("main", {"_target_": target})
    assert rule.card is None
    assert {item.said for item in credit_card(Run({}, [], {}, []), rule)} == {None}


ODD = (
    {}, {"policies": 3}, {"policies": 3, "games": {"kuhn": 1}}, {"policies": {"main": None}},
    {"games": 1, "evaluation": 2, "rollout": [], "runtime": "ray"},
    {"policies": {"main": {"credit": [], "model": "x", "engine": 1, "coldstart": 2}}},
)  # fmt: skip


@pytest.mark.parametrize("config", ODD)
def test_whatever_stands_in_a_configuration_there_is_a_list(config):
    items = checklist(Run(config, [], {}, []))
    assert len(items) == 14
    assert all(item.said is None or isinstance(item.said, str) for item in items)
    as_html(Run(config, [], {}, []))


def test_a_configuration_that_cannot_be_read_is_empty(tmp_path):
    path = tmp_path / "config.yaml"
    assert read_config(path) == {}
    for text in (b"\xff\xfe", b"a: [", b"- 1"):
        path.write_bytes(text)
        assert read_config(path) == {}


class Cells(HTMLParser):
    """The cells of all tables, those that may not be wrapped, and what is marked as missing."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.marks, self.missing, self._marked = [], [], {}, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if ("class", "mark") in attrs:
            self.marks.append(self.rows[-1])
        self._marked = ("class", "missing") in attrs

    def handle_endtag(self, tag):
        self._marked = False

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data
        if self._marked:
            self.missing[self.rows[-1][0]] = data


def test_the_page_has_both_lists_and_hostile_names_stay_text(run):
    hostile = "<script>alert(1)</script>"
    policies = {hostile: CONFIG["policies"]["main"]}
    text = as_html(Run({**CONFIG, "policies": policies}, ROWS, SUMMARY, []))
    assert "<script" not in text
    cells = Cells(text)
    assert len(cells.rows) == 14 + 6
    assert cells.rows[0][:2] == ["base model and version", "must"]
    assert [row[1] for row in cells.marks] == ["must"] * 10 + ["should"] * 4
    # Only what is missing is marked, not what is known beside it.
    assert set(cells.missing.values()) == {NOT_STATED}
    assert {"the credit rule ablated alone", "support and uncertainty"} <= set(cells.missing)
    assert "benchmark and split" not in cells.missing
