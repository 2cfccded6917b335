"""`marl-llm credit`: what it writes, and what it says to words it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from marl_llm.cli import main
from marl_llm.commands.credit import VERBS
from marl_llm.commands.credit_bench import GAMES
from marl_llm.credit.truth import TRUTHS
from marl_llm.evaluate.estimators.measures import MEASURES

PAGE = (Path(__file__).parents[1] / "docs" / "credit_bench.md").read_text(encoding="utf-8")
SMALL = ("groups=6", "size=4")


def test_bench_writes_a_table_figures_and_a_picture(tmp_path, capsys):
    file, picture = tmp_path / "new" / "bench.json", tmp_path / "bench.png"
    words = ["credit", "bench", "--json", str(file), f"--picture={picture}", *SMALL]
    assert main([*words, "estimators=grpo,shapley", "truths=and,kuhn", "judge=0.9", "seed=3"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in ("oracle", "random", "grpo", "shapley"))
    result = json.loads(file.read_text())
    assert list(result["truths"]) == ["and", "kuhn"]
    assert result["settings"]["seed"] == 3 and result["settings"]["noise"]["judge"] == 0.9
    assert "measures" in result["cells"]["grpo"]["kuhn"]
    assert "shapley_value" in result["cells"]["shapley"]["kuhn"]["refused"]
    assert picture.stat().st_size > 10_000


def test_help_names_every_verb(capsys):
    assert main(["credit", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"credit {verb}" in printed for verb in VERBS)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "a word is missing"),
        (["bnech"], "did you mean 'bench'"),
        (["bench", "estimators=grppo"], "did you mean 'grpo'"),
        (["bench", "truths=andd"], "did you mean 'and'"),
        (["bench", "--json"], "needs a value"),
        (["bench", "--json="], "json must be a file"),
        (["bench", "--json=."], "json must be a file, got '.'"),
        (["bench", "--picture=bench.jpg"], "picture must be a .png, got 'bench.jpg'"),
        (["bench", "--jsn=x"], "unknown option"),
        (["bench", "judge=often"], "judge must be a number"),
        (["bench", "judge=2"], "noise.judge"),
        (["bench", "size=3"], "groups of 2, 4, 6"),
    ],
)
def test_wrong_words(words, hint, capsys):
    assert main(["credit", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and hint in lines[0]


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for name in ("json", "picture"):
        target = tmp_path / "file" / "bench.png"
        assert main(["credit", "bench", f"--{name}={target}", "estimators=grpo", "truths=and"]) == 2
        out = capsys.readouterr()
        assert not out.out and "file" in out.err and len(out.err.splitlines()) == 1
    kept = tmp_path / "kept.json"
    kept.write_text("old")
    assert main(["credit", "bench", f"--json={kept}", "truths=andd"]) == 2
    assert kept.read_text() == "old"


def test_the_page_names_every_truth_and_measure_and_its_example_runs():
    named = set(re.findall(r"`(\w+)`", PAGE.split("## What an estimator is shown")[0]))
    assert {*TRUTHS, *GAMES} <= named
    table = PAGE.split("## What is measured")[1]
    assert all(re.search(rf"\b{measure}\b", table) for measure in MEASURES)
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(example, "credit_bench.md", "exec"), {})
