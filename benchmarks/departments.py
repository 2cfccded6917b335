"""Departments: how far players get that need no model, and an episode to read.

    .venv/bin/python benchmarks/departments.py [episodes per level and player]

Prints what docs/departments.md holds.
"""

from __future__ import annotations

import sys
import time
from random import Random
from statistics import mean, median

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Uniform
from marl_llm.games.departments.game import Departments
from marl_llm.games.departments.questions import make_question
from marl_llm.games.departments.world import LEVELS
from marl_llm.seeds import generator
from marl_llm.types import Move

PLAYERS = (Solver(), Hasty(), Uniform())
EXAMPLE = (3, 1)  # level and seed


def main(*words: str) -> int:
    """Print table and example."""
    episodes = int(words[0]) if words else 1000
    print("\n".join(table(episodes)))
    print("\n```text")
    print(example(*EXAMPLE))
    print("```")
    return 0


def table(episodes: int) -> list[str]:
    """A Markdown table, one row per level and player."""
    lines = [
        "| level | player | right answers | reports, F1 | calls | turns | ms an episode |",
        "|---|---|---|---|---|---|---|",
    ]
    for level in LEVELS:
        for player in PLAYERS:
            game, won, reports, calls, turns = Departments(level=level), 0.0, [], 0, 0
            begun = time.perf_counter()
            for seed in range(episodes):
                game.reset(seed)
                turns += len(played(game, player, seed))
                won += game.right_answer()
                called = game.all_calls()[1:]
                calls += len(called)
                reports += [game.right(call) for call in called if call.report is not None]
            spent = 1000 * (time.perf_counter() - begun) / episodes
            lines.append(
                f"| {level} | {player.name} | {won / episodes:.1%} | {mean(reports):.2f} | "
                f"{calls / episodes:.1f} | {turns / episodes:.1f} | {spent:.1f} |"
            )
    made = ", ".join(f"{making(level):.2f} ms on level {level}" for level in LEVELS)
    return [*lines, "", f"Making a question takes {made} (median of 200)."]


def making(level: int) -> float:
    """Milliseconds of making a question, the median of 200."""
    taken = []
    for seed in range(200):
        begun = time.perf_counter()
        make_question(LEVELS[level], Random(seed))
        taken.append(1000 * (time.perf_counter() - begun))
    return median(taken)


def played(game: Departments, player: Solver | Hasty | Uniform, seed: int) -> list[tuple[str, str]]:
    """Play to the end; who did what."""
    rng, done = generator(seed, "departments"), []
    while game.acting():
        agent = game.acting()[0]
        done.append((agent, player.act(game, agent, rng)))
        game.act(agent, Move(done[-1][1]))
    return done


def example(level: int, seed: int) -> str:
    """An episode of the solver: what each agent reads when it begins, and does from then on."""
    game, seen, lines = Departments(level=level), set[str](), []
    game.reset(seed)
    rng = generator(seed, "departments")
    while game.acting():
        agent = game.acting()[0]
        read = game.observation(agent).text.splitlines()
        new = read if agent not in seen else read[-2 if agent == "planner" else -1 :]
        lines += [f"[{agent} reads]", *new] if agent not in seen else new
        seen.add(agent)
        action = Solver().act(game, agent, rng)
        lines.append(f"[{agent}] {action}")
        game.act(agent, Move(action))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
