"""Action values by playing on: behind the action as it was, and with the action drawn anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.credit import checks
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionValues:
    """Q of the action taken, and the mean of Q over actions that the policy draws in its place.

        Q ≈ mean of K returns from behind the turn,   Σ π Q ≈ mean of K returns from in front of it

    Everything before the turn is as it was in the episode, what others did at the same moment
    included if they stand before it there. Behind an agent's last turn Q is what it got.
    """

    signals: ClassVar[tuple[str, ...]] = ("action_value", "action_value_mean")

    count: int = 4  # continuations on either side of a turn, K

    def __post_init__(self) -> None:
        checks.within("action_values.count", self.count, 1)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        rows = np.arange(len(material.batch))
        return {
            "action_value": material.replays(rows, self.count, after=True).mean(axis=1),
            "action_value_mean": material.replays(rows, self.count).mean(axis=1),
        }
