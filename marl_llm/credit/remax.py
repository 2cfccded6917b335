"""ReMax: what an agent still got after a turn, against what greedy play gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given


@dataclass(frozen=True, slots=True, kw_only=True)
class ReMax:
    """REINFORCE whose baseline is the return of one more episode, played greedily.

        A_k = G_k - b,   G_k = Σ_{j≥k} r_j

    Needs the signal "greedy_return" [N], b: what the turn's agent got in an episode of its group in
    which every action was the likeliest. G [N] is the return from the turn on, b the whole return,
    also at later turns; rewards on the way are therefore charged to the turns after them. No group
    and no spread are needed. Where b is missing there is nothing to compare with, and A is 0.

    Source: Li et al., ReMax, arXiv 2310.10505; over tokens as in verl.
    """

    card: ClassVar[Card] = Card(
        name="remax",
        title="ReMax",
        source="arXiv 2310.10505",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        needs=frozenset({"greedy_return"}),
        cost="1 greedy episode per group",
        breaks=frozenset({"shift"}),
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        to_go = returns.to_go(batch.reward, batch.agents())
        known = batch.known("greedy_return")
        advantage = np.where(known, to_go - batch.signal("greedy_return"), 0.0)
        return turn_credit(
            batch,
            advantage,
            components=ledger(to_go, advantage),
            stats={"missing_labels": float(np.sum(~known & (batch.lengths > 0)))},
        )
