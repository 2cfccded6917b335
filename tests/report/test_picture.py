"""The headline picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from marl_llm.errors import CheckpointError
from marl_llm.report.metrics import MetricsLog
from marl_llm.report.picture import draw_headline
from marl_llm.report.summary import write_summary

CONV = "evaluate/player/nash_conv"
SCORE = "evaluate/player/score_random"


def run(run_dir: Path, key: str, values: list[float], seed: int = 0, band: float = 0.0) -> Path:
    with MetricsLog(run_dir) as log:
        for index, value in enumerate(values):
            ends = {f"{key}_low": value - band, f"{key}_high": value + band} if band else {}
            log.log(10 * index, {key: value, **ends})
    references = {"uniform play": 11 / 12} if key == CONV else {}
    summary = {"experiment": "demo", "seed": seed, "updates": 30, "seconds": 1.0}
    write_summary(run_dir, {**summary, "references": references})
    return run_dir


def coloured(path: Path) -> int:
    """Pixels that are neither white nor grey."""
    image = imread(path)[..., :3]
    return int(np.sum(np.ptp(image, axis=-1) > 0.2))


def test_picture_is_white_wide_and_has_a_curve(tmp_path: Path):
    path = draw_headline([run(tmp_path / "a", CONV, [0.9, 0.5, 0.2])], tmp_path / "doc" / "a.png")
    image = imread(path)
    assert image.shape[:2] == (672, 1280)  # 8 by 4.2 inches at 160 dots
    assert np.all(image[:4, :, :3] == 1.0)
    assert coloured(path) > 2000


def test_band_of_a_score_is_drawn(tmp_path: Path):
    plain = draw_headline([run(tmp_path / "a", SCORE, [0.5, 0.7, 0.8])], tmp_path / "a.png")
    run(tmp_path / "b", SCORE, [0.5, 0.7, 0.8], band=0.1)
    wide = draw_headline([tmp_path / "b"], tmp_path / "b.png")
    white_of_plain, white_of_wide = ((imread(p)[..., :3] == 1).all(-1).sum() for p in (plain, wide))
    assert white_of_wide < white_of_plain - 20_000


def test_several_seeds_share_a_picture(tmp_path: Path):
    runs = [run(tmp_path / str(s), CONV, [0.9, 0.5 - s / 10, 0.2 + s / 10], s) for s in range(3)]
    one = coloured(draw_headline(runs[:1], tmp_path / "one.png"))
    assert coloured(draw_headline(runs, tmp_path / "all.png")) > 2 * one


def test_run_without_evaluation_is_named(tmp_path: Path):
    run(tmp_path, "learn/player/loss", [0.1])
    with pytest.raises(CheckpointError, match="no NashConv and no score"):
        draw_headline([tmp_path], tmp_path / "a.png")


def test_runs_judged_differently_are_refused(tmp_path: Path):
    runs = [run(tmp_path / "a", CONV, [0.9]), run(tmp_path / "b", SCORE, [0.5])]
    with pytest.raises(CheckpointError, match="different metrics"):
        draw_headline(runs, tmp_path / "a.png")
