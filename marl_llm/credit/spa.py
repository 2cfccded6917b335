"""SPA: what a model of progress, trained to sum to the return, says that a turn contributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.labels import label, labelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Spa(Grouped):
    """Pay each turn its predicted progress, and a little for being carried out.

        x_k = α · c_k + β · g_k,   H_k = x_k + γ · H_{k+1},   A_k = H_k - mean_cell H

    The signal "progress" c [N] is trained so that an agent's sum over turns is its return, and
    stands in for it: rewards are not read here. The signal "grounded" g [N] is 1 where the action
    could be carried out. The authors hand x to PPO with a critic; in its place, ours, is the mean
    over all turns of the cell. γ = 0 gives a turn its own progress only, so that one that changes
    nothing gets what nothing gets; γ = 1 is progress to go. A turn without both labels gets 0, and
    pays nothing to those before it.

    Source: SPA-RL, arXiv 2505.20732, and its code, where β is .5. The released data preparation
    overwrites c by the outcome and the trainer gives the last turn 0; neither is done here.
    """

    card: ClassVar[Card] = Card(
        name="spa",
        title="SPA",
        source="arXiv 2505.20732",
        evidence="code",
        granularity="turn",
        methodology="redistribution",
        needs=frozenset({"progress", "grounded"}),
        cost="T forward passes of a progress model, trained on own rollouts",
    )

    gamma: float  # discount per turn of the agent; 0 = a turn's own progress, 1 = progress to go
    unit: baselines.Unit = "turn"
    alpha: float = 1.0  # α, weight of the progress
    beta: float = 0.5  # β, weight of an action that could be carried out

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.within("spa.alpha", self.alpha, 0.0)
        checks.within("spa.beta", self.beta, 0.0)
        checks.within("spa.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        known, missing = labelled(batch, "progress", "grounded")
        grounded = label(batch, "grounded", 0.0, 1.0)
        own = np.where(known, self.alpha * batch.signal("progress") + self.beta * grounded, 0.0)
        to_go = returns.to_go(own, agents, self.gamma)
        pool = self.pool(batch, agents, known)
        settled = self.settle(baselines.centre(to_go, pool), to_go, pool, batch)
        advantage = np.where(known, settled, 0.0)
        return turn_credit(
            batch,
            advantage,
            components=ledger(to_go, advantage),
            stats={**baselines.pool_statistics(to_go, pool), **missing},
        )
