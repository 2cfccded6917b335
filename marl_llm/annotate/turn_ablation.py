"""Turn ablation: what an agent gets when one of its turns is drawn anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.credit import checks
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAblation:
    """The mean return of K continuations from in front of the turn.

    A game waits for a move, so a turn cannot be left out of it: what the policy itself would draw
    there stands in its place.
    """

    signals: ClassVar[tuple[str, ...]] = ("ablated_return",)

    count: int = 4  # continuations per turn, K

    def __post_init__(self) -> None:
        checks.within("turn_ablation.count", self.count, 1)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        rows = np.arange(len(material.batch))
        return {"ablated_return": material.replays(rows, self.count).mean(axis=1)}
