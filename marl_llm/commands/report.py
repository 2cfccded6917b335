"""Write a run's report.html again, from what lies in its folder.

marl-llm report run=RUNDIR
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_llm.commands.presets import run_folder
from marl_llm.commands.words import read
from marl_llm.errors import ConfigError


def run(words: Sequence[str]) -> int:
    """Write the report and print the run's result."""
    options = read(words, "report", keys=("run",))
    if "run" not in options.values:
        raise ConfigError("report: which run? give run=RUNDIR")
    run_dir = run_folder(options.values["run"])
    from marl_llm.report import metrics
    from marl_llm.report.html import write_report
    from marl_llm.report.live import print_result

    report = write_report(run_dir)
    print_result(metrics.read(run_dir), report)
    return 0
