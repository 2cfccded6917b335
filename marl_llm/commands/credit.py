"""What each turn contributed: list the rules, choose one, measure them, ask them about a run.

  marl-llm credit list                      all estimators and losses, and what they need
  marl-llm credit choose                    asks what is at hand, names the rules that suit it
  marl-llm credit bench                     all estimators where every turn's credit is known
  marl-llm credit compare RUNDIR            what all of them say of a run's stored games
  marl-llm credit explain RUNDIR EPISODE    what some say of one game, turn by turn

marl-llm credit VERB --help says more of each; docs/credit.md explains the words.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from marl_llm.errors import ConfigError, nearest

VERBS = {  # word -> module of `commands`, with a `run` of its own
    "list": "credit_list",
    "choose": "credit_choose",
    "bench": "credit_bench",
    "compare": "credit_compare",
    "explain": "credit_explain",
}


def run(words: Sequence[str]) -> int:
    """Hand the words over to the verb's module."""
    if not words or words[0] not in VERBS:
        got = f"unknown word {words[0]!r}" if words else "a word is missing"
        raise ConfigError(f"credit: {got}; {nearest(words[0] if words else '', VERBS)}")
    verb, *rest = words
    return importlib.import_module(f"marl_llm.commands.{VERBS[verb]}").run(rest)
