"""Ask all credit estimators about the games that a run has stored, and compare their answers.

  marl-llm credit compare RUNDIR      the newest stored games
    --update N                        those of another update
    --credit a,b                      only these rules
    --json FILE                       all figures, the matrices of correlations and signs too
    --picture FILE                    the matrix of rank correlations as a PNG

Correlation and signs are with the first row; "length" is the correlation with the length of the
reply, and the last columns say whose turns get how much of all credit, praise or blame.

A run keeps whole groups, at least run.episodes games, at each evaluation. "as trained" is the
credit that the run used, which saw all games of the update; the other rules see
the stored ones only. A rule with a memory starts without one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_llm.commands.credit_record import TRAINED, Record, Stored, chosen, record, stored
from marl_llm.commands.words import Words, read
from marl_llm.errors import ConfigError
from marl_llm.evaluate.estimators.agreement import Refusal, agreement, ask, of_turns, silence

KEYS = ("run", "update", "credit", "json", "picture")
MOST_AGENTS = 3  # with a column of their own
MOST_EPISODES = 8  # that are named


def run(words: Sequence[str]) -> int:
    """Compare."""
    options = read(words, "credit compare", keys=KEYS, names=True)
    folder, more = run_of(options)
    if more:
        raise ConfigError(f"credit compare: one word too many: {more[0]!r}")
    found = stored(folder, options.number("update", 0) if "update" in options.values else None)
    for key in ("json", "picture"):
        file = Path(options.values.get(key, "."))
        if not file.parent.is_dir():
            raise ConfigError(f"credit compare: there is no folder for {key}={file}")
    results = {
        policy: compare(found, policy, options.listed("credit")) for policy in found.policies
    }
    console = Console()
    for policy, result in results.items():
        _show(console, found, policy, result)
    if "json" in options.values:
        whole = {"version": 1, "run": str(found.path), "update": found.update, "policies": results}
        Path(options.values["json"]).write_text(json.dumps(whole, indent=1) + "\n")
    if "picture" in options.values:
        file = Path(options.values["picture"])
        for policy, result in results.items():
            named = file if len(results) == 1 else file.with_stem(f"{file.stem}_{policy}")
            _draw(result, _about(found, policy, result), named)
    return 0


def run_of(options: Words) -> tuple[str, tuple[str, ...]]:
    """The run folder, which is ``run=RUNDIR`` or the first plain word, and the other plain words.

    Raises:
        ConfigError: it is not there.
    """
    if "run" in options.values:
        return options.values["run"], options.names
    if not options.names:
        raise ConfigError(f"{options.command}: which run? give its folder, such as runs/NAME")
    return options.names[0], options.names[1:]


def compare(found: Stored, policy: str, names: Sequence[str]) -> dict[str, Any]:
    """What rules say of a policy's stored turns, as JSON.

    Args:
        found: a run and its games.
        policy: whose turns.
        names: of the rules, () = all.
    """
    kept = record(found, policy)
    wanted = [kept.own, *chosen(kept.rules, names, "credit compare")] if names else [*kept.rules]
    said, refused = ask({name: kept.rules[name] for name in wanted}, kept.batch)
    credit = {name: of_turns(answer, kept.batch) for name, answer in said.items()}
    if kept.trained is not None:
        credit = {TRAINED: kept.trained, **credit}
    if not credit:
        raise ConfigError(f"credit compare: {_reasons(refused)}")
    groups = {name: why for name, answer in said.items() if (why := silence(answer))}
    return {
        "own": kept.own,
        "games": len(found.games),
        "episodes": [game.episode.id for game in found.games],
        "played": found.played,
        "largest_group": _largest_group(kept),
        **agreement(credit, kept.batch),
        "silent": groups,
        "refused": {
            name: {"why": why.why, "signals": list(why.signals), "annotators": list(why.who)}
            for name, why in refused.items()
        },
    }


def _draw(result: Mapping[str, Any], about: str, file: Path) -> None:
    """The matrix of the rules that say something."""
    from marl_llm.report.agreement import draw_correlations

    loud = [i for i, name in enumerate(result["names"]) if name not in result["silent"]]
    if not loud:
        raise ConfigError("credit compare: every rule says 0 for every turn: nothing to draw")
    draw_correlations(
        [result["names"][i] for i in loud],
        [[result["correlation"][i][j] for j in loud] for i in loud],
        f"Rank correlation of credit, in hundredths\n{about}",
        file,
    )


def _reasons(refused: Mapping[str, Refusal]) -> str:
    return "; ".join(f"{name}: {refusal.why}" for name, refusal in refused.items())


def _largest_group(kept: Record) -> int:
    """Most stored games of one group."""
    pairs = np.unique(np.stack([kept.batch.group, kept.batch.episode]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max(initial=0))


def _about(found: Stored, policy: str, result: Mapping[str, Any]) -> str:
    return (
        f"{found.path}, update {found.update}, policy {policy}: "
        f"{result['turns']} turns of {result['games']} games"
    )


def _show(console: Console, found: Stored, policy: str, result: Mapping[str, Any]) -> None:
    console.print(_about(found, policy, result), highlight=False, markup=False, soft_wrap=True)
    for line in _warnings(result):
        console.print(Text(line, "yellow"))
    console.print()
    console.print(_table(result))
    for title, lines in _absent(result).items():
        if lines:
            console.print()
            console.print(Text(title, "bold"))
            table = Table.grid(padding=(0, 2))
            for who, names in lines.items():
                table.add_row(Text(who), Text(", ".join(names)))
            console.print(table)
    console.print()
    ids = result["episodes"]
    listed = ", ".join(map(str, ids[:MOST_EPISODES])) + ", ..." * (len(ids) > MOST_EPISODES)
    told = (
        f"Episodes {listed}; one of them turn by turn: marl-llm credit explain {found.path} NUMBER"
    )
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    console.print()


def _warnings(result: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know before the figures."""
    turns, games = result["turns"], result["games"]
    if turns > 2 and games < 100:
        of = f" of {result['played']} that were played" if result["played"] else ""
        yield (
            f"Only {games} games{of} are stored: with {turns} turns a correlation below "
            f"{1.96 / math.sqrt(turns - 1):.2f} is within chance, and more so since turns of one "
            "game hang together. A run with a larger run.episodes stores more."
        )
    if result["largest_group"] < 2:
        yield (
            "No two of them are of one group, so rules that compare within groups have nothing to "
            "compare; runs with rollout.group_size above 1 store whole groups."
        )


def _table(result: Mapping[str, Any]) -> Table:
    """One row per rule that says something: the first, and the others by their likeness to it."""
    names, agents = result["names"], result["agents"]
    table = Table(box=None, pad_edge=False)
    table.add_column("rule", no_wrap=True)
    few = len(agents) <= MOST_AGENTS
    for column in (
        "correlation",
        "same sign",
        "zeros",
        "length",
        *(agents if few else ("most on",)),
    ):
        table.add_column(column, justify="right")
    like = result["correlation"][0]
    rows = [i for i, name in enumerate(names) if name not in result["silent"]]
    rows.sort(key=lambda i: (i > 0, -2.0 if like[i] is None else -like[i], names[i]))
    for i in rows:
        part = result["shares"][i]
        if few:
            falls = [_percent(x) for x in part]
        else:
            most = max(range(len(agents)), key=lambda k: part[k] or 0.0)
            falls = [f"{agents[most]} {_percent(part[most])}"]
        table.add_row(
            Text(names[i], "bold" if names[i] in (TRAINED, result["own"]) else ""),
            _signed(like[i]),
            _percent(result["sign"][0][i]),
            _percent(result["zeros"][i]),
            _signed(result["length"][i]),
            *falls,
        )
    return table


def _absent(result: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Rules that are not in the table: by title, then by reason."""
    silent: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    refusing: dict[str, list[str]] = {}
    for name, why in result["silent"].items():
        silent.setdefault(why, []).append(name)
    for name, refusal in result["refused"].items():
        if refusal["annotators"]:
            lacking.setdefault(", ".join(refusal["annotators"]), []).append(name)
        else:
            refusing.setdefault(refusal["why"], []).append(name)
    return {
        "0 for every turn": silent,
        "not applicable: stored games lack what this attaches": dict(sorted(lacking.items())),
        "refused": refusing,
    }


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
