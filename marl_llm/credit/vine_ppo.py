"""VinePPO: a turn's credit is how much it moved the mean of continuations played from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import nearest_ahead
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, following
from marl_llm.credit.whitened import Whitened


@dataclass(frozen=True, slots=True, kw_only=True)
class VinePPO(Whitened):
    """Monte-Carlo values instead of a critic; a step is a turn.

        A_k = V(s_{k+1}) - V(s_k),   V(s_k) = mean of K returns played on from before turn k

    Continuations count the agent's whole return, rewards before the restart included, so the A of
    an agent's turns sum to its return minus V of its first. After its last turn V is the return
    that it got. What others did between two turns of an agent is part of the earlier one's credit.
    Turns without tokens are no steps: the turn before them answers for what they brought.

    A is whitened over the sampled tokens of the batch, as in the authors' code.

    Source: VinePPO, arXiv 2410.01679, and its public code, which plays K = 9.
    """

    card: ClassVar[Card] = Card(
        name="vine_ppo",
        title="VinePPO",
        source="arXiv 2410.01679",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        resamples=True,
        cost="K·T continuations",
        breaks=frozenset({"groups"}),
    )

    count: int = 9  # continuations per turn, K
    whiten: bool = True

    def __post_init__(self) -> None:
        Whitened.__post_init__(self)
        checks.within("vine_ppo.count", self.count, 1)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        sampled = batch.lengths > 0
        rows = np.flatnonzero(sampled)
        played = given.resampler("vine_ppo")(rows, self.count)
        before, after = vine_values(
            played.mean(axis=1), rows, returns.totals(batch.reward, agents), agents
        )
        gain = after - before
        advantage = self.whitened(gain, batch.lengths.astype(np.float64))
        return turn_credit(
            batch,
            advantage,
            components={"after": after, "before": -before, "scaling": advantage - gain},
            stats={"continuations": float(played.size)},
        )


def vine_values(value: Array, rows: Array, total: Array, agents: Chains) -> tuple[Array, Array]:
    """V before and after every turn, where some have been played on from.

    Args:
        value: V before these turns, [R].
        rows: the turns, [R] int; the others take V from the next of them.
        total: the return that the row's agent got, [N]; it stands for V after its last turn.
        agents: chains of (episode, agent).

    Returns:
        V before and V after each turn, [N] float64 each.
    """
    held = np.zeros(len(total), dtype=bool)
    known = np.zeros(len(total))
    held[rows], known[rows] = True, value
    before = nearest_ahead(known, held, agents, total)
    return before, following(before, agents, total)
