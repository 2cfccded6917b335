"""Bi-level GAE: from turn to turn first, then from token to token inside each turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.gae import nearest_ahead, paid_on_tokens, value_credit, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, following, scan_back
from marl_llm.credit.tokens import sum_ahead
from marl_llm.credit.whitened import Whitened


def bilevel_gae(
    reward: Array,
    value: Array,
    value_end: Array,
    offsets: Array,
    agents: Chains,
    *,
    gamma: float,
    gamma_high: float,
    lam: float,
) -> Array:
    """GAE over the ends of turns, handed on to the tokens inside each turn.

        B_k = r_k + Γ · V_{k+1,end} - V_{k,end} + Γλ · B_{k+1}
        A_{k,end} = B_k,   A_{k,t} = γ · V_{k,t+1} - V_{k,t} + γλ · A_{k,t+1}

    Turns without tokens are skipped; their reward goes to the turn before.

    Args:
        reward: r, [N].
        value: V before each token, [M]; V_{k,end} is that before the turn's last token.
        value_end: V after the agent's last turn, [N]; read at last turns only.
        offsets: tokens of turn i are offsets[i]:offsets[i+1], [N+1].
        agents: chains of (episode, agent).
        gamma: γ, discount per sampled token, inside a turn.
        gamma_high: Γ, discount per turn of the agent.
        lam: λ of both levels, per turn and per token.

    Returns:
        A, [M] float64.
    """
    held = np.diff(offsets) > 0
    last = offsets[1:][held] - 1
    at_end = np.zeros(len(held))
    at_end[held] = value[last]
    behind = following(nearest_ahead(at_end, held, agents, value_end), agents, value_end)
    error = np.where(held, paid_on_tokens(reward, held, agents) + gamma_high * behind - at_end, 0.0)
    high = scan_back(error, np.where(held, gamma_high * lam, 1.0), agents)
    inside = np.empty(len(value))
    inside[:-1] = gamma * value[1:]
    inside -= value
    inside[last] = high[held]
    return sum_ahead(inside, offsets, gamma * lam)


@dataclass(frozen=True, slots=True, kw_only=True)
class BilevelGAE(Whitened):
    """RAGEN's bi-level GAE, with turns that end where they end.

        B_k = r_k + Γ · V_{k+1,end} - V_{k,end} + Γλ · B_{k+1}
        A_{k,end} = B_k,   A_{k,t} = γ · V_{k,t+1} - V_{k,t} + γλ · A_{k,t+1}

    The code that this comes from takes tokens with a reward for the ends of turns, so that a turn
    with reward 0 melts into the next. Here every turn of the agent is one. Needs the signal
    "token_value" [M], V before each token; after an agent's last turn V is 0, or the signal
    "value_next" [N] if the episode was cut short. `Credit.targets` is A + V [M], taken before any
    whitening.

    Source: RAGEN, arXiv 2504.20073, and its public code.
    """

    card: ClassVar[Card] = Card(
        name="bilevel_gae",
        title="Bi-level GAE",
        source="arXiv 2504.20073",
        evidence="code",
        granularity="token",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"token_value"}),
        cost="a critic's value of every token",
        breaks=frozenset({"shift"}),
    )

    gamma: float = 1.0  # discount per sampled token, inside a turn
    gamma_high: float = 0.95  # discount per turn of the agent
    lam: float = 1.0  # of both levels, per turn and per token

    def __post_init__(self) -> None:
        Whitened.__post_init__(self)
        checks.within("bilevel_gae.gamma", self.gamma, 0.0, 1.0)
        checks.within("bilevel_gae.gamma_high", self.gamma_high, 0.0, 1.0)
        checks.within("bilevel_gae.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        value = batch.token_signal("token_value")
        advantage = bilevel_gae(
            np.asarray(batch.reward, dtype=np.float64),
            value,
            value_end(batch, agents),
            batch.offsets,
            agents,
            gamma=self.gamma,
            gamma_high=self.gamma_high,
            lam=self.lam,
        )
        return value_credit(batch, advantage, value, self)
