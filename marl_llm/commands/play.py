"""Sit down against a model or a scripted player.

  marl-llm play game=NAME [player=minimax]                against a scripted player, or random
  marl-llm play run=RUNDIR [update=N] [game=NAME]         against a run's policy
  marl-llm play model=PATH_OR_NAME game=NAME [role=NAME]  against any model

  seat=0     yours, from 0
  seed=N     of the deal and the opponent's draws; without it every game is another one
  device=cpu dtype=float32

An action is typed as it is listed, or by its number in the list. Ctrl-C leaves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_llm.commands.presets import run_folder, scripted
from marl_llm.commands.words import Words, read
from marl_llm.errors import ConfigError
from marl_llm.types import Outcome

if TYPE_CHECKING:
    from rich.console import Console

    from marl_llm.commands.contenders import Contender, RunOnDisk
    from marl_llm.types import Episode

KEYS = ("game", "run", "update", "model", "player", "role", "seat", "seed", "device", "dtype")
YOU, OTHER = "you", "opponent"
ENDINGS = {
    Outcome.WIN: "you win",
    Outcome.LOSS: "you lose",
    Outcome.DRAW: "a draw",
    Outcome.OTHER_FORFEIT: "the other side forfeits",
    Outcome.TRUNCATED: "the turn limit is reached",
    Outcome.ABSENT: "never called",
}


def run(words: Sequence[str]) -> int:
    """Play one game to its end."""
    options = read(words, "play", keys=KEYS)
    given = options.values
    # A person wants another deal each time; the seed is shown, so that any game can be had again.
    seed = options.number("seed", int(time.time()) % 1_000_000)
    if sum(key in given for key in ("run", "model", "player")) > 1:
        raise ConfigError("play: against whom? give one of run=, model= and player=")
    if "run" not in given and "game" not in given:
        raise ConfigError("play: which game? give game=NAME; `marl-llm games` lists them")
    from rich.console import Console

    from marl_llm.agents.human import Human
    from marl_llm.games.catalog import maker
    from marl_llm.rollout.plans import Plan
    from marl_llm.rollout.play import play

    console = Console()
    home = _home(options)
    name = _game(options, home)
    make = maker(name) if home is None else home.game(name)
    agents = make().possible_agents
    seat = options.number("seat", 0)
    if seat >= len(agents):
        raise ConfigError(f"play: {name} has seats 0 to {len(agents) - 1}, got seat={seat}")
    with console.status("loading"):
        seats, engines, about = _opponent(options, home)
    console.print(
        f"{name}, you are {agents[seat]}, against {about}; seed {seed}\n", highlight=False
    )
    console.print(make().rules(), markup=False, highlight=False)
    plan = Plan(0, 0, name, seed, {a: YOU if a == agents[seat] else OTHER for a in agents})
    (episode,) = play([plan], {name: make}, {YOU: Human(), **seats}, engines, seed=seed)
    _show(console, episode, agents[seat])
    return 0


def _home(options: Words) -> RunOnDisk | None:
    if "run" not in options.values:
        return None
    run_folder(options.values["run"])
    from marl_llm.commands.contenders import RunOnDisk

    return RunOnDisk.read(options.values["run"], device=options.values.get("device"))


def _game(options: Words, home: RunOnDisk | None) -> str:
    if "game" in options.values:
        return options.values["game"]
    assert home is not None  # without a run, a game must be named
    games = list(home.settings.games)
    if len(games) > 1:
        raise ConfigError(f"play: which of the run's games? give game=, one of {', '.join(games)}")
    return games[0]


def _opponent(
    options: Words, home: RunOnDisk | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """Who else sits down, by name; their engines; and who that is, in words."""
    given = options.values
    if home is not None:
        name = home.latest()
        if "update" in given:
            name = home.after(options.number("update", 0))
        return _served(home.contender(name, OTHER))
    if "model" in given:
        from marl_llm.commands.contenders import of_model

        role = given.get("role", "player")
        return _served(
            of_model(given["model"], role, OTHER, given.get("device"), given.get("dtype"))
        )
    name = given.get("player", "random")
    return {OTHER: scripted(name)}, {}, name


def _served(contender: Contender) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    return {OTHER: contender.seat}, {OTHER: contender.engine}, contender.about


def _show(console: Console, episode: Episode, you: str) -> None:
    """How the game went, the opponent's replies with their thoughts in full."""
    from marl_llm.report.live import printable

    console.print("\nThe game:")
    for turn in episode.turns:
        agent = turn.observation.agent
        who = "you" if agent == you else agent
        move = turn.action if turn.fault is None else f"[{turn.fault.value}]"
        said = f"   {printable(turn.reply)}" if turn.policy is not None else ""
        console.print(f"  {who}: {move}{said}", markup=False, highlight=False)
    outcome = episode.outcomes[you]
    ending = ENDINGS.get(outcome, f"you forfeit ({outcome.value})")
    console.print(f"\nThe end: {ending}, return {episode.returns[you]:+g}", highlight=False)
