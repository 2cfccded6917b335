"""Measure what each layer costs, as ratios of two things timed in turn.

marl-llm bench rollout [--json FILE] [key=value ...]   rollout, engine, learner and overhead
"""

from __future__ import annotations

from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """Measure; the words are the benchmark's own affair."""
    from marl_llm.bench import main

    return main(words)
