"""An experiment over seeds 0, 1 and 2: the median of its headline, its range, and one picture.

    .venv/bin/python benchmarks/three_seeds.py kuhn_selfplay runs/three docs/kuhn_selfplay.png

Runs that are finished already are not repeated; further words go to every run (`updates=50`).
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from marl_llm.cli import main as marl_llm
from marl_llm.report.picture import draw_headline
from marl_llm.report.summary import read_summary

SEEDS = (0, 1, 2)


def main(experiment: str, folder: str, picture: str, *words: str) -> int:
    """Run what is missing, then print and draw."""
    runs = [Path(folder) / f"{experiment}-seed{seed}" for seed in SEEDS]
    for seed, run in zip(SEEDS, runs, strict=True):
        if read_summary(run).get("status") != "finished":
            code = marl_llm(
                ["train", f"experiment={experiment}", f"seed={seed}", f"run.dir={run}", *words]
            )
            if code:
                return code
    summaries = [read_summary(run) for run in runs]
    for quantity in ("nash_conv", "score"):
        found = [summary[quantity] for summary in summaries if quantity in summary]
        for what in ("first", "last", "best") if found else ():
            values = [entry[what] for entry in found]
            print(
                f"{quantity}.{what}: median {statistics.median(values):.3f}, "
                f"from {min(values):.3f} to {max(values):.3f}"
            )
    for name in ("seconds", "peak_memory_gb"):
        print(f"{name}: at most {max(summary[name] for summary in summaries):.3g}")
    print(f"forfeits at the end: at most {max(s['forfeits']['last'] for s in summaries):.1%}")
    print(f"picture: {draw_headline(runs, Path(picture))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
