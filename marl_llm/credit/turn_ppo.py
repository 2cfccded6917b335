"""Turn-PPO: GAE in which a turn is one action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit.card import Card
from marl_llm.credit.gae import GAE


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPPO(GAE):
    """PPO in the MDP of turns: the state is all before a turn, the action the whole turn.

        A_k = Σ_{j≥k} (γλ)^(j-k) · (r_j + γ · V_{j+1} - V_j)

    This is `gae` with the discounts of the paper's example. Needs the signal "value" [N]. All
    tokens of a turn get the same A, which does not depend on how many tokens any turn has.

    Source: Turn-PPO, arXiv 2512.17008.
    """

    card: ClassVar[Card] = Card(
        name="turn_ppo",
        title="Turn-PPO",
        source="arXiv 2512.17008",
        evidence="notes",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value"}),
        cost="a critic's T values",
        breaks=frozenset({"shift"}),
    )

    gamma: float = 0.99  # discount per turn of the agent
    lam: float = 0.95  # per turn of the agent
