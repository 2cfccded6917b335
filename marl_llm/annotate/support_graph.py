"""A support graph: which of an agent's turns use or refute which, as a judge reads them."""

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

Statement = tuple[str, int, int]  # what, which turn says so, of which turn

EDGE = re.compile(r"(\d{1,6}) (uses|contradicts) (\d{1,6})")
FAULT = re.compile(r"(\d{1,6}) is wrong")

QUESTION = """These are the turns of {agent} in one episode.

{turns}

How do they hang together? Think briefly, then end with <verdict>...</verdict>, which holds \
statements of these forms with semicolons between them: "3 uses 1" if turn 3 builds on what turn 1 \
found, "4 contradicts 2" if it shows that turn 2 was used wrongly, "2 is wrong" if a turn is \
mistaken by itself. Only earlier turns are used or contradicted. If nothing of this holds, write \
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportGraph(Asking):
    """Counts the edges between an agent's turns.

    One question per agent and episode. With several samples a statement counts if more than half of
    the readable verdicts make it; without any, the agent's labels are missing. A verdict with one
    statement that cannot be read is not readable.

    Source: the graph of IAPO, arXiv 2608.24588; the words are ours.
    """

    signals: ClassVar[tuple[str, ...]] = ("support_out", "support_in", "contradicted", "faulty")

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        columns = {name: np.zeros(len(material.turns)) for name in self.signals}
        asked = own_turns(material)
        questions = []
        for rows in asked:
            turns = [material.turns[row] for row in rows]
            agent = turns[0].observation.agent
            questions.append(QUESTION.format(agent=agent, turns=listed(turns)))
        verdicts = self.ask(material.reach.judge, questions, material.rng)
        for rows, said in zip(asked, verdicts, strict=True):
            read = [read_statements(text, len(rows)) for text in said]
            graph = majority([found for found in read if found is not None])
            if graph is None:
                for column in columns.values():
                    column[rows] = np.nan
                continue
            for what, by, of in graph:
                if what == "uses":
                    columns["support_out"][rows[of - 1]] += 1
                    columns["support_in"][rows[by - 1]] += 1
                elif what == "contradicts":
                    columns["contradicted"][rows[of - 1]] += 1
                else:
                    columns["faulty"][rows[of - 1]] = 1.0
        return columns


def read_statements(verdict: str, turns: int) -> frozenset[Statement] | None:
    """The statements that a verdict makes, none for "none"; None = not all can be read.

    Args:
        verdict: the text.
        turns: how many there are; an edge leads from a later one to an earlier one.
    """
    if verdict.lower() == "none":
        return frozenset()
    found = set()
    for text in verdict.split(";"):
        if edge := EDGE.fullmatch(text.strip()):
            statement = edge[2], int(edge[1]), int(edge[3])
            right = 1 <= statement[2] < statement[1] <= turns
        elif fault := FAULT.fullmatch(text.strip()):
            statement = "wrong", int(fault[1]), int(fault[1])
            right = 1 <= statement[1] <= turns
        else:
            return None
        if not right:
            return None
        found.add(statement)
    return frozenset(found)
