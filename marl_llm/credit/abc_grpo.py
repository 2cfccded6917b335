"""ABC-GRPO: scores of steps that find or deny clues, against all steps of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import paid_on_tokens
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.labels import labelled
from marl_llm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AbcGRPO(Grouped):
    """Standardise step scores over all steps of a group, then discount the steps ahead.

        x_k = clip(s_k + r_k, 0, 2),   z = (x - mean_cell x) / (std_cell x + ε)
        A_k = z_k + γ · A_{k+1}

    s [N] is the signal "judge_score": 1 where nothing happened, in the paper +.8 for a clue found
    or verified, +.4 for a wrong candidate eliminated, -.8 for a right clue denied. r is the game's
    reward; in the paper +1 for the right answer and -1 for a wrong one. A turn without a label has
    s = 1. Mean and standard deviation count every sampled turn of the cell once, so z sums to 0
    over it, before the discounted sum.

    Source: ABC-GRPO, arXiv 2608.05102.
    """

    card: ClassVar[Card] = Card(
        name="abc_grpo",
        title="ABC-GRPO",
        source="arXiv 2608.05102",
        evidence="notes",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"judge_score"}),
        cost="T judge calls with the clues at hand",
        breaks=frozenset({"shift"}),
    )

    unit: baselines.Unit = "turn"
    gamma: float = 0.25  # discount per turn of the agent
    low: float = 0.0  # smallest score of a step
    high: float = 2.0  # largest
    eventless: float = 1.0  # score of a step that was not judged
    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("abc_grpo.unit", self.unit, ("turn",))  # a score belongs to one turn
        checks.within("abc_grpo.gamma", self.gamma, 0.0, 1.0)
        checks.one_of("abc_grpo.ddof", self.ddof, (0, 1))
        checks.within("abc_grpo.epsilon", self.epsilon, 0.0)
        if not self.low <= self.eventless <= self.high:
            raise ConfigError(
                "abc_grpo needs low <= eventless <= high, got "
                f"{self.low}, {self.eventless}, {self.high}"
            )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents, sampled = batch.agents(), batch.lengths > 0
        known, missing = labelled(batch, "judge_score")
        score = np.where(known, batch.signal("judge_score"), self.eventless)
        score = score + paid_on_tokens(batch.reward, sampled, agents)
        score = np.clip(score, self.low, self.high)
        pool = self.pool(batch, agents)
        step = self.settle(
            baselines.standardise(score, pool, ddof=self.ddof, epsilon=self.epsilon),
            score / (1.0 + self.epsilon),
            pool,
            batch,
        )
        step = np.where(sampled, step, 0.0)
        advantage = returns.to_go(step, agents, self.gamma)
        return turn_credit(
            batch,
            advantage,
            components={"step": step, "later": advantage - step},
            stats={**baselines.pool_statistics(score, pool), **missing},
        )
