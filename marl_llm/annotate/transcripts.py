"""Transcripts: stored turns as a judge reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.types import Turn


def in_words(turn: Turn, number: int | None = None) -> str:
    """What an agent saw and said at a turn.

    Args:
        turn: a stored one.
        number: what the judge shall call it by.
    """
    head = "" if number is None else f"Turn {number}. "
    agent = turn.observation.agent
    said = turn.reply.strip() or turn.action or "nothing"
    return f"{head}{agent} saw:\n{turn.observation.text}\n{agent} said:\n{said}"


def own_turns(material: Material) -> list[list[int]]:
    """The rows of each agent of each episode in playing order."""
    agents = material.batch.agents()
    starts = np.flatnonzero(np.diff(agents.of[agents.order], prepend=-1))
    return [rows.tolist() for rows in np.split(agents.order, starts[1:])] if len(starts) else []


def listed(turns: Sequence[Turn]) -> str:
    """An agent's turns, numbered from 1."""
    return "\n\n".join(in_words(turn, number) for number, turn in enumerate(turns, 1))
