"""SALT: the same step in several episodes gets the mean of what they earned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, merged, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.merged import Fallback, Merged
from marl_llm.credit.segments import Array, cells


@dataclass(frozen=True, slots=True, kw_only=True)
class SALT(Merged):
    """Step-level advantages by merging equal transitions.

        A_j = (R_j - mean_cell R) / (std_cell R + ε)      of the agent's whole episode j
        A(s, a, s') = mean of A_j over the turns with this state, action and next state

    R is the return of the agent in its episode, each agent counting once. A transition that nobody
    else made keeps A_j, as published (`fallback: trajectory`), or gets 0 (`zero`). Merging moves
    credit and makes none: the sum over all turns is that of A_j. All ends of episodes are one state
    here, so that equal last actions are merged whatever came of them. How the authors match states
    is a matter of the state keys.

    Source: Li et al., SALT, arXiv 2510.20022, as another paper describes it.
    """

    card: ClassVar[Card] = Card(
        name="salt",
        title="SALT",
        source="arXiv 2510.20022",
        evidence="notes",
        granularity="turn",
        methodology="monte carlo",
    )

    fallback: Fallback = "trajectory"  # a transition that nobody else made: A_j, or "zero"
    ddof: int = 1  # of the standard deviation of R
    epsilon: float = 1e-6  # added to it, in units of reward

    def __post_init__(self) -> None:
        Merged.__post_init__(self)
        checks.one_of("salt.ddof", self.ddof, (0, 1))
        checks.within("salt.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        whole = self.standardise(total, pool, batch, ddof=self.ddof, epsilon=self.epsilon)
        graph = self.merge(batch)
        same = alike(graph.source, batch.action_key[graph.rows], graph.target)
        few = baselines.alone(same)
        step = baselines.mean(whole[graph.rows], same)[same.cell]
        if self.fallback == "zero":
            step = np.where(few, 0.0, step)
        advantage = graph.spread(step, len(batch))
        return turn_credit(
            batch,
            advantage,
            components={"episode": whole, "merging": advantage - whole},
            stats={
                **baselines.pool_statistics(total, pool),
                **merged.statistics(graph),
                "merged_share": float(np.mean(~few)) if len(few) else 0.0,
            },
        )


def alike(source: Array, action: Array, target: Array) -> baselines.Pool:
    """Edges with the same source, action and target as cells that count each edge, [E] each."""
    cell, count = cells((source, action, target), len(source))
    size = np.bincount(cell, minlength=count).astype(np.float64)
    return baselines.Pool(cell, np.ones(len(source)), size)
