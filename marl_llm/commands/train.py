"""Train a team.

  marl-llm train experiment=NAME [key=value ...]   a new run
  marl-llm train resume=RUNDIR [updates=N]         go on with a stopped one

Any setting can be given as key=value, for example

  seed=1 updates=50 run.dir=runs/mine              of the run
  credit=rloo loss=gspo learner.lr=1e-4            of the policy called main
  rollout.episodes=128 evaluation.pairs=50         of its parts
  dry_run=true                                     print and check the plan, train nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_llm.commands.presets import run_folder
from marl_llm.commands.words import read
from marl_llm.config import compose


def run(words: Sequence[str]) -> int:
    """Start a run or go on with one."""
    if any(word.startswith("resume=") for word in words):
        options = read(words, "train resume", keys=("resume", "updates"))
        run_folder(options.values["resume"])
        updates = options.number("updates", 0) if "updates" in options.values else None
        from marl_llm.run import resume

        return resume(options.values["resume"], updates)
    compose(words)  # most mistakes show here, within a second; what follows imports torch
    from marl_llm.run import start

    return start(words)
