"""What `marl-llm eval` does: seat a policy and its opponents, measure, show and write down."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from marl_llm.agents import Player
from marl_llm.commands.contenders import (
    COLDSTART,
    Contender,
    RunOnDisk,
    of_model,
)
from marl_llm.commands.presets import scripted
from marl_llm.commands.words import Words
from marl_llm.config import choices
from marl_llm.errors import ConfigError, nearest
from marl_llm.evaluate.matches import Match, panel_matches
from marl_llm.evaluate.matches import table as match_table
from marl_llm.evaluate.nash_conv import Measured, Thoughts, measure
from marl_llm.evaluate.text_tree import equilibrium_policy, text_tree
from marl_llm.games.catalog import Entry, entry, maker
from marl_llm.games.text_game import TextGame
from marl_llm.rollout.play import ModelSeat
from marl_llm.seeds import derive
from marl_llm.serve import Engine

SELF = "self"
EXACT = "exact NashConv"


@dataclass(frozen=True, slots=True)
class Result:
    """What came out for one game."""

    measured: Measured | None
    note: str  # why there is no NashConv, or how the thoughts were treated
    matches: tuple[Match, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {
            "nash_conv": None if self.measured is None else self.measured.as_json(),
            "note": self.note,
            "matches": [match.as_json() for match in self.matches],
        }


def evaluate(options: Words) -> int:
    """Measure as the words say; print tables, write JSON."""
    pairs, seed = options.number("pairs", 100, least=1), options.number("seed", 0)
    console = Console(stderr="json" in options.flags)
    home = _home(options)
    thoughts = _thoughts(options, home)
    games = options.listed("game") + options.listed("games")
    if home is not None:
        games = games or home.settings.evaluation.games or tuple(home.settings.games)
    makers = {game: maker(game) if home is None else home.game(game) for game in games}
    with console.status("loading"):
        everybody = _Everybody(_subject(options, home), home)
        panels = {name: _panel(options, make, home) for name, make in makers.items()}
        for panel in panels.values():
            everybody.seat(panel)
    subject = everybody.subject
    console.print(f"{subject.about}; seed {seed}", highlight=False, soft_wrap=True)
    results = {}
    for game, make in makers.items():
        with console.status(f"measuring {game}"):
            results[game] = _result(game, make, everybody, panels[game], thoughts, pairs, seed)
        _show(console, game, results[game])
    _write(options, subject, pairs, seed, results)
    return 0


def _home(options: Words) -> RunOnDisk | None:
    given = options.values
    if "run" in given:
        _refuse(options, ("role", "dtype"), "a run has its own; they go with model=")
        return RunOnDisk.read(given["run"], given.get("seat"), given.get("device"))
    _refuse(options, ("update", "seat"), "they go with run=")
    return None


def _refuse(options: Words, keys: Sequence[str], why: str) -> None:
    for key in keys:
        if key in options.values:
            raise ConfigError(f"eval: {key} does not apply here; {why}")


def _thoughts(options: Words, home: RunOnDisk | None) -> Thoughts:
    text = options.values.get("thoughts")
    if text is None:
        evaluation = home and home.settings.evaluation
        return Thoughts(evaluation.thought, evaluation.thoughts) if evaluation else Thoughts()
    if text == "fixed":
        return Thoughts("fixed")
    if text == "none":
        return Thoughts("none")
    if text == "sampled":
        return Thoughts()
    if not text.isdecimal():
        raise ConfigError(f"eval: thoughts is a number of samples, fixed or none, got {text!r}")
    return Thoughts("sampled", options.number("thoughts", 8))


def _subject(options: Words, home: RunOnDisk | None) -> Contender:
    given = options.values
    if home is None:
        role = given.get("role", "player")
        return of_model(given["model"], role, SELF, given.get("device"), given.get("dtype"))
    name = home.latest()
    if "update" in given:
        name = home.after(options.number("update", 0))
    return home.contender(name, SELF)


def _panel(options: Words, make: Callable[[], TextGame], home: RunOnDisk | None) -> tuple[str, ...]:
    """The opponents that were asked for, else those that fit the game."""
    if "panel" in options.values:
        return options.listed("panel")
    start = (COLDSTART,) if home is not None and options.values.get("update") != "0" else ()
    return (*fitting(entry(make())), *start)


def fitting(game: Entry) -> tuple[str, ...]:
    """Opponents that a game can be measured against.

    Solvers of card games need two opposed players; where all share one interest the policy plays
    with itself, and with a partner that knows nothing.
    """
    if game.interest == "shared":
        return (SELF, "random")
    if game.solver == "minimax":
        return ("random", "minimax")
    if game.solver == "MCTS":
        return ("random", "mcts_100")
    if game.solver == EXACT and game.players == 2 and game.interest == "opposed":
        return ("random", "nash")
    return ("random",)


class _Everybody:
    """The subject and its opponents, each loaded once however many games it plays."""

    def __init__(self, subject: Contender, home: RunOnDisk | None) -> None:
        self.subject, self._home = subject, home
        self.seats: dict[str, ModelSeat | Player] = {subject.name: subject.seat}
        self.engines: dict[str, Engine] = {subject.name: subject.engine}

    def seat(self, panel: Sequence[str]) -> None:
        """Have these sit down."""
        for name in panel:
            if name in self.seats:
                continue
            if self._home is not None and name in self._home.names():
                past = self._home.contender(name)
                self.seats[name], self.engines[name] = past.seat, past.engine
            else:
                self.seats[name] = self._player(name)

    def _player(self, name: str) -> Player:
        own = None if self._home is None else self._home.player(name)
        if own is not None:
            return own
        players = [player for player in choices("player") if player != "human"]
        if name not in players:
            past = [] if self._home is None else self._home.names()
            raise ConfigError(
                f"unknown opponent {name!r}; {nearest(name, [*players, *past, SELF])}"
            )
        return scripted(name)


def _result(
    game: str,
    make: Callable[[], TextGame],
    everybody: _Everybody,
    panel: Sequence[str],
    thoughts: Thoughts,
    pairs: int,
    seed: int,
) -> Result:
    measured, note = _exact(make, everybody.subject, thoughts, derive(seed, "evaluation"))
    matches = panel_matches(
        game,
        make,
        everybody.subject.name,
        panel,
        everybody.seats,
        everybody.engines,
        pairs=pairs,
        seed=derive(seed, "evaluation"),
    )
    return Result(measured, note, tuple(matches))


def _exact(
    make: Callable[[], TextGame], subject: Contender, thoughts: Thoughts, seed: int
) -> tuple[Measured | None, str]:
    """NashConv, or why there is none."""
    game = make()
    facts = entry(game)
    if facts.solver != EXACT:
        return None, f"no NashConv: {facts.name} is too large or has no opposed interests"
    tree = text_tree(game)
    solvable = facts.players == 2 and facts.interest == "opposed"
    try:
        measured = measure(
            tree,
            subject.role,
            subject.chat,
            subject.engine,
            seed=seed,
            thoughts=thoughts,
            reference=equilibrium_policy(tree) if solvable else None,
        )
    except ConfigError as reason:  # the matches below do not need what NashConv asks of a role
        return None, f"no NashConv: {reason}"
    return measured, f"thoughts {thoughts}"


def _show(console: Console, game: str, result: Result) -> None:
    console.print()
    if result.measured is None:
        console.print(f"{game}: {result.note}", highlight=False)
    else:
        console.print(_nash_table(game, result.measured))
    if result.matches:
        console.print(match_table(result.matches, f"{game}, {result.matches[0].pairs} pairs"))


def _nash_table(game: str, measured: Measured) -> Table:
    found = measured.result
    table = Table(title=f"{game}: NashConv {found.nash_conv:.4f}")
    for column in ("agent", "value", "of its best response", "gain"):
        table.add_column(column, justify="left" if column == "agent" else "right")
    for agent, value in found.values.items():
        best = found.best_responses[agent]
        table.add_row(agent, f"{value:+.4f}", f"{best:+.4f}", f"{best - value:.4f}")
    table.caption = (
        f"thoughts {found.thoughts}\n"
        f"{found.states} states, a legal reply has probability {found.legal_mass:.1%}"
    )
    return table


def _write(
    options: Words, subject: Contender, pairs: int, seed: int, results: Mapping[str, Result]
) -> None:
    text = json.dumps(
        {
            "policy": subject.about,
            "version": subject.engine.version,
            "seed": seed,
            "pairs": pairs,
            "games": {game: result.as_json() for game, result in results.items()},
        },
        indent=2,
    )
    if "json" in options.flags:
        print(text)
    if "json" in options.values:
        Path(options.values["json"]).write_text(text + "\n", encoding="utf-8")
