"""Short lists: who is on them, in which order, and why."""

from __future__ import annotations

import itertools
import json

import pytest

from marl_llm import config
from marl_llm.errors import ConfigError
from marl_llm.evaluate.estimators.choice import BASELINE, MOST, RULES, Bench, Situation, advise

NOTHING = Situation(
    restorable=False, repeating=False, gold=False, judge=0.0, agents=False, turnover=False
)


def having(**settings):
    fields = ("restorable", "repeating", "gold", "judge", "agents", "turnover")
    return Situation(**{name: getattr(NOTHING, name) for name in fields} | settings)


def names(situation, bench=None):
    return [each.name for each in advise(situation, bench)]


def cell(pairs, rollouts=0.0):
    measures = {name: {"value": pairs, "low": 0, "high": 1} for name in ("pairs", "leak")}
    return {"measures": {**measures, "cosine": None}, "cost": {"rollouts": rollouts}}


@pytest.fixture
def bench(tmp_path):
    """Figures in which the second of two is the better one, and which know nothing of a third."""
    cells = {
        "graft_values": {"and": cell(0.6), "unique": cell(0.5)},
        "rtmc": {"and": cell(0.9), "unique": {"refused": "..."}},
        "grpo": {"and": cell(0.95)},
        "vine_ppo": {"and": cell(0.8, 72.0), "team": cell(0.6, 24.0)},
    }
    result = {
        "settings": {"noise": {"judge": 0.85}},
        "truths": {"and": {}, "unique": {}, "team": {}},
        "estimators": {},
        "cells": cells,
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result))
    return Bench.read(path)


def test_all_names_are_there():
    assert {name for rule in RULES for name in rule.names} <= set(config.choices("credit"))


def test_every_situation_has_a_short_list_that_ends_with_the_baseline():
    flags = itertools.product([False, True], repeat=5)
    for (a, b, c, d, e), judge in itertools.product(flags, (0.0, 0.6, 0.9)):
        listed = names(Situation(
            restorable=a, repeating=b, gold=c, agents=d, turnover=e, judge=judge
        ))  # fmt: skip
        assert 1 < len(listed) <= MOST
        assert listed[-1] == BASELINE
        assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, "gtpo_turn"),
        ({"repeating": True}, "graft_values"),
        ({"gold": True, "repeating": True}, "trace_delta"),
        ({"turnover": True, "gold": True}, "toca_stratified_reading"),
        ({"restorable": True}, "vine_ppo"),
        ({"judge": 0.9}, "triage"),
        ({"judge": 0.6}, "stamp"),
        ({"agents": True, "restorable": False, "judge": 0.6}, "stamp"),
    ],
)
def test_who_comes_first(settings, first):
    assert names(having(**settings))[0] == first


def test_every_family_is_named_before_any_second_member():
    assert names(having(repeating=True, gold=True)) == [
        "trace_delta", "graft_values", "info_gain_reading", "rtmc", "grpo"
    ]  # fmt: skip


def test_a_weak_judge_may_not_add():
    weak, strong = names(having(judge=0.84)), names(having(judge=0.85))
    assert not {"triage", "iapo"} & set(weak)
    assert not {"stamp", "draco"} & set(strong)


def test_a_judge_says_where_to_restart():
    assert "srpo" in names(having(restorable=True, judge=0.7))
    assert "rrpo" in names(having(restorable=True))


def test_figures_rank_and_the_baseline_stays_last(bench):
    assert names(having(repeating=True), bench) == ["rtmc", "graft_values", "grpo"]


def test_who_was_not_measured_comes_behind(bench):
    listed = advise(having(repeating=True, gold=True), bench)
    assert [each.name for each in listed[:2]] == ["rtmc", "graft_values"]
    assert listed[2].figures is None


def test_figures_are_means_over_worlds_like_this_one(bench):
    assert bench.truths(having(repeating=True, agents=True)) == ["and", "team"]
    assert bench.truths(having()) == ["unique"]
    figures = bench.figures("vine_ppo", ["and", "team"])
    assert figures.measures == {"pairs": pytest.approx(0.7), "leak": pytest.approx(0.7),
                                "cosine": None}  # fmt: skip
    assert figures.cost == {"rollouts": 48.0}
    assert bench.figures("rtmc", ["unique"]) is None
    assert bench.judge == 0.85


@pytest.mark.parametrize("text", ["", "[]", '{"cells": {}}', '{"settings": 1}', "\x00"])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"other.json is no result of a bench"):
        Bench.read(path)
