"""Measure a policy: exact NashConv where a game is small enough, and matches against a panel.

marl-llm eval run=RUNDIR [update=N] [key=value ...]     a run's policy, after its last checkpoint
marl-llm eval model=PATH game=NAME [key=value ...]      any model: a folder, or a name on the hub

games=a,b        games to measure on; of a run its own by default, others may be named
panel=a,b        opponents: players of the list (random, minimax, mcts_1000, nash, cfr, ...), those
                 of the run, coldstart (the run's start), update_000040 (a past checkpoint), self
                 (self-play); by default what fits the game
pairs=100        deals per opponent, each played once from every seat
thoughts=8       sampled per state for NashConv; or fixed (the observation in brief), or none
role=player      of a model: how it is asked
seat=self        of a run with several: whose policy
device=cpu dtype=float32
seed=0 json=FILE --json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marl_llm.commands.presets import role, run_folder
from marl_llm.commands.words import read
from marl_llm.errors import ConfigError

KEYS = ("run", "model", "update", "game", "games", "panel", "pairs", "thoughts", "role", "seat",
        "device", "dtype", "seed", "json")  # fmt: skip


def run(words: Sequence[str]) -> int:
    """Check the words, then evaluate."""
    options = read(words, "eval", keys=KEYS, flags=("json",))
    given = options.values
    if ("run" in given) == ("model" in given):
        raise ConfigError("eval: whose policy? give run=RUNDIR or model=PATH_OR_NAME, one of them")
    if "model" in given and not ("game" in given or "games" in given):
        raise ConfigError("eval: model=... needs a game, e.g. game=kuhn")
    for key in ("run", "model", "json"):
        if given.get(key) == "":
            raise ConfigError(f"eval: {key} is empty")
    if not Path(given.get("json", ".")).parent.is_dir():  # rather now than after the matches
        raise ConfigError(f"eval: there is no folder for json={given['json']}")
    for key, least in (("pairs", 1), ("seed", 0), ("update", 0)):
        options.number(key, least, least)
    if "run" in given:
        run_folder(given["run"])
    if "role" in given:
        role(given["role"])
    from marl_llm.commands.evaluation import evaluate

    return evaluate(options)
