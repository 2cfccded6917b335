"""GTPO over turns: the return from a turn on, in units of the spread of all turns of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class GTPOTurn(Grouped):
    """Group turn policy optimisation.

        G_k = r_k + γ · G_{k+1},   A_k = (G_k - mean_cell G) / (std_cell G + ε)

    G [N] is the discounted return from the turn on. A cell holds all turns of the agents of one
    name in one group; `by: [group, agent, agent_turn]` compares turns of the same number only. No
    primary text was found that says which of the two is meant. Both compare *returns*, which does
    not punish going on; comparing rewards per turn number and summing them up afterwards would.
    With γ = 1, reward at the end only and `unit: agent` it is GRPO.

    The paper's turn rewards (format, a partial reward for code like that of successful episodes)
    belong to the game. Not to be confused with the GTPO over token entropies, arXiv 2508.04349.

    Source: arXiv 2511.14846.
    """

    card: ClassVar[Card] = Card(
        name="gtpo_turn",
        title="GTPO over turns",
        source="arXiv 2511.14846",
        evidence="notes",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"shift"}),
    )

    unit: baselines.Unit = "turn"  # "agent" counts first turns only
    gamma: float = 0.9  # γ, discount per turn of the agent
    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.within("gtpo_turn.gamma", self.gamma, 0.0, 1.0)
        checks.one_of("gtpo_turn.ddof", self.ddof, (0, 1))
        checks.within("gtpo_turn.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        to_go = returns.to_go(batch.reward, agents, self.gamma)
        pool = self.pool(batch, agents)
        compared = baselines.compare(to_go, pool, ddof=self.ddof, epsilon=self.epsilon)
        advantage = self.settle(compared.scaled, to_go / (1.0 + self.epsilon), pool, batch)
        return turn_credit(
            batch,
            advantage,
            components=ledger(to_go, compared.centred, advantage),
            stats=compared.statistics,
        )
