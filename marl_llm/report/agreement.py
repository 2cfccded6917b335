"""How alike credit rules are, as a picture: the matrix of their rank correlations.

It is drawn from plain numbers, so that an old file of `credit compare` can be drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

INK, MUTED, EMPTY = "#1f2328", "#59636e", "#f2f4f6"
# From opposite over unrelated to alike; as dark at both ends, told apart by colour-blind eyes.
SHADES = LinearSegmentedColormap.from_list("agreement", ["#c2570c", "#ffffff", "#0b62a8"])
CELL = 0.34  # inches
DPI = 130


def draw_correlations(
    names: Sequence[str], matrix: Sequence[Sequence[float | None]], title: str, path: Path
) -> Path:
    """Draw the matrix, rules that agree beside each other.

    Args:
        names: of the K rules.
        matrix: [K][K] rank correlations, None where there is none.
        title: above it.
        path: the PNG to write.
    """
    values = np.array([[np.nan if x is None else x for x in row] for row in matrix], dtype=float)
    order = beside_their_like(values)
    values = values[np.ix_(order, order)]
    side = CELL * len(names)
    figure = Figure(figsize=(side + 2.0, side + 1.0), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor=EMPTY)
    image = axes.imshow(values, cmap=SHADES, vmin=-1, vmax=1)
    labels = [names[i] for i in order]
    axes.set_xticks(range(len(labels)), labels, rotation=90, color=INK, fontsize=9)
    axes.set_yticks(range(len(labels)), labels, color=INK, fontsize=9)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if abs(value) > 0.5 else MUTED
            text = f"{100 * value:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=6.5)
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02).outline.set_visible(False)
    axes.set_title(title, loc="left", color=INK, fontsize=11, pad=10)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)  # whatever the names need
    return path


def beside_their_like(matrix: np.ndarray) -> list[int]:
    """An order of the rows in which those that agree are neighbours.

    Args:
        matrix: [K, K] correlations, NaN where there is none.
    """
    if len(matrix) < 3:
        return list(range(len(matrix)))
    distance = 1.0 - np.nan_to_num(matrix)
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    return leaves_list(tree).tolist()
