"""The catalog: games by name, those that come with the package and a user's own.

A game is named by one of

    kuhn                      a YAML in configs/game/
    my_games/nim.yaml         a YAML of the user's, with `_target_` and settings like those
    my_pkg.nim:Nim            a class (or function) that makes the game, by module
    my_games/nim.py:Nim       the same, by file

A YAML may only call targets inside this package and the packages that the user names: writing
``my_pkg.nim:Nim`` names ``my_pkg``, and `packages` names others.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspiel
import yaml

from marl_llm.errors import ConfigError, nearest
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.games.text_game import TextGame
from marl_llm.targets import OURS, module_of
from marl_llm.types import FORFEITS, Outcome

TARGET = "_target_"

# What play can be measured against. Where it is NashConv, the whole game is small enough to walk.
SOLVERS = {
    "kuhn_poker": "exact NashConv",
    "leduc_poker": "exact NashConv",
    "liars_dice": "exact NashConv",
    "tic_tac_toe": "minimax",
    "connect_four": "MCTS",
}


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes a fresh game at every call. Pickles, so that it can be sent to a worker."""

    target: str  # package.module.Name, or path/to/file.py:Name
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()  # whose code may be called besides ours

    def __call__(self) -> TextGame:
        """A game.

        Raises:
            ConfigError: the target cannot be found or called with these settings, or makes no game.
        """
        game = _call(self.target, self.settings, (OURS, *self.packages))
        if not isinstance(game, TextGame):
            raise ConfigError(
                f"{self.target} makes a {type(game).__name__}, which is no game; it must make a "
                "marl_llm.games.text_game.TextGame"
            )
        return game

    def without_list(self) -> Maker | None:
        """Makes the same game without its list of legal actions; None = it has no such switch."""
        called = _find(self.target, (OURS, *self.packages))
        if "list_legal" not in inspect.signature(called).parameters:
            return None
        return replace(self, settings={**self.settings, "list_legal": False})


@dataclass(frozen=True, slots=True)
class Entry:
    """The facts of a game, as `marl-llm games` lists them. JSON-able by `dataclasses.asdict`."""

    name: str
    players: int
    moves: str  # "sequential" or "simultaneous"
    information: str  # "perfect", "imperfect" or "unknown"
    interest: str  # "opposed", "shared" or "mixed"
    solver: str  # what play can be measured against, or "none"
    max_turns: int
    actions: int  # names; 0 = free text
    zero_sum: bool  # with forfeits and all
    # By ending: the returns it can have, or what it pays its agent and each other one when it
    # happens with the lowest stake.
    outcomes: Mapping[str, Mapping[str, Sequence[float]]]


def names() -> tuple[str, ...]:
    """The games that come with the package."""
    return tuple(sorted(path.name.removesuffix(".yaml") for path in _configs() if _is_yaml(path)))


def maker(
    name: str, settings: Mapping[str, Any] | None = None, packages: Sequence[str] = ()
) -> Maker:
    """The maker of a game.

    Args:
        name: see above.
        settings: replace those of the YAML, or go to the class.
        packages: of which a YAML may call code, besides this one.

    Raises:
        ConfigError: there is no such game, or its YAML cannot be read.
    """
    place, _, attribute = name.partition(":")
    if attribute:
        if place.endswith(".py"):
            return Maker(name, dict(settings or {}), tuple(packages))
        return Maker(f"{place}.{attribute}", dict(settings or {}), (place.split(".")[0], *packages))
    config = {**_config(name), **(settings or {})}
    return Maker(config.pop(TARGET), config, tuple(packages))


def build(
    name: str, settings: Mapping[str, Any] | None = None, packages: Sequence[str] = ()
) -> TextGame:
    """A fresh game; see `maker`."""
    return maker(name, settings, packages)()


def entry(game: TextGame) -> Entry:
    """The facts of a game."""
    moves, information, solver = "sequential", "unknown", "none"
    if isinstance(game, OpenSpielGame):
        kind = game.spiel_game.get_type()
        simultaneous = kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
        information = "perfect" if perfect else "imperfect"
        matrix = isinstance(game.spiel_game, pyspiel.MatrixGame)
        solver = "exact NashConv" if matrix else SOLVERS.get(kind.short_name, "none")
    else:
        game.reset(seed=0)
        simultaneous = len(game.acting()) > 1
    if simultaneous:
        moves = "simultaneous"
    return Entry(
        name=game.name,
        players=game.scoring.agents,
        moves=moves,
        information=information,
        interest=game.scoring.interest,
        solver=solver,
        max_turns=game.max_turns,
        actions=len(game.actions),
        zero_sum=game.zero_sum,
        outcomes=_outcomes(game),
    )


def describe() -> list[Entry]:
    """The facts of all games that come with the package, by name."""
    return [entry(build(name)) for name in names()]


def _outcomes(game: TextGame) -> dict[str, dict[str, list[float]]]:
    scoring, table = game.scoring, game.table
    outcomes: dict[str, dict[str, list[float]]] = {}
    for outcome in (Outcome.WIN, Outcome.LOSS, Outcome.DRAW):
        if rules := scoring.endings.get(outcome):
            returns = sorted({table.ending(outcome, value) for value in rules})
            outcomes[outcome.value] = {"returns": returns}
    payoffs = {fault.value: table.fault(fault) for fault in sorted(FORFEITS)}
    if table.truncated is not None:
        payoffs[Outcome.TRUNCATED.value] = table.truncated
    for name, payoff in payoffs.items():
        stake = min(scoring.stakes)
        earned = [stake if scoring.pays == "points" else 0.0] * scoring.agents
        own, *others = table.settle({0: payoff}, earned, {0: stake}, scoring)
        outcomes[name] = {"own": [own], "others": others[:1]}
    return outcomes


def _configs() -> list[Any]:
    return list((files(OURS) / "configs" / "game").iterdir())


def _is_yaml(path: Any) -> bool:
    return path.name.endswith(".yaml")


def _config(name: str) -> dict[str, Any]:
    """The mapping in a YAML, with its target checked for presence."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"no file {name!r}; give the path of a game's YAML")
    else:
        known = {path.name.removesuffix(".yaml"): path for path in _configs() if _is_yaml(path)}
        if name not in known:
            raise ConfigError(
                f"unknown game {name!r}; {nearest(name, known)} (a game of your own is named "
                "my_pkg.my_game:MyGame, my_game.py:MyGame or my_game.yaml)"
            )
        path = known[name]
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not isinstance(config.get(TARGET), str):
        raise ConfigError(
            f"{path} must be a mapping with {TARGET}, the class that makes the game, for example "
            f"{TARGET}: marl_llm.games.kuhn.KuhnPoker"
        )
    return config


def _call(target: str, settings: Mapping[str, Any], packages: Sequence[str]) -> Any:
    """Call a target with its settings, nested targets first."""
    called = _find(target, packages)
    accepted = inspect.signature(called).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for key in settings:
        if key not in accepted and not open_ended:
            raise ConfigError(f"{target} has no setting {key!r}; {nearest(key, accepted)}")
    given = {key: _made(value, packages) for key, value in settings.items()}
    missing = [
        key
        for key, p in accepted.items()
        if p.default is p.empty
        and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        and key not in given
    ]
    if missing:
        raise ConfigError(f"{target} needs the settings {', '.join(missing)}; give them in a YAML")
    return called(**given)


def _made(value: Any, packages: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if TARGET in value:
            rest = {key: part for key, part in value.items() if key != TARGET}
            return _call(value[TARGET], rest, packages)
        return {key: _made(part, packages) for key, part in value.items()}
    if isinstance(value, list):
        return [_made(part, packages) for part in value]
    return value


def _find(target: str, packages: Sequence[str]) -> Callable[..., Any]:
    """The class or function that a target names."""
    path, _, attribute = target.rpartition(":")
    if path:
        module = _module_of_file(path)
    else:
        path, _, attribute = target.rpartition(".")
        module = module_of(target, packages)
    found = vars(module).get(attribute)
    if not callable(found):
        makers = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"{path} has no {attribute!r} to call; {nearest(attribute, makers)}")
    return found


def _module_of_file(path: str) -> ModuleType:
    """A file as a module called by its stem, found again by pickle."""
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigError(f"no file {path!r}; give the path of a Python file with a game in it")
    name = file.stem
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    if known is not None:
        raise ConfigError(
            f"{path!r} would be a second module called {name!r}, beside {known.__file__}; rename it"
        )
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} fails on import: {type(error).__name__}: {error}") from error
    return module
