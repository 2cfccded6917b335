"""MA-POCA: the λ-return of the team against what it expects without knowing the agent's action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import filled, gae, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled


@dataclass(frozen=True, slots=True, kw_only=True)
class MAPOCA:
    """Multi-agent posthumous credit assignment.

        G^λ_k = r_k + γ · ((1-λ) · V_{k+1} + λ · G^λ_{k+1}),   A_k = G^λ_k - b_k

    The signal "value" [N] is a critic's V of all agents that are there, "value_others" [N] its b of
    what the agent saw and what the others saw and did, the agent's own action left out. So no
    alternatives have to be listed, and any number of agents will do. Where an episode was cut
    short, "value_next" [N] says what was still to come. An agent that leaves early is still paid
    what the team earns later, if the game pays it at the agent's last turn. A turn without b gets
    0.

    `Credit.targets` is G^λ, of both V and b.

    Source: Cohen et al., arXiv 2111.05992, and Unity ML-Agents.
    """

    card: ClassVar[Card] = Card(
        name="ma_poca",
        title="MA-POCA",
        source="arXiv 2111.05992",
        evidence="code",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"value", "value_others"}),
        cost="a critic's 2 T values",
        breaks=frozenset({"shift"}),
    )

    gamma: float = 0.99  # discount per turn of the agent
    lam: float = 0.95  # per turn of the agent; 1 = returns, 0 = r + γ V

    def __post_init__(self) -> None:
        checks.within("ma_poca.gamma", self.gamma, 0.0, 1.0)
        checks.within("ma_poca.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        reward, end = np.asarray(batch.reward, dtype=np.float64), value_end(batch, agents)
        value = filled(reward, batch.signal("value"), batch.known("value"), end, agents, self.gamma)
        to_go = value + gae(reward, value, end, agents, self.gamma, self.lam)
        known, stats = labelled(batch, "value_others")
        advantage = np.where(known, to_go - batch.signal("value_others"), 0.0)
        return turn_credit(
            batch, advantage, components=ledger(to_go, advantage), stats=stats, targets=to_go
        )
