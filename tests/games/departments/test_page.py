"""docs/departments.md says what the game does."""

import importlib.util
import re
from pathlib import Path

from marl_llm.games.departments.game import STEPS, Departments
from marl_llm.games.departments.world import LEVELS
from marl_llm.games.tools.process import Limits

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "departments.md").read_text(encoding="utf-8")


def script():
    path = ROOT / "benchmarks" / "departments.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_departments", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_an_episode():
    made = script()
    (shown,) = re.findall(r"^```text\n(.*?)\n^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown == made.example(*made.EXAMPLE)
    assert "Level {}, seed {}".format(*made.EXAMPLE) in PAGE


def test_the_table_has_the_rows_that_the_script_prints():
    shown = re.findall(r"^\| (\d) \| (solver|hasty|random) \| ([\d.]+)%", PAGE, re.MULTILINE)
    printed = [re.match(r"\| (\d) \| (\w+)", line) for line in script().table(2)]
    assert [row[:2] for row in shown] == [row.groups() for row in printed if row]
    assert {row[2] for row in shown if row[1] == "solver"} == {"100.0"}


def test_levels_and_limits_are_those_of_the_code():
    for level, size in LEVELS.items():
        needed = max(1, level - 1)
        assert f"| {level} | {len(size.departments)}, {needed} | {size.workers} |" in PAGE
        assert Departments(level=level).size.rows == 20 and "at most 20 rows" in PAGE
    limits = Limits()
    for words in (
        f"{limits.wall:g} s a call", f"({limits.cpu} s)", f"({limits.memory} MiB)",
        f"open files ({limits.files})", f"({limits.output:,} characters)", f"{STEPS:,} steps",
    ):  # fmt: skip
        assert words in PAGE.replace("\n", " "), words
