"""docs/phantom_search.md shows episodes as they are played, and the levels as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marl_llm.agents.delegating import Solver
from marl_llm.games.faults import Faults
from marl_llm.games.phantom.game import PhantomSearch
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.games.phantom.pages import Pages
from marl_llm.games.phantom.tasks import asked_by, rightness
from marl_llm.games.phantom.world import World
from marl_llm.seeds import generator
from marl_llm.types import Move

PAGE = (Path(__file__).parents[3] / "docs" / "phantom_search.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```text level (\d), seed (\d+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TABLE = re.findall(r"^\| (\d) \| (\d+) \|.*$", PAGE, re.MULTILINE)
JUDGED = re.findall(r"^\| (Who|Where)(.*?) \| `(.*?)` \| ([\d.]+) \|$", PAGE, re.MULTILINE)


def episode(level, seed):
    """What the planner is asked, every action, and what each tool gave back."""
    game = PhantomSearch(level=level)
    game.reset(seed=seed)
    lines, seen, turn = [game.observation("planner").text.partition("\n")[0]], {}, 0
    while game.acting():
        agent = game.acting()[0]
        action = Solver().act(game, agent, generator(seed, turn))
        game.act(agent, Move(action))
        lines.append(f"{agent} > {action}")
        for call in game.all_calls():
            for note in call.notes[seen.get(call.agent, 0) :]:
                lines.append(f"{call.agent} <")
                lines += [f"    {line}" for line in note.text.splitlines()]
            seen[call.agent] = len(call.notes)
        turn += 1
    return "\n".join(lines)


@pytest.mark.parametrize(("level", "seed", "text"), SHOWN)
def test_the_episodes_are_those_of_the_game(level, seed, text):
    assert episode(int(level), int(seed)) == text.rstrip("\n")


def test_the_page_shows_episodes_of_two_levels_and_all_levels():
    assert len(SHOWN) == 2
    assert {int(level) for level, _ in TABLE} == set(LEVELS)


def test_the_knobs_and_rates_are_named():
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(LEVELS[1].__slots__) <= named
    assert set(Faults.__slots__) <= named


@pytest.mark.parametrize("level", [1, 2])
def test_the_numbers_of_pages_are_right(level):
    pages = len(Pages(World(LEVELS[level], 0)).titles)
    assert {(str(level), str(pages))} & set(TABLE)


def test_the_judged_reports_are_judged_so():
    game = PhantomSearch(level=3)
    seed = int(re.search(r"level 3, seed (\d+)", PAGE)[1])
    game.reset(seed=seed)
    world = game.library.world
    assert len(JUDGED) >= 5
    for word, rest, report, right in JUDGED:
        asked = asked_by(word + rest, game.library.question.steps, world)
        found = rightness(report, word + rest, asked, world)
        assert found == pytest.approx(float(right), abs=0.005), report
