"""summary.json, ranges of a metric, and the before/after table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from marl_llm.errors import CheckpointError, ConfigError
from marl_llm.evaluate.statistics import wilson
from marl_llm.report.metrics import shown
from marl_llm.report.summary import (
    Estimate,
    changes,
    difference,
    duration,
    headline,
    metric_range,
    peak_memory_gb,
    read_summary,
    references,
    write_summary,
)

CONV = "evaluate/player/nash_conv"
FOUR = {"experiment": "kuhn_selfplay", "seed": 0, "updates": 30, "seconds": 12.5}


def rows_of(key: str, values: dict[int, float | None]) -> list[dict[str, float | None]]:
    return [{"update": update, key: value} for update, value in values.items()]


def test_range_of_a_metric():
    rows = rows_of(CONV, {0: 0.9, 10: 0.2, 20: None, 30: 0.2, 40: 0.3})
    rows.append({"update": 41, "learn/player/loss": 0.0})
    low = metric_range(rows, CONV)
    assert low == {"first": 0.9, "last": 0.3, "best": 0.2, "best_update": 10}
    high = metric_range(rows, CONV, better="higher")
    assert high is not None and (high["best"], high["best_update"]) == (0.9, 0)
    assert metric_range(rows, "evaluate/player/score") is None


def test_summary_comes_back(tmp_path: Path):
    rows = rows_of(CONV, {0: 0.9, 10: 0.2})
    entry = {**FOUR, "nash_conv": metric_range(rows, CONV), "mine": [1, "two", None, True]}
    path = write_summary(tmp_path, entry)
    assert path.name == "summary.json"
    assert read_summary(tmp_path) == entry
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_summary_is_plain_json_whatever_came_in(tmp_path: Path):
    write_summary(
        tmp_path,
        {**FOUR, "a": math.nan, "b": np.float32(0.5), "c": {"d": math.inf}, "e": tmp_path, 7: 1},
    )
    found = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert found["a"] is None and found["b"] == 0.5 and found["c"] == {"d": None}
    assert found["e"] == str(tmp_path) and found["7"] == 1


def test_missing_entries_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="missing: updates, seconds"):
        write_summary(tmp_path, {"experiment": "x", "seed": 0})
    assert read_summary(tmp_path) == {}


def test_damaged_summary_is_named(tmp_path: Path):
    (tmp_path / "summary.json").write_text('{"experiment": ')
    with pytest.raises(CheckpointError, match=r"summary\.json is not JSON"):
        read_summary(tmp_path)


def test_nash_conv_is_the_headline_before_any_score():
    row = {"update": 0, "evaluate/player/score_random": 0.5, "learn/player/loss": 0.1}
    first = headline([row])
    assert first is not None and first.label == "score against random"
    assert references(first, {}) == {"even": 0.5}
    judged = headline([{**row, CONV: 0.9}])
    assert judged is not None and judged.key == CONV
    assert references(judged, {"uniform play": 0.917}) == {
        "Nash equilibrium": 0.0, "uniform play": 0.917
    }  # fmt: skip
    assert headline([{"update": 0, "learn/player/loss": 0.1}]) is None


def test_before_and_after():
    score = "evaluate/player/score_random"
    rows = [
        {"update": 0, CONV: 0.5, "rollout/player/forfeit_share": 0.01, "learn/player/loss": 0.2},
        {"update": 1, CONV: 0.6, score: 0.5, f"{score}_low": 0.4, f"{score}_high": 0.6},
        {"update": 2, "rollout/player/reply_tokens": 5.0, score: 0.75, "learn/player/loss": 0.1},
        {"update": 3, "rollout/player/forfeit_share": 0.0104, "rollout/player/reply_tokens": 9.0},
    ]
    table = {
        change.label: (change.before, change.after, change.verdict, change.at)
        for change in changes(rows)
    }
    assert table == {
        "NashConv": ("0.500", "0.600", "worse", 1),
        "score against random": ("0.500 [0.400, 0.600]", "0.750", "higher", 2),
        "forfeits": ("1.0 %", "1.0 %", "same", None),  # as it is shown
        "reply length": ("5.0 tokens", "9.0 tokens", "", None),
    }  # no sample is judged without two intervals; the loss says how, not how well


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        # Half-widths .1 and .1: a difference is one from √(.1² + .1²) = .1414 on.
        ((0.5, 0.4, 0.6), (0.6, 0.5, 0.7), "no difference seen"),
        ((0.5, 0.4, 0.6), (0.64, 0.54, 0.74), "no difference seen"),
        ((0.5, 0.4, 0.6), (0.65, 0.55, 0.75), "better"),  # although the intervals overlap
        ((0.65, 0.55, 0.75), (0.5, 0.4, 0.6), "worse"),
        ((0.5, 0.4, 0.6), (0.5, 0.4, 0.6), "no difference seen"),  # which is not "the same"
        # √(.09² + .04²) = .0985: what counts is how far they reach towards each other.
        ((0.9, 0.8, 0.94), (1.0, 0.91, 1.0), "better"),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "no difference seen"),
    ],
)
def test_intervals_decide_whether_a_score_got_better(before, after, verdict):
    key = "evaluate/player/score_random"
    names = (key, f"{key}_low", f"{key}_high")
    rows = [
        {"update": update, **dict(zip(names, values, strict=True))}
        for update, values in enumerate((before, after))
    ]
    assert [change.verdict for change in changes(rows)] == [verdict]


def test_difference_worked():
    # d = .75 - .5; down √(.03² + .04²) = .05, up √(.12² + .05²) = .13
    found = difference(Estimate(0.5, 0.45, 0.54), Estimate(0.75, 0.72, 0.87))
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.2, 0.38))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_of_equal_shares_about_one_pair_in_twenty_is_told_apart(share):
    # Exact: summed over both binomials of n = 40, not a simulation.
    n = 40
    chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    found = [wilson(k / n, n) for k in range(n + 1)]
    shares = [Estimate(each.value, each.low, each.high) for each in found]
    apart = sum(
        p * q
        for p, first in zip(chances, shares, strict=True)
        for q, second in zip(chances, shares, strict=True)
        if not difference(first, second).low <= 0 <= difference(first, second).high
    )
    assert 0.02 < apart < 0.06


def test_a_value_measured_once_is_no_change():
    rows = rows_of(CONV, {0: 0.9, 10: None})
    assert changes(rows) == [] and shown(rows) != []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (172.4, "2:52"), (7389, "2:03:09")]
)
def test_duration(seconds: float, text: str):
    assert duration(seconds) == text


def test_peak_memory_counts_what_was_held():
    before = peak_memory_gb()
    held = np.ones(int(0.3e9 / 8))  # 0.3 GB, touched
    after = peak_memory_gb()
    assert 0.01 < before <= after < 64
    assert after >= held.nbytes / 1e9
