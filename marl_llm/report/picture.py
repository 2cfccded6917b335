"""The headline curve as a PNG for a README: NashConv, or a score and its band, over updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from marl_llm.errors import CheckpointError
from marl_llm.report.metrics import Row, Shown, read, series
from marl_llm.report.summary import headline, read_summary, references

PICTURE_FILE = "curve.png"
SIZE_INCHES = (8.0, 4.2)
DPI = 160
INK, MUTED, GRID = "#1f2328", "#59636e", "#e4e8ec"
RUN_COLOURS = ("#0b62a8", "#c2570c", "#2f7d4f", "#7a4fa3", "#8a6d00")  # apart for colour-blind eyes


def draw_headline(run_dirs: Sequence[Path], path: Path) -> Path:
    """Draw the headline metric of one run, or of several seeds together.

    Reference lines come from the first run's summary (`references`); zero, or an even score, is
    always among them.

    Args:
        run_dirs: at least one run folder, all with the same headline metric.
        path: the PNG to write.

    Raises:
        CheckpointError: a run has nothing to draw, or the runs were judged by different metrics.
    """
    runs = [(run_dir, read(run_dir)) for run_dir in run_dirs]
    item = _common_headline(runs)
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    summaries = [read_summary(run_dir) for run_dir, _ in runs]
    for index, ((run_dir, rows), summary) in enumerate(zip(runs, summaries, strict=True)):
        label = f"seed {summary['seed']}" if "seed" in summary else run_dir.name
        _draw_run(axes, rows, item, RUN_COLOURS[index % len(RUN_COLOURS)], label)
    _draw_references(axes, item, summaries[0].get("references") or {})
    _dress(axes, item, str(summaries[0].get("experiment", run_dirs[0].name)), len(runs))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _common_headline(runs: Sequence[tuple[Path, Sequence[Row]]]) -> Shown:
    found: dict[str, Shown] = {}
    for run_dir, rows in runs:
        item = headline(rows)
        if item is None or not series(rows, item.key)[0]:
            raise CheckpointError(
                f"{run_dir} has no NashConv and no score to draw; expected a run with evaluations"
            )
        found[item.key] = item
    if len(found) > 1:
        raise CheckpointError(
            f"these runs are judged by different metrics ({', '.join(found)}); draw them apart"
        )
    return next(iter(found.values()))


def _draw_run(axes: Axes, rows: Sequence[Row], item: Shown, colour: str, label: str) -> None:
    updates, values = series(rows, item.key)
    low_key, high_key = item.interval
    band = [
        (row["update"], row[low_key], row[high_key])
        for row in rows
        if row.get(low_key) is not None and row.get(high_key) is not None
    ]
    if band:
        x, low, high = zip(*band, strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(updates, values, color=colour, linewidth=2.2, label=label, solid_capstyle="round")
    axes.plot(updates[-1:], values[-1:], "o", color=colour, markersize=6)
    axes.annotate(
        item.quantity.number(values[-1]),
        (updates[-1], values[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=11,
        fontweight="bold",
        annotation_clip=False,
    )


def _draw_references(axes: Axes, item: Shown, given: Mapping[str, float]) -> None:
    for name, value in references(item, given).items():
        axes.axhline(value, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(
            f"{name}  {value:.3g}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            color=MUTED,
            fontsize=9.5,
        )


def _dress(axes: Axes, item: Shown, experiment: str, runs: int) -> None:
    """Title, labels, grid and limits; the text sizes suit a README column of 800 pixels."""
    better = item.quantity.better
    title = f"{experiment}: {item.label} ({better} is better)"
    axes.set_title(title, loc="left", color=INK, fontsize=13, pad=12)
    axes.set_xlabel("updates", color=INK, fontsize=11)
    axes.set_ylabel(item.label, color=INK, fontsize=11)
    axes.tick_params(colors=MUTED, labelsize=10, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.margins(x=0.02)
    if item.quantity.name == "nash_conv":
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if runs > 1:
        axes.legend(frameon=False, fontsize=10, labelcolor=INK, ncols=runs, loc="best")
