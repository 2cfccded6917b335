"""Hindsight: how likely a turn's own words are once one knows how the episode ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marl_llm.agents.role import check_places
from marl_llm.annotate.contexts import endings, mean_logprobs, noted_prompts
from marl_llm.annotate.material import Material
from marl_llm.credit.segments import Array
from marl_llm.rollout.retelling import Retelling

PLACES = ("ending", "outcome", "points")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Mean log-prob of a turn's tokens behind a prompt that also tells the end.

    The note stands behind the user text of the turn. Its places are ``{ending}``, what the agent
    knows at the end, ``{outcome}`` in a word, and ``{points}``, its return. The temperature is that
    of sampling, so that the difference to the sampler's log-probs is the note's. A turn without
    tokens, or without room for the note, has no label.

    Source: HCAPO, arXiv 2603.08754, as notes on it say; the words are ours.
    """

    signals: ClassVar[tuple[str, ...]] = ("hindsight_logprob",)

    note: str = "In the end, you saw: {ending}\nIt ended for you with {outcome}, {points} points."

    def __post_init__(self) -> None:
        check_places("hindsight.note", self.note, PLACES)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        seen = endings(material)

        def note(row: int, telling: Retelling) -> str:
            agent = material.turns[row].observation.agent
            return self.note.format(
                ending=seen[row],
                outcome=telling.episode.outcomes[agent].value,
                points=f"{telling.episode.returns[agent]:g}",
            )

        prompts = noted_prompts(material, note)
        pairs = [(prompt, turn.ids) for prompt, turn in zip(prompts, material.turns, strict=True)]
        nats = mean_logprobs(material.reach.scorer, pairs, material.temperatures)
        return {"hindsight_logprob": nats}
