"""How busy two policies' servers are: games interleaved, against the same games in lock step.

Over a local Ray cluster the first update of an experiment is played again and again, by the weights
of its cold start, in turn in two ways:

    interleaved  as a run plays: a game goes on with whatever answer comes back
    lock step    all games advance together, one policy at a time (`rollout.play`)

A server's busy share is what a run writes down as `serve/<policy>/busy_share`: seconds that it
decoded over seconds from the call for games until their episodes lie in the store. The same
episodes are put every time, so but for the first time, which does not count, the store knows them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from marl_llm import team
from marl_llm.cluster.runtime import RayRuntime
from marl_llm.rollout.plans import Plan
from marl_llm.runtime import Collected
from marl_llm.settings import RunSettings
from marl_llm.train import plans_of

GOAL = 0.7  # of each server, interleaved
WAYS = ("interleaved", "lock_step")

Rounds = Mapping[str, Sequence[Collected]]  # by way


def measure(
    run: RunSettings, rounds: int, folder: Path, stage: Callable[[str], None]
) -> dict[str, Any]:
    """All figures.

    Args:
        run: over Ray, with several policies.
        rounds: that count.
        folder: empty, for the run.
        stage: told what goes on now.
    """
    team.prepare(run, folder / team.MODELS, stage)
    stage("a cluster: a server per policy, rollout workers")
    runtime = RayRuntime(run, folder)
    try:
        stage("games, interleaved and in lock step")
        found = in_turn(runtime, plans_of(run, 0), rounds)
    finally:
        runtime.close()
    return {
        **figures(found),
        "rounds": {
            way: {"seconds": [one.seconds for one in all_], "busy": [one.busy for one in all_]}
            for way, all_ in found.items()
        },
        "workload": {
            "experiment": run.experiment,
            "episodes": run.rollout.episodes,
            "concurrency": run.rollout.concurrency,
            "workers": run.runtime.workers,
            "turns": sum(len(episode.turns) for episode in found["interleaved"][0].episodes),
        },
    }


def in_turn(runtime: RayRuntime, plans: Sequence[Plan], rounds: int) -> Rounds:
    """Play these plans both ways in each round, every other round in the reverse order."""
    found: dict[str, list[Collected]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS[:: 1 if number % 2 else -1]:
            runtime.collect(0, plans, lock_step=way == "lock_step")
            played = runtime.wait()
            assert isinstance(played, Collected), "nobody learns here"
            if number:
                found[way].append(played)
    return found


def figures(found: Rounds) -> dict[str, Any]:
    """Medians over the rounds; of the seconds, the median of the rounds' ratios."""

    def shares(way: str) -> dict[str, float]:
        policies = found[way][0].busy
        return {name: statistics.median(one.busy[name] for one in found[way]) for name in policies}

    pairs = zip(found["lock_step"], found["interleaved"], strict=True)
    return {
        "busy": shares("interleaved"),
        "busy_lock_step": shares("lock_step"),
        "lock_step_over_interleaved": statistics.median(a.seconds / b.seconds for a, b in pairs),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    table = Table(title="marl-llm bench rollout: how busy each policy's server is")
    for heading in ("server", "interleaved", "goal", "lock step"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for policy, share in result["busy"].items():
        lock_step = result["busy_lock_step"][policy]
        table.add_row(policy, f"{share:.3f}", f">= {GOAL:g}", f"{lock_step:.3f}")
    console = Console()
    console.print(table)
    ratio = result["lock_step_over_interleaved"]
    console.print(f"seconds in lock step / seconds interleaved: {ratio:.2f}")
