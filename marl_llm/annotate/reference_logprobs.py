"""How likely the sampled tokens were when training began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marl_llm.annotate.material import Material
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLogprobs:
    """Log-probs under the learner's reference, at the temperature of sampling.

    The learner holds a reference where a KL term or a loss needs one, or kl.keep asks for it.
    """

    signals: ClassVar[tuple[str, ...]] = ("reference_logprob",)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        pairs = [(turn.prompt_ids, turn.ids) for turn in material.turns]
        return {
            "reference_logprob": material.probe.reference_logprobs(pairs, material.temperatures)
        }
