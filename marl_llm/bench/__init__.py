"""`marl-llm bench`: what things cost. Each benchmark is a module with a `main` of its own.

It is imported when it is called for, since most of them need torch and some do not.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from marl_llm.errors import ConfigError, nearest

BENCHMARKS = {  # word -> module
    "rollout": "rollout",
    "credit": "crediting",
    "chaos": "chaos",
    "calls": "calls",
    "store": "storing",
}


def main(words: Sequence[str]) -> int:
    """`marl-llm bench NAME ...`: run one of them.

    Raises:
        ConfigError: there is no benchmark of that name.
    """
    if not words or words[0] not in BENCHMARKS:
        got = f"unknown word {words[0]!r}" if words else "a word is missing"
        raise ConfigError(f"bench: {got}; {nearest(words[0] if words else '', BENCHMARKS)}")
    module = importlib.import_module(f"marl_llm.bench.{BENCHMARKS[words[0]]}")
    return module.main(words[1:])
