"""The comparison of estimators as Markdown and as a picture, from the bench's JSON alone."""

from __future__ import annotations

import copy

import pytest
from matplotlib.image import imread

from marl_llm.report.estimators import draw, markdown, ranked


def cell(pairs, leak=0.5, cosine=-0.25, dummy=None, **cost):
    values = {"pairs": pairs, "leak": leak, "cosine": cosine, "dummy": dummy}
    measures = {
        name: None if x is None else {"value": x, "low": x - 0.1, "high": x + 0.1}
        for name, x in values.items()
    }
    costs = {"forwards": 0, "judgements": 0, "rollouts": 0} | cost
    return {"measures": measures, "cost": costs, "seconds": 0.0}


RESULT = {
    "settings": {"groups": 120, "size": 8, "seed": 3},
    "truths": {"and": {}, "team": {}},
    "estimators": {"worse": {}, "better": {}, "shy": {}, "sick": {}},
    "cells": {
        "oracle": {"and": cell(1.0, 0.0, 1.0), "team": cell(1.0, 0.0, 1.0, 0.0)},
        "worse": {"and": cell(0.6, rollouts=0.125, judgements=1.0), "team": cell(0.7, dummy=1.0)},
        "better": {"and": cell(0.9, forwards=9), "team": cell(0.8, None, dummy=0.25, forwards=9)},
        "shy": {"and": cell(0.5, cosine=-0.001), "team": {"refused": "it needs a signal"}},
        "sick": {"and": {"failed": "KeyError: 'x'"}, "team": {"failed": "KeyError: 'x'"}},
    },
}


def test_controls_first_then_by_the_share_of_right_pairs():
    assert ranked(RESULT) == ["oracle", "better", "worse", "shy", "sick"]


def test_markdown():
    lines = markdown(RESULT).splitlines()
    assert "120 groups of 8 episodes, seed 3" in lines[0]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line[:2] == "| "}
    assert rows["better"] == "| better | .90 / .50 / -.25 | .80 / – / -.25 | .25 | 9 forwards |"
    assert rows["oracle"].startswith("| oracle | 1.00 / .00 / 1.00 |")
    assert rows["worse"].endswith("| 1.00 | 1 judgement, 0.125 rollouts |")
    assert rows["shy"] == "| shy | .50 / .50 / .00 | refused | – | nothing |"
    assert rows["sick"] == "| sick | failed | failed | – | – |"
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "- shy on team: it needs a signal" in lines
    assert "- sick on and, team: KeyError: 'x'" in lines
    assert any("pairs ±0.10" in line for line in lines)


def test_the_picture_has_a_row_for_everybody(tmp_path):
    small = draw(RESULT, tmp_path / "new" / "small.png")
    more = copy.deepcopy(RESULT)
    for k in range(20):
        more["estimators"][f"e{k}"] = {}
        more["cells"][f"e{k}"] = RESULT["cells"]["worse"]
    large = draw(more, tmp_path / "large.png")
    first, second = imread(small), imread(large)
    assert second.shape[0] - first.shape[0] == pytest.approx(20 * 0.21 * 130, abs=2)
    assert first.std() > 0.05
