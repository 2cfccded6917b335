"""Measure what things cost (training, credit, the store, killed processes), or what credit finds.

marl-llm bench rollout [--json FILE] [key=value ...]   rollout, engine, learner and overhead, as
                                                       ratios of two things timed in turn; with
                                                       several policies, how busy their servers are
marl-llm bench credit [--json FILE]                    every credit estimator: time, memory, and how
                                                       much faster than a plain loop it is
  estimators=a,b episodes=N rounds=N seed=N            only these; on how many episodes (4096)
marl-llm bench chaos [--json FILE] [key=value ...]     a run over Ray whose processes are killed at
                                                       random, against one left in peace
  kills=N draws=N folder=DIR                           how many (30); their seed; keep both runs
marl-llm bench calls [--json FILE]                     credit of sub-agents against its exact value
  groups=N size=N level=N draws=N seed=N               200 groups of 8 games of needle_pool level 3
marl-llm bench store [--json FILE]                     records per second put, claimed and
                                                       acknowledged: in memory, file, actor
  records=N batch=N group=N size=N rounds=N            how many, per call, per group; their bytes
"""

from __future__ import annotations

from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """Measure; the words are the benchmark's own affair."""
    from marl_llm.bench import main

    return main(words)
