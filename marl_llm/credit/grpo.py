"""GRPO: an agent's return against the others of its group, in units of their spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO(Grouped):
    """Group-relative policy optimisation over the agents of comparable episodes.

        A = (R - mean_cell R) / (std_cell R + ε)

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N]. Cells are the agents of one name in one group by default, so that seats and roles
    with unlike prospects are never compared; `by: []` pools the whole batch, which is the
    multi-turn GRPO that the MARS paper compares itself with. A cell alone, or with equal returns,
    gives exactly 0.

    Source: Shao et al., DeepSeekMath, arXiv 2402.03300; ddof, ε and unit as in public code, where
    they differ: verl has ε = 1e-6 and singletons raw, TRL ε = 1e-4.
    """

    card: ClassVar[Card] = Card(
        name="grpo",
        title="GRPO",
        source="arXiv 2402.03300",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
    )

    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("grpo.ddof", self.ddof, (0, 1))
        checks.within("grpo.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        compared = baselines.compare(total, pool, ddof=self.ddof, epsilon=self.epsilon)
        advantage = self.settle(compared.scaled, total / (1.0 + self.epsilon), pool, batch)
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, compared.centred, advantage),
            stats=compared.statistics,
        )
