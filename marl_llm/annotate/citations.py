"""Citations: which of its turns an agent's last one rests on, as a judge reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.asking import Asking, majority
from marl_llm.annotate.material import Material
from marl_llm.annotate.transcripts import listed, own_turns
from marl_llm.credit.segments import Array

NUMBERS = re.compile(r"\d{1,6}(?:, ?\d{1,6})*")

QUESTION = """These are the turns of {agent} in one episode.

{turns}

On which earlier turns does turn {last} rest: which does it name, quote, or need? Think briefly, \
then end with <verdict>...</verdict>, which holds their numbers, such as 1, 3, or the word none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citations(Asking):
    """Marks the turns that the last turn of the same agent in the episode rests on.

    One question per agent and episode. With several samples a turn is cited if more than half of
    the readable verdicts name it; without any, the agent's labels are missing. The last turn, which
    cites, is not cited, so an agent with one turn is asked nothing.

    Source: our reading of Self-Credit, whose policy cites for itself.
    """

    signals: ClassVar[tuple[str, ...]] = ("cited",)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        cited = np.zeros(len(material.turns))
        asked = [rows for rows in own_turns(material) if len(rows) > 1]
        questions = []
        for rows in asked:
            turns = [material.turns[row] for row in rows]
            agent = turns[0].observation.agent
            questions.append(QUESTION.format(agent=agent, turns=listed(turns), last=len(turns)))
        verdicts = self.ask(material.reach.judge, questions, material.rng)
        for rows, said in zip(asked, verdicts, strict=True):
            read = [read_numbers(text, len(rows) - 1) for text in said]
            numbers = majority([found for found in read if found is not None])
            if numbers is None:
                cited[rows] = np.nan
            else:
                cited[[rows[number - 1] for number in numbers]] = 1.0
        return {"cited": cited}


def read_numbers(verdict: str, most: int) -> frozenset[int] | None:
    """The numbers from 1 to `most` that a verdict names; None = it cannot be read."""
    if verdict.lower() == "none":
        return frozenset()
    if not NUMBERS.fullmatch(verdict):
        return None
    numbers = frozenset(int(number) for number in verdict.split(","))
    return numbers if all(1 <= number <= most for number in numbers) else None
