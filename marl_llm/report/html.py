"""``report.html``: everything about a run in one file that opens anywhere and asks no network.

Made from the run folder alone: ``config.yaml``, ``metrics.jsonl``, ``summary.json``, ``episodes/``
and ``policies/update_000040.json``, which holds the action probabilities of all exactly solved
games:

    {game: {"players": 2, "table": {key: {"observation": text, "model": {action: p},
                                          "nash": {action: p}, "reach": p}}}}

What must be readable without scripts (result, table, configuration) is written here as HTML;
curves, policies and games (`replays.py`) travel as one JSON block that ``page.js`` and ``games.js``
draw with DOM calls. Whatever
a model or a user wrote is escaped on the first way and set as text on the second, so it is never
markup; a content policy with the script's own hash stands behind that.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_llm.errors import CheckpointError
from marl_llm.report import disclosure
from marl_llm.report.alarms import WINDOW, alarms
from marl_llm.report.episodes import episode_files, read_episodes
from marl_llm.report.metrics import Row, Shown, read, replace_text, series, short, shown
from marl_llm.report.replays import advantage_scale, replays, spread
from marl_llm.report.summary import (
    changes,
    duration,
    headline,
    metric_range,
    read_summary,
    references,
)

REPORT_FILE = "report.html"
CONFIG_FILE = "config.yaml"
POLICIES_FOLDER = "policies"
INCIDENTS_FILE = "incidents.log"  # what broke over Ray and was put right, one line each
SCRIPTS = ("page.js", "games.js")  # together one script

MAX_POINTS = 600  # per curve; rows with an evaluation are never thinned out
SMALL_TABLE = 64  # states; a larger policy is shown at its first and last update only
MAX_TABLES = 12
MAX_STATES = 300  # per policy, the most reached


def write_report(run_dir: Path) -> Path:
    """Build ``report.html`` in a run folder from what lies there.

    Raises:
        CheckpointError: the folder holds no metrics, or one of its files is damaged.
    """
    rows = read(run_dir)
    summary = read_summary(run_dir)
    here = Path(__file__)
    parts = (here.with_name(name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = "\n".join(parts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = string.Template(here.with_name("page.html").read_text(encoding="utf-8"))
    text = page.substitute(
        title=html.escape(str(summary.get("experiment", run_dir.name))),
        subtitle=html.escape(_subtitle(run_dir, rows, summary)),
        alarms=_alarms(rows),
        tiles=_tiles(rows, summary),
        changes=_changes(rows),
        disclosure=_disclosure(run_dir, rows, summary),
        incidents=_incidents(run_dir),
        config=_config(run_dir),
        style=here.with_name("page.css").read_text(encoding="utf-8"),
        data=json_block(report_data(run_dir, rows, summary)),
        script=script,
        script_hash=f"sha256-{digest}",
    )
    path = run_dir / REPORT_FILE
    replace_text(path, text)
    return path


def json_block(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def report_data(run_dir: Path, rows: Sequence[Row], summary: Mapping[str, Any]) -> dict[str, Any]:
    """What `page.js` draws."""
    games, recorded = replays(run_dir)
    kept = thinned(rows, MAX_POINTS)
    keys = dict.fromkeys(key for row in kept for key in row if key != "update")
    charts = _charts(rows, summary)
    charted = {line["key"] for chart in charts for line in chart["lines"]}
    bounds = {f"{key}_{end}" for key in charted for end in ("low", "high")}
    return {
        "updates": [row["update"] for row in kept],
        "values": {key: [short(row.get(key)) for row in kept] for key in keys},
        "charts": charts,
        "rest": sorted(set(keys) - charted - bounds),
        "staleness": _staleness(rows),
        "policies": _policies(run_dir),
        "games": games,
        "recorded": recorded,
        "scale": advantage_scale(games),
    }


def thinned(rows: Sequence[Row], limit: int) -> list[Row]:
    """At most about `limit` rows, evenly spread, besides those with an evaluation and the last."""
    stride = -(-len(rows) // limit)
    return [
        row
        for index, row in enumerate(rows)
        if index % stride == 0
        or index == len(rows) - 1
        or any(key.startswith("evaluate/") for key in row)
    ]


def _charts(rows: Sequence[Row], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One chart per quantity, one line per role (or opponent), the headline's first."""
    judged = headline(rows)
    charts: list[dict[str, Any]] = []
    by_quantity = itertools.groupby(shown(rows), key=lambda item: item.quantity)
    for quantity, group in by_quantity:
        items = list(group)
        is_headline = judged in items
        title = quantity.label if len(items) > 1 or quantity.name == "score" else items[0].label
        lines = references(items[0], summary.get("references") or {}) if is_headline else {}
        charts.append(
            {
                "title": title,
                "unit": quantity.unit,
                "digits": quantity.digits,
                "better": quantity.better,
                "headline": is_headline,
                "references": [{"name": name, "value": value} for name, value in lines.items()],
                "lines": [_line(item) for item in items],
            }
        )
    return sorted(charts, key=lambda chart: not chart["headline"])


def _line(item: Shown) -> dict[str, str]:
    low, high = item.interval
    return {"key": item.key, "label": item.label, "low": low, "high": high}


def _staleness(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """How far behind the games were that each policy learned from; empty if none ever was.

    Per policy its lessons and, by updates behind, the share of them.
    """
    found: dict[str, Counter[int]] = {}
    for row in rows:
        for key, value in row.items():
            part, _, rest = key.partition("/")
            policy, _, quantity = rest.partition("/")
            if part == "store" and quantity == f"staleness_of_{policy}" and value is not None:
                found.setdefault(policy, Counter())[round(value)] += 1
    if not any(max(counts) > 0 for counts in found.values()):
        return []
    most = max(max(counts) for counts in found.values())
    return [
        {
            "policy": policy,
            "lessons": counts.total(),
            "shares": [short(counts[behind] / counts.total()) for behind in range(most + 1)],
        }
        for policy, counts in found.items()
    ]


def _policies(run_dir: Path) -> list[dict[str, Any]]:
    """The policies to compare with Nash, game by game, by update ascending."""
    named = (
        (re.fullmatch(r"update_(\d+)\.json", path.name), path)
        for path in (run_dir / POLICIES_FOLDER).glob("*.json")
    )
    files = sorted((int(match[1]), path) for match, path in named if match)
    games: dict[str, list[tuple[int, list[dict[str, Any]]]]] = {}
    for update, path in spread(files, MAX_TABLES):
        for game, states in _policy_tables(path).items():
            games.setdefault(game, []).append((update, states))
    found = []
    for game, tables in games.items():
        large = max(len(states) for _, states in tables) > SMALL_TABLE
        for update, states in spread(tables, 2) if large else tables:
            # The file's order is the solver's, which reads better than the keys' own.
            order = sorted(range(len(states)), key=lambda i: -(states[i]["reach"] or 0.0))
            reached = [states[i] for i in sorted(order[:MAX_STATES])]
            found.append({"game": game, "update": update, "total": len(states), "states": reached})
    return found


def _policy_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The states of each game's table, in the file's order."""
    try:
        games = json.loads(path.read_text(encoding="utf-8"))
        return {
            game: [_policy_state(key, entry) for key, entry in found["table"].items()]
            for game, found in games.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no file of policy tables ({type(error).__name__}: {error}); "
            "remove it to make the report without it"
        ) from error


def _policy_state(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    model, nash = entry["model"], entry.get("nash") or {}
    names = list(dict.fromkeys((*model, *nash)))
    actions = [
        {"name": name, "model": model.get(name, 0.0), "nash": nash.get(name, 0.0) if nash else None}
        for name in names
    ]
    # Total variation distance: the share of decisions here that would have to change.
    gap = sum(abs(a["model"] - a["nash"]) for a in actions) / 2 if nash else None
    reach = entry.get("reach")
    return {
        "key": key,
        "text": str(entry.get("observation", "")),
        "reach": short(reach),
        "gap": short(gap),
        "actions": [{**a, "model": short(a["model"]), "nash": short(a["nash"])} for a in actions],
    }


def _subtitle(run_dir: Path, rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    updates = summary.get("updates", rows[-1]["update"] if rows else 0)
    facts = [f"run {run_dir.resolve().name}"]
    facts += [str(summary["game"])] if summary.get("game") else []
    facts += [f"seed {summary['seed']}"] if "seed" in summary else []
    facts += [f"{updates} updates"]
    facts += [str(summary["status"])] if summary.get("status") else []
    return " · ".join(facts)


def _alarms(rows: Sequence[Row]) -> str:
    """What looks like a collapse; nothing where nothing does."""
    items = "".join(
        f"<li><b>{html.escape(alarm.name)}</b> {html.escape(alarm.says)}"
        f"<small> (mean of {WINDOW} updates; since update {alarm.since})</small></li>\n"
        for alarm in alarms(rows)
    )
    return items and f'<section class="alarms" aria-label="Alarms"><ul>\n{items}</ul></section>'


def _tiles(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """The result in a few large numbers."""
    tiles: list[tuple[str, str, str]] = []
    judged = headline(rows)
    if judged and judged.quantity.better != "neither":
        found = metric_range(rows, judged.key, judged.quantity.better)
        number = judged.quantity.number
        if found:
            updates, _ = series(rows, judged.key)
            age = "" if updates[-1] == rows[-1]["update"] else f"at update {updates[-1]}, "
            note = (
                f"{age}from {number(found['first'])}; "
                f"best {number(found['best'])} at update {found['best_update']}"
            )
            tiles.append((judged.label, judged.quantity.text(found["last"]), note))
    for item in shown(rows):
        _, values = series(rows, item.key)
        if item.quantity.name == "forfeit_share" and values:
            note = f"from {item.quantity.text(values[0])}"
            tiles.append((item.label, item.quantity.text(values[-1]), note))
    if summary.get("seconds") is not None:
        tiles.append(("training time", duration(summary["seconds"]), "min:s"))
    if summary.get("tokens_per_second") is not None:
        tiles.append(("speed", f"{summary['tokens_per_second']:,.0f}", "sampled tokens/s"))
    if summary.get("peak_memory_gb") is not None:
        tiles.append(("peak memory", f"{summary['peak_memory_gb']:.2f} GB", ""))
    return "\n".join(
        f'<div class="tile"><div class="label">{html.escape(label)}</div>'
        f'<div class="value">{html.escape(value)}</div>'
        f'<div class="note">{html.escape(note)}</div></div>'
        for label, value, note in tiles
    )


def _changes(rows: Sequence[Row]) -> str:
    """The body of the before/after table."""
    marked = {
        "better": '<td class="better">✓ better</td>',
        "worse": '<td class="worse">✗ worse</td>',
    }
    lines = [
        f'<tr><th scope="row">{html.escape(change.label)}</th>'
        f"<td>{html.escape(change.before)}</td><td>{html.escape(change.after)}"
        f"{'' if change.at is None else f' <small>(at {change.at})</small>'}</td>"
        f"{marked.get(change.verdict, f'<td>{change.verdict}</td>')}</tr>"
        for change in changes(rows)
    ]
    return "\n".join(lines) or '<tr><td colspan="4">Nothing was measured twice yet.</td></tr>'


def _disclosure(run_dir: Path, rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """What a paper should say of the run, as far as the run knows it."""
    files = episode_files(run_dir)
    games = read_episodes(files[max(files)]) if files else []
    config = disclosure.read_config(run_dir / CONFIG_FILE)
    return disclosure.as_html(disclosure.Run(config, rows, summary, games))


def _incidents(run_dir: Path) -> str:
    """What broke and was put right; nothing where nothing did."""
    path = run_dir / INCIDENTS_FILE
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.splitlines()
    if not lines:
        return ""
    count = "one incident" if len(lines) == 1 else f"{len(lines)} incidents"
    return (
        f'<section><details class="config"><summary>What broke and was put right: {count}'
        f"</summary><pre>{html.escape(text)}</pre></details></section>"
    )


def _config(run_dir: Path) -> str:
    path = run_dir / CONFIG_FILE
    if not path.exists():
        return "no config.yaml in the run folder"
    return html.escape(path.read_text(encoding="utf-8", errors="replace"))
