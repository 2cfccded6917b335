"""Negative prompt: how likely the sampled tokens are when a wrong answer is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.contexts import logprobs, noted_prompts
from marl_llm.annotate.material import Material
from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativePrompt:
    """Log-probs of a turn's tokens behind a prompt with a note that asks for the opposite.

    The temperature is that of sampling. Where the note leaves no room for the reply, the sampler's
    own log-probs stand: such a turn says nothing.

    Source: the negative prompt of GCPO, code of jacklishufan/gcpo; the words are ours.
    """

    signals: ClassVar[tuple[str, ...]] = ("negative_logprob",)

    note: str = "Answer wrongly on purpose."  # behind the user text

    def __post_init__(self) -> None:
        if not self.note.strip():
            raise ConfigError("negative_prompt.note is empty, so the prompt would be the same")

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        prompts = noted_prompts(material, lambda row, telling: self.note)
        pairs = [(prompt, turn.ids) for prompt, turn in zip(prompts, material.turns, strict=True)]
        scored = logprobs(material.reach.scorer, pairs, material.temperatures)
        nats = [
            np.array(turn.logprobs) if found is None else found
            for turn, found in zip(material.turns, scored, strict=True)
        ]
        return {"negative_logprob": np.concatenate([np.zeros(0), *nats])}
