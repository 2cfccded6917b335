"""The comparison of credit estimators as a Markdown table and as a picture.

Both read the JSON of `marl-llm credit bench`, so that an old file can be shown again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Result = Mapping[str, Any]

SHOWN = ("pairs", "leak", "cosine")
PANELS = {  # measure -> what it says, the value that is best, the value that is drawn worst
    "pairs": ("pairs: turns\nranked right", 1.0, 0.5),
    "leak": ("leak: credit on turns\nthat cannot matter", 0.0, 1.0),
    "cosine": ("cosine with the\ntrue gradient", 1.0, 0.0),
}
LEGEND = "Darker is better. Grey: refused, or nothing to measure."
LEAST = 3  # truths that a panel is drawn wide enough for, so that its title fits
INK, MUTED, EMPTY = "#1f2328", "#59636e", "#f2f4f6"
DPI = 130


def ranked(result: Result) -> list[str]:
    """Names of estimators, the controls first, the others by their mean share of right pairs."""
    cells = result["cells"]
    controls = [name for name in cells if name not in result["estimators"]]
    scores = {name: _mean(cells[name], "pairs") for name in result["estimators"]}
    return controls + sorted(scores, key=lambda name: (-scores[name], name))


def _mean(cells: Mapping[str, Any], measure: str) -> float:
    values = [value(cell, measure) for cell in cells.values()]
    said = [x for x in values if x is not None]
    return sum(said) / len(said) if said else -1.0


def value(cell: Mapping[str, Any], measure: str) -> float | None:
    """A measure of a cell; None where there is none."""
    found = cell.get("measures", {}).get(measure)
    return None if found is None else found["value"]


def markdown(result: Result) -> str:
    """One row per estimator, one column per truth, and what was refused below."""
    truths = list(result["truths"])
    dummies = [truth for truth in truths if value(result["cells"]["oracle"][truth], "dummy") == 0]
    settings = result["settings"]
    lines = [
        f"Pairs ranked right / leak / cosine; {settings['groups']} groups of {settings['size']} "
        f"episodes, seed {settings['seed']}.",
        "Dummy agent: its credit over that of the others "
        f"({', '.join(dummies) or 'there is none'}).",
        "Cost: on the first truth that is not refused.",
        "",
        "| estimator | " + " | ".join(truths) + " | dummy agent | cost per episode |",
        "|---" * (len(truths) + 3) + "|",
    ]
    for name in ranked(result):
        cells = result["cells"][name]
        shown = " | ".join(_short(cells[truth]) for truth in truths)
        dummy = " / ".join(_number(value(cells[truth], "dummy")) for truth in dummies) or "–"
        lines.append(f"| {name} | {shown} | {dummy} | {_cost(cells.values())} |")
    notes = _refusals(result)
    return "\n".join([*lines, "", _width(result), *(["", *notes] if notes else [])]) + "\n"


def _short(cell: Mapping[str, Any]) -> str:
    if "measures" not in cell:
        return "refused" if "refused" in cell else "failed"
    return " / ".join(_number(value(cell, name)) for name in SHOWN)


def _number(x: float | None) -> str:
    """Two digits, without the 0 in front of the point; a dash where there is nothing to measure."""
    if x is None:
        return "–"
    text = f"{x:.2f}".replace("-0.00", "0.00")
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text


def _cost(cells: Any) -> str:
    """What the first truth that was not refused cost per episode."""
    cost = next((cell["cost"] for cell in cells if "cost" in cell), None)
    if cost is None:
        return "–"
    return ", ".join(_counted(x, name) for name, x in cost.items() if x) or "nothing"


def _counted(x: float, name: str) -> str:
    """So many of what has a plural name; without its s where there is one."""
    number = f"{x:.3g}"
    return f"{number} {name.removesuffix('s') if number == '1' else name}"


def _width(result: Result) -> str:
    """How wide the intervals are."""
    halves: dict[str, list[float]] = {name: [] for name in SHOWN}
    for cells in result["cells"].values():
        for cell in cells.values():
            for name in SHOWN:
                found = cell.get("measures", {}).get(name)
                if found is not None:
                    halves[name].append((found["high"] - found["low"]) / 2)
    widths = [f"{name} ±{np.median(half):.2f}" for name, half in halves.items() if half]
    return f"Half-width of the 95 % intervals, in the median: {', '.join(widths)}."


def _refusals(result: Result) -> list[str]:
    """Why cells are empty, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, cells in result["cells"].items():
        for truth, cell in cells.items():
            why = cell.get("refused") or cell.get("failed")
            if why:
                reasons.setdefault((name, why), []).append(truth)
    return [f"- {name} on {', '.join(on)}: {why}" for (name, why), on in reasons.items()]


def draw(result: Result, path: Path) -> Path:
    """Draw pairs, leak and cosine of all estimators on all truths.

    Args:
        result: of the bench.
        path: the PNG to write.
    """
    names, truths = ranked(result), list(result["truths"])
    width = 0.55 * max(len(truths), LEAST) + 0.3
    size = (2.2 + len(PANELS) * width, 2.0 + 0.21 * len(names))
    figure = Figure(figsize=size, dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    for axes, measure in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        _panel(axes, result, measure, names, truths)
    figure.supxlabel(LEGEND, x=0.01, ha="left", fontsize=8, color=MUTED)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _panel(
    axes: Axes, result: Result, measure: str, names: Sequence[str], truths: Sequence[str]
) -> None:
    what, best, worst = PANELS[measure]
    grid = np.array([[value(result["cells"][name][truth], measure) for truth in truths]
                     for name in names], dtype=np.float64)  # fmt: skip
    good = np.clip((grid - worst) / (best - worst), 0.0, 1.0)
    axes.set_facecolor(EMPTY)
    axes.imshow(np.ma.masked_invalid(good), cmap="YlGnBu", vmin=0, vmax=1.25, aspect="auto")
    for row, column in zip(*np.nonzero(np.isfinite(grid)), strict=True):
        axes.annotate(
            _number(grid[row, column]),
            (column, row),
            ha="center",
            va="center",
            fontsize=6.5,
            color="white" if good[row, column] > 0.75 else INK,
        )
    axes.set_title(what, loc="left", fontsize=9, color=INK)
    axes.set_xticks(range(len(truths)), truths, rotation=35, ha="left", fontsize=8, color=MUTED)
    axes.set_yticks(range(len(names)), names, fontsize=7.5, color=INK)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
