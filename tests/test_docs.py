"""docs/games.md shows what the games really say, and its adapters work where they can."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from marl_llm import config
from marl_llm.bench import calls
from marl_llm.cli import main
from marl_llm.commands import credit_list
from marl_llm.credit import survey
from marl_llm.games import catalog, check
from marl_llm.types import Move

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "games.md").read_text(encoding="utf-8")
SEEN = re.findall(
    r"brief `([^`]+)`[^`]*?:\n\n```text (\w+):([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)
FILES = dict(re.findall(r"^```\w+\n# my_games/(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(("brief", "name", "actions", "text"), SEEN, ids=[s[1] for s in SEEN])
def test_the_texts_are_those_of_the_games(brief, name, actions, text):
    game = catalog.build(name)
    game.reset(seed=3)
    for action in filter(None, map(str.strip, actions.split(","))):
        game.act(game.acting()[0], Move(action))
    seen = game.observation(game.acting()[0])
    assert seen.text == text.rstrip("\n")
    assert seen.brief == brief


def test_every_kind_of_game_is_shown():
    assert len(SEEN) == PAGE.count("```text") == 9
    named = set(re.findall(r"`(\w+)`", PAGE.split("## What a model sees")[0]))
    assert set(catalog.names()) <= named


def test_every_check_is_named():
    named = set(re.findall(r"`(\w+)`", PAGE.split("## The conformance suite")[1]))
    assert {each.__name__ for each in (*check.CHECKS, *check.CALL_CHECKS)} <= named


@pytest.mark.parametrize(
    ("file", "maker", "needs"),
    [("throws.py", ":throws", "pettingzoo"), ("arena.yaml", "", "textarena")],
)
def test_adapters(tmp_path, file, maker, needs):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    (tmp_path / file).write_text(FILES[file], encoding="utf-8")
    make = catalog.maker(f"{tmp_path / file}{maker}")
    found = check.check_game(make, episodes=60, make_without_list=make.without_list())
    assert [str(finding) for finding in found if finding.status == "failed"] == []


def test_a_run_can_be_planned_on_ones_own_game_as_the_page_says(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_games").mkdir()
    (tmp_path / "my_games" / "throws.py").write_text(FILES["throws.py"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^marl-llm (train .*)$", PAGE.split("## Adapters")[1], re.MULTILINE)
    assert main([*shlex.split(command), "dry_run=true"]) == 0, capsys.readouterr()


def test_the_example_of_evaluation_prints_what_it_says(capsys):
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (expected,) = re.findall(r"# ([\d.]+)$", example, re.MULTILINE)
    exec(example, {})
    assert capsys.readouterr().out.strip() == expected


def test_the_readme_compares_credit_on_the_run_that_make_selfplay_leaves():
    target = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nselfplay:")[1]
    words = re.findall(r"marl-llm train (.*)", target)[0].split()
    composed = config.compose(words)
    folder = f"runs/{composed['experiment']}-seed{composed['seed']}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ +marl-llm credit compare .*$", readme, re.MULTILINE)
    assert line.split()[3] == folder and "make selfplay" in line
    assert f"`{folder}`" in CREDIT


def test_the_examples_of_hierarchy_can_be_planned(tmp_path, capsys):
    page = (ROOT / "docs" / "hierarchy.md").read_text(encoding="utf-8")
    commands = re.findall(r"^marl-llm (train .*)$", page, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        words = [*shlex.split(command), f"run.dir={tmp_path / 'run'}"]
        assert main(words) == 0, capsys.readouterr()


def test_the_tables_of_hierarchy_have_the_rows_of_the_command():
    page = (ROOT / "docs" / "hierarchy.md").read_text(encoding="utf-8")
    for row in calls.ROWS:
        assert page.count(f"| {row.title} | {row.pay} |") == 2
    for size in calls.ALIGNED_TO:
        assert page.count(f"\n| {size} | ") == 1


CREDIT = (ROOT / "docs" / "credit.md").read_text(encoding="utf-8")
TRAPS = (ROOT / "docs" / "credit_traps.md").read_text(encoding="utf-8")


def test_the_tables_of_credit_are_those_of_the_command():
    between = CREDIT.partition(credit_list.BEGIN)[2].partition(credit_list.END)[0]
    assert between.strip() == credit_list.markdown().strip(), (
        "refresh the page: marl-llm credit list --page docs/credit.md"
    )


def test_the_advice_on_credit_names_rules_that_are_there():
    advice = CREDIT.partition("| you have |")[2].partition("\n\n")[0]
    named = [name for row in advice.splitlines()[1:] for name in
             re.findall(r"`(\w+)`", row.split("|")[2])]  # fmt: skip
    assert len(named) > 12
    assert set(named) <= set(config.choices("credit"))


def test_the_words_about_credit_are_those_of_the_code():
    words = CREDIT.partition("How to read the table")[2].partition("<!--")[0]
    for how, meaning in survey.ESTIMANDS.items():
        assert f"| {how} | {meaning} |" in words
    assert all(f"`{tier}`" in words for tier in survey.TIERS)


def test_every_trap_has_an_example_that_prints_what_the_page_says(capsys):
    sections = re.split(r"^## (.*)$", TRAPS, flags=re.MULTILINE)
    names: dict[str, object] = {}
    for title, text in [("", sections[0]), *zip(sections[1::2], sections[2::2], strict=True)]:
        code, *more = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        exec(compile(code[1], f"credit_traps.md, {title}", "exec"), names)
        assert [("text", capsys.readouterr().out)] == more or not title, title
    assert len(sections[1::2]) >= 7


def test_the_page_on_the_household_shows_what_the_game_does(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    parts = importlib.import_module("household_levels").fixed()
    page = (ROOT / "docs" / "household.md").read_text(encoding="utf-8")
    for name, part in parts.items():
        shown = page.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]
        assert shown == part, "refresh it: benchmarks/household_levels.py docs/household.md"
