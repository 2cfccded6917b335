"""Credit rules against each other: the same experiment, budget and seeds, one rule after another.

    .venv/bin/python benchmarks/credit_rules.py runs/rules docs/credit_rules.md

Kuhn poker is scored by its exact NashConv (less is better), tic-tac-toe, where an agent has four or
five turns a game, by its score against uniform play. Everything but the rule is the experiment's
own, for rules that compare by group with groups of eight equal starts. Runs that are finished are
not repeated; further words go to every run.

All rules of a game and a seed start from the same model, which the first run of them makes.

The table gives each rule's mean over seeds with a 95 % interval (Student's t), and whether it
differs from `mars_state`, the rule that the experiments are tuned with: the mean paired difference
with its interval. Where that holds 0, the table says so: no difference was seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from marl_llm.report.summary import read_summary

SEEDS = (0, 1, 2)
REFERENCE = "mars_state"
GROUPS = ("rollout.group_size=8",)
RULES: dict[str, tuple[str, ...]] = {  # and what they need besides
    "mars_state": (),
    "mars": (),
    "rae": (),
    "grpo": GROUPS,
    "rloo": GROUPS,
    "gigpo": GROUPS,
    "rtmc": GROUPS,
    "graft": GROUPS,
}


@dataclass(frozen=True, slots=True)
class Game:
    """What is trained and how it is scored."""

    experiment: str
    words: tuple[str, ...]
    made: tuple[str, ...]  # what the experiment says of a model that the other rules are given
    quantity: str  # of summary.json
    title: str


GAMES = (
    Game(
        "kuhn_selfplay",
        ("updates=60", "evaluation.every=60", "evaluation.thoughts=32"),
        ("~policies.main.coldstart",),
        "nash_conv",
        "Kuhn poker, NashConv after 60 updates of 384 games (less is better)",
    ),
    Game(
        "tictactoe_selfplay",
        (
            "updates=30",
            "evaluation.every=30",
            "evaluation.pairs=200",
            "~evaluation.panel.minimax",
        ),
        ("~policies.main.coldstart", "~policies.main.model.layers"),
        "score",
        "tic-tac-toe, score against uniform play after 30 updates of 384 games",
    ),
)


def main(folder: str, page: str, *words: str) -> int:
    """Run what is missing, then write the page."""
    jobs = [
        (game, rule, seed, Path(folder) / f"{game.experiment}-{rule}-seed{seed}")
        for seed in SEEDS
        for game in GAMES
        for rule in RULES
    ]
    for game, rule, seed, run in jobs:
        if read_summary(run).get("status") == "finished":
            continue
        start = Path(folder) / f"{game.experiment}-{REFERENCE}-seed{seed}" / "models" / "main"
        given: tuple[str, ...] = ()
        if rule != REFERENCE:
            model = "policies.main.model"
            given = (f"model@{model}=pretrained", f"{model}.name={start.resolve()}", *game.made)
        command = [
            sys.executable, "-m", "marl_llm.cli", "train", f"experiment={game.experiment}",
            f"credit={rule}", f"seed={seed}", f"run.dir={run}", "run.checkpoint_every=1000",
            *game.words, *given, *RULES[rule], *words,
        ]  # fmt: skip
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        if done.returncode:
            print(f"{run} ended with code {done.returncode}", file=sys.stderr)
            return done.returncode
    Path(page).write_text("\n".join(lines(Path(folder))) + "\n", encoding="utf-8")
    print(f"table: {page}")
    return 0


def lines(folder: Path) -> list[str]:
    """The page."""
    out = []
    for game in GAMES:
        found = {
            rule: np.array(
                [
                    read_summary(folder / f"{game.experiment}-{rule}-seed{seed}")[game.quantity][
                        "last"
                    ]
                    for seed in SEEDS
                ]
            )
            for rule in RULES
        }
        out += [f"**{game.title}**", "", "| rule | mean [95 %] | seeds | against mars_state |"]
        out += ["|---|---|---|---|"]
        better = -1 if game.quantity == "nash_conv" else 1
        for rule, values in sorted(found.items(), key=lambda item: -better * item[1].mean()):
            mean, half = interval(values)
            seeds = ", ".join(f"{value:.3f}" for value in values)
            out.append(f"| `{rule}` | {mean:.3f} ± {half:.3f} | {seeds} | {verdict(rule, found)} |")
        out.append("")
    return out


def verdict(rule: str, found: dict[str, np.ndarray]) -> str:
    """The paired difference to the reference, in words."""
    if rule == REFERENCE:
        return "-"
    mean, half = interval(found[rule] - found[REFERENCE])
    seen = "no difference seen" if abs(mean) <= half else "different"
    return f"{mean:+.3f} ± {half:.3f}: {seen}"


def interval(values: np.ndarray) -> tuple[float, float]:
    """Mean, and half of its 95 % interval over seeds."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)
    return float(values.mean()), float(half)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
