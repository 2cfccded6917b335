"""The metrics log: what is written, what a crash leaves, what a resumed run does to it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marl_llm.errors import CheckpointError, ConfigError
from marl_llm.report.metrics import QUANTITIES, MetricsLog, read, replace_text, series, shown

LOSS = "learn/player/loss"


def logged(run_dir: Path, updates: range) -> None:
    with MetricsLog(run_dir, clock=lambda: 1000.0) as log:
        for update in updates:
            log.log(update, {LOSS: update / 10})


def test_one_line_per_call_and_one_row_per_update(tmp_path: Path):
    with MetricsLog(tmp_path) as log:
        log.log(0, {LOSS: 0.5, "run/all/update_seconds": 2})
        log.log(0, {"evaluate/player/nash_conv": 0.9, LOSS: 0.25})
        log.log(1, {LOSS: 0.4})
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert read(tmp_path) == [
        {"update": 0, LOSS: 0.25, "run/all/update_seconds": 2.0, "evaluate/player/nash_conv": 0.9},
        {"update": 1, LOSS: 0.4},
    ]


def test_a_line_is_on_its_way_before_the_next(tmp_path: Path):
    log = MetricsLog(tmp_path)
    log.log(0, {LOSS: 0.5})
    assert read(tmp_path) == [{"update": 0, LOSS: 0.5}]  # the log is still open
    log.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(tmp_path: Path, value: float):
    with MetricsLog(tmp_path) as log:
        log.log(0, {LOSS: value})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"update": 0, LOSS: None}
    assert series(read(tmp_path), LOSS) == ([], [])


@pytest.mark.parametrize("key", ["loss", "learn/loss", "learn//loss", "", "a b/c/d"])
def test_key_must_have_three_parts(tmp_path: Path, key: str):
    with MetricsLog(tmp_path) as log, pytest.raises(ConfigError, match="part/role/quantity"):
        log.log(0, {key: 1.0})
    assert read(tmp_path) == []


@settings(max_examples=40, deadline=None)  # files are slow on a busy machine
@given(cut=st.integers(min_value=0))
def test_cut_anywhere_the_whole_lines_survive(tmp_path_factory, cut: int):
    run_dir = tmp_path_factory.mktemp("run")
    path = run_dir / "metrics.jsonl"
    whole = [json.dumps({"update": i, LOSS: i / 10}) + "\n" for i in range(4)]
    text = "".join(whole)
    cut %= len(text) + 1
    path.write_text(text[:cut])
    kept = text[:cut].count("\n")
    assert [row["update"] for row in read(run_dir)] == list(range(kept))
    logged(run_dir, range(kept, 5))  # the next process goes on after the last whole line
    assert [row["update"] for row in read(run_dir)] == list(range(5))


def test_damage_in_the_middle_is_named(tmp_path: Path):
    logged(tmp_path, range(3))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "oops", lines[2], ""]))
    with pytest.raises(CheckpointError, match="line 2 is not a line of metrics: 'oops'"):
        read(tmp_path)


def test_updates_never_go_back(tmp_path: Path):
    logged(tmp_path, range(5))
    with (
        MetricsLog(tmp_path) as log,
        pytest.raises(CheckpointError, match=r"update 4, got update 2"),
    ):
        log.log(2, {LOSS: 0.0})


def test_resumed_run_has_no_doubles(tmp_path: Path):
    logged(tmp_path, range(8))
    with MetricsLog(tmp_path, clock=lambda: 2000.0) as log:
        log.truncate_after(4)
        for update in range(5, 10):
            log.log(update, {LOSS: -update})
    rows = read(tmp_path)
    assert [row["update"] for row in rows] == list(range(10))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 10
    assert series(rows, LOSS)[1] == [0.0, 0.1, 0.2, 0.3, 0.4, -5, -6, -7, -8, -9]


def test_truncating_before_the_first_update_empties_the_log(tmp_path: Path):
    logged(tmp_path, range(3))
    with MetricsLog(tmp_path) as log:
        log.truncate_after(-1)
        log.log(0, {LOSS: 7.0})
    assert read(tmp_path) == [{"update": 0, LOSS: 7.0}]


def test_tensorboard_reads_the_same_numbers_resumed_ones_too(tmp_path: Path):
    logged(tmp_path, range(4))
    with MetricsLog(tmp_path, clock=lambda: 2000.0) as log:
        log.truncate_after(1)
        log.log(2, {LOSS: -2.0})
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    points = [(event.step, event.value) for event in board.Scalars(LOSS)]
    assert points == [(0, 0.0), (1, pytest.approx(0.1)), (2, -2.0)]


def test_folder_without_a_run_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"has no metrics\.jsonl"):
        read(tmp_path)


def test_whole_file_is_replaced_in_one_step(tmp_path: Path):
    path = tmp_path / "new" / "file.txt"
    replace_text(path, "one")
    replace_text(path, "two\ud800")
    assert path.read_text() == "two?"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


def test_shown_keeps_the_tables_order_and_names_roles_where_needed():
    row = {
        "update": 1,
        "learn/planner/loss": 0.1,
        "learn/worker/loss": 0.2,
        "evaluate/player/score_perfect_play": 0.4,
        "evaluate/player/score_perfect_play_low": 0.3,
        "evaluate/player/score_perfect_play_high": 0.5,
        "evaluate/player/nash_conv": 0.9,
        "credit/player/advantage_std": 1.0,
    }
    found = shown([row])
    assert [item.label for item in found] == [
        "NashConv", "score against perfect play", "loss, planner", "loss, worker"
    ]  # fmt: skip
    assert all(end in row for end in found[1].interval)


def test_units():
    by_name = {(q.part, q.name): q for q in QUANTITIES}
    assert by_name["rollout", "forfeit_share"].text(0.0125) == "1.2 %"
    assert by_name["learn", "tokens_per_second"].text(18300.4) == "18,300 tokens/s"
    assert by_name["evaluate", "nash_conv"].text(11 / 12) == "0.917"
