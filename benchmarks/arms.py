"""Training in several arms: the same task and seeds, one thing different.

    .venv/bin/python benchmarks/arms.py team runs/arms table.md
    .venv/bin/python benchmarks/arms.py search runs/arms-search search.md
    .venv/bin/python benchmarks/arms.py staleness runs/arms table.md
    .venv/bin/python benchmarks/arms.py household runs/arms table.md

`team` asks who must learn: both, one part of the team (the other plays on as it started), or one
agent that has the tool in its own hands, with room for all it sees and with 96 tokens. `search`
asks the same of a planner and its searchers in the made-up library (phantom search, level 1).
`staleness` asks what it costs when games are played by weights two updates old, with the importance
correction and without. `household` asks which credit one agent with sub-goals learns from: HAE, GAE
over turns, or GRPO. Values are counted over the other episodes, and all advantages are in units of
their spread, so that the KL term weighs the same. All arms of a question have the same cold start
and number of episodes, and but for `household` the same credit rule. Runs that are finished are not
repeated; further words go to every run.

The table gives success on 256 held-out tasks, sampled and greedy, before and after: the mean over
three seeds with a 95 % interval (Student's t), and each seed's value.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from marl_llm.report.summary import read_summary

SEEDS = (0, 1, 2)
TEAM, SOLO = "experiment=planner_executor", "experiment=planner_solo"
SEARCH = "experiment=planner_executor_search"
HOUSE = "experiment=hiper_household"
ANNOTATORS = "annotator@policies.main.annotators"
FLAT = (f"~{ANNOTATORS}.plan_blocks", f"~{ANNOTATORS}.plan_values")
FLAT_GAE = (
    HOUSE,
    *FLAT,
    f"+{ANNOTATORS}.state_values=state_values",
    "credit=gae",
    "credit.whiten=true",
)
ARMS: dict[str, dict[str, tuple[str, ...]]] = {
    "team": {
        "planner and executor": (TEAM,),
        "planner only": (TEAM, "policies.executor.trained=false"),
        "executor only": (TEAM, "policies.planner.trained=false"),
        "one agent": (SOLO,),
        "one agent 96": (SOLO, "policies.planner.model.context=96"),
    },
    "search": {
        "planner and searchers": (SEARCH,),
        "planner only": (SEARCH, "policies.searcher.trained=false"),
        "searchers only": (SEARCH, "policies.planner.trained=false"),
        "one agent": ("experiment=planner_solo_search",),
    },
    "staleness": {
        "planner and executor": (TEAM,),
        "two updates old": (TEAM, "runtime.max_staleness=2"),
        "two updates old uncorrected": (
            TEAM,
            "runtime.max_staleness=2",
            "learner.correction.form=none",
        ),
    },
    "household": {
        "HAE": (HOUSE,),
        "GAE over turns": FLAT_GAE,
        "GAE over turns with lam 1": (*FLAT_GAE, "credit.lam=1.0"),
        "GRPO": (HOUSE, *FLAT, "credit=grpo"),
    },
}


def main(question: str, folder: str, page: str, *words: str) -> int:
    """Run what is missing, then write the page."""
    for seed in SEEDS:
        for arm, own in ARMS[question].items():
            run = place(folder, arm, seed)
            if read_summary(run).get("status") == "finished":
                continue
            command = [
                sys.executable, "-m", "marl_llm.cli", "train", *own, f"seed={seed}",
                f"run.dir={run}", *words,
            ]  # fmt: skip
            done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
            if done.returncode:
                print(f"{run} ended with code {done.returncode}", file=sys.stderr)
                return done.returncode
    Path(page).write_text("\n".join(lines(question, folder)) + "\n", encoding="utf-8")
    print(f"table: {page}")
    return 0


def place(folder: str, arm: str, seed: int) -> Path:
    """The run folder of an arm and a seed."""
    return Path(folder) / f"{arm.replace(' ', '_')}-seed{seed}"


def lines(question: str, folder: str) -> list[str]:
    """The table."""
    out = ["| arm | before | after | before, greedy | after, greedy | seconds |"]
    out.append("|---|---|---|---|---|---|")
    for arm in ARMS[question]:
        summaries = [read_summary(place(folder, arm, seed)) for seed in SEEDS]
        cells = [
            cell([summary[quantity][when] for summary in summaries])
            for quantity in ("success", "success_greedy")
            for when in ("first", "last")
        ]
        seconds = np.median([summary["seconds"] for summary in summaries])
        out.append(f"| {arm} | {' | '.join(cells)} | {seconds:.0f} |")
    return out


def cell(values: Sequence[float]) -> str:
    """Mean with its interval, and every seed's value."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    return f"{np.mean(values):.3f} ± {half:.3f} ({', '.join(f'{v:.2f}' for v in values)})"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
