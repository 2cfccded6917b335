"""The slow way: for every estimator a plain Python loop, which its tests compare it with.

A test module in `tests/credit` that has one says so in

    PLAIN = {"grpo": plain}  # by name of the YAML; plain(estimator, batch) -> advantage

They are found in a checkout; where the package is installed without one there are none. Chance in a
loop begins with 0, and its replays are those of `credit.drawn`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import marl_llm
from marl_llm.credit import Estimator
from marl_llm.credit.batch import TurnBatch

Loop = Callable[[Estimator, TurnBatch], np.ndarray]  # advantages, [N] or [M] as the card says

FOLDER = Path(marl_llm.__file__).parents[1] / "tests" / "credit"


def find(folder: Path = FOLDER) -> dict[str, Loop]:
    """The loops of a folder of tests by the name of the YAML that they compute.

    Args:
        folder: one that is not there, or whose tests cannot be imported for want of their tools,
            has none.
    """
    found: dict[str, Loop] = {}
    for path in sorted(folder.glob("test_*.py")):
        if "\nPLAIN" in path.read_text(encoding="utf-8"):
            found |= _loops(path)
    return found


def _loops(path: Path) -> dict[str, Loop]:
    spec = importlib.util.spec_from_file_location(f"marl_llm_loops.{path.stem}", path)
    assert spec is not None and spec.loader is not None, "it is a Python file"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # as an import does
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("pytest", "hypothesis"):  # an installation without the tests' tools
            raise
        return {}
    return dict(module.PLAIN)


def outcome(
    batch: TurnBatch,
    *,
    reward: np.ndarray | None = None,
    by: Sequence[str] = ("group", "agent"),
    scale: bool = True,
    ddof: int = 1,
    epsilon: float = 1e-6,
) -> np.ndarray:
    """The number that many rules begin with, GRPO's, as such a loop, [N].

    Args:
        batch: N turns.
        reward: in the place of the batch's own, [N].
        by: columns whose equal values make a cell.
        scale: divide by the standard deviation; False = Dr. GRPO.
        ddof: of that.
        epsilon: added to that.
    """
    paid = batch.reward if reward is None else reward
    columns, lengths = [batch.column(name) for name in by], batch.lengths
    total: dict[tuple[int, int], float] = {}
    cells: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + paid[i]
        if lengths[i]:
            cells.setdefault(tuple(column[i] for column in columns), set()).add(me)
    worth = {}
    for cell, members in cells.items():
        earned = [total[me] for me in members]
        mean = sum(earned) / len(earned)
        squares = sum((x - mean) ** 2 for x in earned)
        spread = (squares / max(len(earned) - ddof, 1)) ** 0.5 + epsilon if scale else 1.0
        flat = max(earned) == min(earned)
        for me in members:
            worth[cell, me] = 0.0 if flat else (total[me] - mean) / spread
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i]:
            cell = tuple(column[i] for column in columns)
            out[i] = worth[cell, (batch.episode[i], batch.agent[i])]
    return out
