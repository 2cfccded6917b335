"""What the policy itself says of the tokens that it sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """Entropy, certainty, logit, collision and log-prob at every sampled token.

    One pass of the learner's own model over the turns, before the update and without gradient, at
    the temperature of sampling. The logit alone is the model's own, before temperature.
    """

    signals: ClassVar[tuple[str, ...]] = (
        "token_id",
        "old_logprob",
        "entropy",
        "certainty",
        "logit",
        "collision",
    )

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        pairs = [(turn.prompt_ids, turn.ids) for turn in material.turns]
        ids = [token for turn in material.turns for token in turn.ids]
        return {
            "token_id": np.array(ids, dtype=np.int64),
            **material.probe.token_statistics(pairs, material.temperatures),
        }
