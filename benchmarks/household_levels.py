"""The household's levels, and how far players without a model get in them.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/household_levels.py docs/household.md

Writes the tables and the examples of the page between its marks. Success is over 500 episodes of
one agent and 200 of a team with a 95 % Wilson interval; the same seeds for every player.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from marl_llm.agents import Player
from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Noisy, Uniform
from marl_llm.agents.subgoals import Skipper, SubGoalSolver
from marl_llm.games.household.errands import LEVELS, Level
from marl_llm.games.household.single import Household
from marl_llm.games.household.team import CALLS, TEAM_LEVELS, HouseholdTeam
from marl_llm.games.text_game import TextGame
from marl_llm.types import Move, Outcome

ALONE: dict[str, Player] = {
    "solver": SubGoalSolver(),
    "solver, 3 in 10 commands random": Noisy(SubGoalSolver(), 0.3),
    "skipper": Skipper(),
    "random": Uniform(),
}
TEAM: dict[str, Player] = {
    "solver": Solver(),
    "hasty, 1 in 10": Hasty(hasty=0.1, right=0.9),
    "hasty": Hasty(),
    "random": Uniform(),
}


def main(page: str) -> int:
    """Fill the page in."""
    path = Path(page)
    text = path.read_text(encoding="utf-8")
    for name, part in {**fixed(), "scores": scores()}.items():
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
        text, found = pattern.subn(lambda _, m=marks, p=part: f"{m[0]}\n{p}\n{m[1]}", text)
        if found != 1:
            print(f"{page} has no marks for {name}", file=sys.stderr)
            return 2
    path.write_text(text, encoding="utf-8")
    print(speeds())
    return 0


def fixed() -> dict[str, str]:
    """The parts of the page that only hang on the code."""
    return {"levels": levels(), "episode": episode(), "team": team_episode()}


def levels() -> str:
    """What each level has."""
    rows = ["| level | rooms | receptacles | things | errands | turns | team: things, executors |",
            "|---|---|---|---|---|---|---|"]  # fmt: skip
    for number, level in LEVELS.items():
        team = TEAM_LEVELS[number]
        rows.append(
            f"| {number} | {len(level.rooms)} | {sum(map(len, level.rooms.values()))} | "
            f"{level.things} | {_span(level)} | {level.turns} | {team.things}, {CALLS[number]} |"
        )
    return "\n".join(rows)


def episode(seed: int = 1) -> str:
    """An episode of level 1, its sub-goals and the replies that would be written."""
    game, player, rng = Household(), SubGoalSolver(), np.random.default_rng(seed)
    game.reset(seed, {"family": "heat"})
    agent, held, lines = "player_0", "none", ["```text"]
    while game.acting():
        seen, goal = game.observation(agent), player.intent(game, agent)
        action = player.act(game, agent, rng)
        new = "" if goal == held else f"<subgoal>{goal}</subgoal>"
        switch = "SWITCH" if new else "KEEP"
        lines += [seen.text, f"  brief: {seen.brief}",
                  f"  <switch>{switch}</switch>{new}<action>{action}</action>", ""]  # fmt: skip
        held = goal
        game.act(agent, Move(action))
    reached = ", ".join(f"{goal.text(game.layout)} after {n}" for goal, n in game.subgoals())
    return "\n".join([*lines, f"Reached: {reached} turns.", "```"])


def team_episode(seed: int = 19) -> str:
    """An episode of a team of level 3, as the planner sees it, and the longest call in it."""
    game, rng = HouseholdTeam(level=3), np.random.default_rng(seed)
    game.reset(seed)
    lines = ["```text"]
    while game.acting():
        for agent in game.acting():
            action = Solver().act(game, agent, rng)
            if agent == "planner":
                lines += [game.observation(agent).text, f"  -> {action}"]
            elif agent == "executor_0":
                brief = game.observation(agent).brief
                lines.append(f"    executor_0: {brief} -> {action}")
            game.act(agent, Move(action))
    return "\n".join([*lines, "```"])


def scores() -> str:
    """Success of every player in every level."""
    head = "| player | " + " | ".join(f"level {number}" for number in LEVELS) + " |"
    rows = [head, "|---" * (len(LEVELS) + 1) + "|"]
    for name, player in ALONE.items():
        cells = [_cell(lambda n=n: Household(level=n), player, 500) for n in LEVELS]
        rows.append(f"| one agent: {name} | {' | '.join(cells)} |")
    for name, player in TEAM.items():
        cells = [_cell(lambda n=n: HouseholdTeam(level=n), player, 200) for n in LEVELS]
        rows.append(f"| team: {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def speeds() -> str:
    """Steps of random play of one agent per second of its process, the best of three."""
    lines = []
    for number in LEVELS:
        for texts in (False, True):
            best = max(_speed(number, texts) for _ in range(3))
            what = "with its texts" if texts else "without texts"
            lines.append(f"level {number}, {what}: {best:,.0f} steps per CPU second")
    return "\n".join(lines)


def play(game: TextGame, player: Player, seed: int) -> tuple[bool, int]:
    """Whether the first agent won, and the turns of an episode."""
    rng, turns = np.random.default_rng(seed), 0
    game.reset(seed)
    while waiting := game.acting():
        moves: dict[str, Any] = {agent: player.act(game, agent, rng) for agent in waiting}
        for agent, action in moves.items():
            game.act(agent, Move(action))
            turns += 1
    return game.outcomes()[game.possible_agents[0]] is Outcome.WIN, turns


def wilson(wins: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share."""
    share, square = wins / count, z * z
    middle = share + square / (2 * count)
    half = z * np.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return (middle - half) / (1 + square / count), (middle + half) / (1 + square / count)


def _cell(make: Callable[[], TextGame], player: Player, count: int) -> str:
    game = make()
    played = [play(game, player, seed) for seed in range(count)]
    wins = sum(won for won, _ in played)
    low, high = (max(0.0, end) for end in wilson(wins, count))
    turns = sum(number for _, number in played) / count
    return f"{wins / count:.3f} [{low:.3f}, {high:.3f}], {turns:.1f} turns"


def _speed(number: int, texts: bool) -> float:
    game, rng, steps = Household(level=number), np.random.default_rng(0), 0
    began = time.process_time()
    for seed in range(200):
        game.reset(seed)
        while game.acting():
            if texts:
                game.observation("player_0")
            game.act("player_0", Move(game.sample("player_0", rng)))
            steps += 1
    return steps / (time.process_time() - began)


def _span(level: Level) -> str:
    one = level.shortest == level.longest
    return str(level.shortest) if one else f"{level.shortest} to {level.longest}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("the page is missing: household_levels.py docs/household.md")
    sys.exit(main(sys.argv[1]))
