"""List the experiments that come with the package.

marl-llm experiments [--json]
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from marl_llm.commands.words import read
from marl_llm.config import ROOT, choices


def run(words: Sequence[str]) -> int:
    """Print each experiment with the first comment of its YAML."""
    options = read(words, "experiments", flags=("json",))
    listed = {name: about(name) for name in choices("experiment")}
    if "json" in options.flags:
        print(json.dumps(listed, indent=2))
        return 0
    for name, text in listed.items():
        print(f"{name:22} {text}")
    return 0


def about(experiment: str) -> str:
    """What an experiment's YAML says of itself in its first comment."""
    lines = (ROOT / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ") and "@" not in line), "")
