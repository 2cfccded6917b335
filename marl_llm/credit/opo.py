"""OPO: an agent's return against the mean of its group, in which long replies weigh more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class OPO(Grouped):
    """On-policy RL with the optimal baseline, the norm of a score taken to grow with its length.

        b = Σ_j L_j R_j / Σ_j L_j,   A = R - b

    R [N] is the whole return of the turn's agent in its episode, L how many tokens the agent
    sampled in it, j the agents of the cell. All turns of the agent get the same A [N], in units of
    reward, and Σ L A = 0 in a cell. It is Dr. GRPO that counts tokens. A cell alone, or with equal
    returns, gives exactly 0.

    Source: Hao et al., OPO, arXiv 2505.23585; verl leaves the return of a row alone as it is, which
    is `singleton: raw`.
    """

    card: ClassVar[Card] = Card(
        name="opo",
        title="OPO",
        source="arXiv 2505.23585",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
    )

    unit: baselines.Unit = "token"  # by definition; "agent" would be Dr. GRPO

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("opo.unit", self.unit, ("token",))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        centred = baselines.centre(total, self.pool(batch, agents))
        # Whether somebody is there to compare with is a matter of agents, not of tokens.
        heads = baselines.pool(batch, agents, self.by, "agent", mix_roles=self.mix_roles)
        advantage = self.settle(centred, total, heads, batch)
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, advantage),
            stats=baselines.pool_statistics(total, heads),
        )
