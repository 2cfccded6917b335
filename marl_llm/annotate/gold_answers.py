"""Gold answers: how likely the policy finds the right answer before and after each turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.answers import answer_logprobs
from marl_llm.annotate.contexts import told
from marl_llm.annotate.material import Material
from marl_llm.credit import checks
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldAnswers:
    """Mean log-prob of the right answer's tokens, teacher-forced under the policy of now.

    The right answer comes from the game (`TextGame.answer`), as the action that it should be. Where
    a game knows none, and where a context leaves no room, the label is missing.

    Source: the probe of IGPO, arXiv 2510.14967.
    """

    signals: ClassVar[tuple[str, ...]] = ("gold_before", "gold_after")

    temperature: float = 1.0  # of the softmax

    def __post_init__(self) -> None:
        checks.within("gold_answers.temperature", self.temperature, 1e-6)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        right = [telling.answer for _, _, telling in told(material)]
        asked = [(row, answer) for row, answer in enumerate(right) if answer is not None]
        before, after = np.full(len(right), np.nan), np.full(len(right), np.nan)
        if asked:
            rows = [row for row, _ in asked]
            before[rows], after[rows] = answer_logprobs(material, asked, self.temperature)
        return {"gold_before": before, "gold_after": after}
