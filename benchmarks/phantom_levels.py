"""The levels of phantom search: how large, how fast, and who wins them. Prints a table.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/phantom_levels.py [EPISODES]

Success is the share of episodes whose answer is right; calls and turns are means of the solver's
episodes. Times are medians of CPU time over fresh seeds: `reset` makes the world and the question,
the index is made at the first search, an episode is the solver's play. EPISODES (100) is the number
of each player at levels 1 to 3; level 4 has a third and level 5 a tenth of it.
"""

from __future__ import annotations

import statistics
import sys
import time

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Uniform
from marl_llm.games.phantom.game import PhantomSearch
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.seeds import derive, generator
from marl_llm.types import Move, Outcome

SHARES = {4: 3, 5: 10}
HEAD = (
    "| level | pages | characters a page | solver | hasty | random | calls | turns | `reset` ms | "
    "index ms | episode ms |"
)


def main(episodes: int = 100) -> int:
    """Play and print."""
    print(f"{HEAD}\n|{'---|' * HEAD.count(' | ')}---|")
    for level in LEVELS:
        print(row(level, max(3, episodes // SHARES.get(level, 1))), flush=True)
    return 0


def row(level: int, episodes: int) -> str:
    """One line of the table."""
    game = PhantomSearch(level=level)
    won: dict[str, int] = {}
    calls = turns = 0
    made, indexed, played = [], [], []
    for player in (Solver(), Hasty(), Uniform()):
        won[player.name] = 0
        for number in range(episodes):
            seed = derive(0, player.name, number)
            start = time.process_time()
            game.reset(seed=seed)
            made.append(time.process_time() - start)
            start = time.process_time()
            game.library.index.search("a", 1)
            indexed.append(time.process_time() - start)
            start = time.process_time()
            taken = play(game, player, seed)
            won[player.name] += game.outcomes()["planner"] is Outcome.WIN
            if player.name == "solver":
                played.append(time.process_time() - start)
                turns += taken
                calls += len(game.all_calls()) - 1
    pages = game.library.pages
    letters = sum(len(page.text()) for page in pages.all) / len(pages.all)
    wins = " | ".join(f"{100 * count / episodes:.0f} %" for count in won.values())
    times = " | ".join(f"{1000 * statistics.median(some):.2f}" for some in (made, indexed, played))
    return (
        f"| {level} | {len(pages.titles)} | {letters:.0f} | {wins} | {calls / episodes:.1f} | "
        f"{turns / episodes:.1f} | {times} |"
    )


def play(game: PhantomSearch, player: Solver | Hasty | Uniform, seed: int) -> int:
    """Play an episode to its end; returns its turns."""
    turns = 0
    while acting := game.acting():
        action = player.act(game, acting[0], generator(seed, turns))
        game.act(acting[0], Move(action))
        turns += 1
    return turns


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
