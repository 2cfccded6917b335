"""The settings, and the step, that estimators share whose last step is a whitening over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks
from marl_llm.credit.card import Card
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Whitened:
    """Whether, and how, the advantage is put in units of its spread over the sampled tokens."""

    card: ClassVar[Card]

    whiten: bool = False  # (A - mean) / √(variance + ε) over the sampled tokens of the batch
    ddof: int = 1  # of that variance
    epsilon: float = 1e-8  # added to that variance

    def __post_init__(self) -> None:
        name = self.card.name
        checks.one_of(f"{name}.ddof", self.ddof, (0, 1))
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def whitened(self, advantage: Array, tokens: Array) -> Array:
        """The advantage whitened, if that is asked for.

        Args:
            advantage: [N] or [M].
            tokens: how many tokens each stands for, 0 = counted nowhere, [N] or [M] float.
        """
        if not self.whiten:
            return advantage
        return baselines.whiten(advantage, tokens, ddof=self.ddof, epsilon=self.epsilon)
