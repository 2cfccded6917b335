"""List the games, or check that a game keeps what every game must keep.

  marl-llm games [--json]
  marl-llm games check [NAME ...] [--json] [seeds=N] [episodes=N]

NAME is a game of the list, module:Class, path/to/file.py:Class or path/to/game.yaml; without a name
every game of the list is checked. The exit code is 1 when a check failed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_llm.commands.words import Words, read
from marl_llm.errors import ConfigError, nearest

STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}


def run(words: Sequence[str]) -> int:
    """List or check."""
    keys, flags = ("seeds", "episodes"), ("json",)
    options = read(words, "games", keys=keys, flags=flags, names=True)
    if not options.names:
        if options.values:
            raise ConfigError("games: seeds and episodes belong to `games check`")
        return _list(as_json="json" in options.flags)
    verb, *names = options.names
    if verb != "check":
        raise ConfigError(f"games: unknown word {verb!r}; {nearest(verb, ('check',))}")
    return _check(names, options)


def _list(*, as_json: bool) -> int:
    from marl_llm.games.catalog import describe

    entries = describe()
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("game", "players", "moves", "information", "interest", "measured by"):
        table.add_column(column)
    table.add_column("turns", justify="right")
    for entry in entries:
        table.add_row(
            entry.name,
            str(entry.players),
            entry.moves,
            entry.information,
            entry.interest,
            entry.solver if entry.solver != "none" else "matches",
            str(entry.max_turns),
        )
    Console().print(table)
    return 0


def _check(names: Sequence[str], options: Words) -> int:
    from marl_llm.games import catalog
    from marl_llm.games.check import check_game

    makers = {name: catalog.maker(name) for name in names or catalog.names()}
    seeds = tuple(range(options.number("seeds", 3, least=1)))
    episodes = options.number("episodes", 200, least=1)
    as_json = "json" in options.flags
    console = Console(stderr=as_json)
    found: dict[str, list[dict[str, str]]] = {}
    failed = False
    for name, make in makers.items():
        with console.status(f"checking {name}"):
            findings = check_game(
                make,
                seeds=seeds,
                episodes=episodes,
                make_without_list=make.without_list(),
            )
        failed |= any(finding.status == "failed" for finding in findings)
        found[name] = [asdict(finding) for finding in findings]
        if not as_json:
            console.print(_findings(name, found[name]))
    if as_json:
        print(json.dumps(found, indent=2))
    return 1 if failed else 0


def _findings(name: str, findings: Sequence[dict[str, str]]) -> Table:
    failed = sum(finding["status"] == "failed" for finding in findings)
    table = Table(
        title=f"{name}: " + (f"{failed} checks failed" if failed else "all checks passed"),
        title_justify="left",
        title_style="bold red" if failed else "bold green",
        box=None,
        pad_edge=False,
        show_header=False,
    )
    for finding in findings:
        status = finding["status"]
        # Text: what a game says may look like markup.
        table.add_row(finding["check"], Text(status, STYLES[status]), Text(finding["message"]))
    return table
