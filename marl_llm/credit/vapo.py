"""VAPO: token-level GAE that looks further ahead the longer the response, and a critic apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import token_errors, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array
from marl_llm.credit.tokens import scan_tokens_back


def adaptive_lambda(length: Array, alpha: float) -> Array:
    """The λ that spreads the weight of GAE over a fixed share of the response.

        λ = 1 - 1 / (α · l)

    Args:
        length: l, sampled tokens of the response, [N].
        alpha: α > 0, the share: Σ_t λ^t = α · l for an endless response.

    Returns:
        λ, [N] float64, in [0, 1); 0 where the formula is negative, l ≤ 1/α.
    """
    return np.maximum(0.0, 1.0 - 1.0 / (alpha * np.maximum(length, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VAPO:
    """GAE over tokens with a length-adaptive λ, and another λ for the critic's targets.

        A_t = δ_t + γλ(l) · A_{t+1},   λ(l) = 1 - 1/(α·l),   δ_t = r_t + γ · V_{t+1} - V_t

    l is the number of tokens that the agent sampled in the whole episode, over all its turns, as
    the recursion runs over them all. Needs the signal "token_value" [M], V before each token; after
    an agent's last token V is 0, or the signal "value_next" [N] if the episode was cut short.
    `Credit.targets` [M] is the λ-return with `lam_critic`; 1 makes it the Monte-Carlo return, which
    no error of the critic can bend.

    Source: VAPO, arXiv 2504.05118; its loss (token mean, clip-higher, likelihood of right answers)
    and its pre-training of the critic are not credit.
    """

    card: ClassVar[Card] = Card(
        name="vapo",
        title="VAPO",
        source="arXiv 2504.05118",
        evidence="notes",
        granularity="token",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"token_value"}),
        cost="a critic's value of every token",
        breaks=frozenset({"shift"}),
    )

    alpha: float = 0.05  # share of the response over which λ spreads credit
    lam_critic: float = 1.0  # per sampled token, in the critic's targets
    gamma: float = 1.0  # discount per sampled token

    def __post_init__(self) -> None:
        checks.within("vapo.alpha", self.alpha, 1e-9)
        checks.within("vapo.lam_critic", self.lam_critic, 0.0, 1.0)
        checks.within("vapo.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents, offsets = batch.agents(), batch.offsets
        value, end = batch.token_signal("token_value"), value_end(batch, agents)
        lam = adaptive_lambda(returns.totals(batch.lengths, agents), self.alpha)
        delta = token_errors(batch.reward, value, end, offsets, agents, self.gamma)
        advantage = scan_tokens_back(delta, self.gamma * lam, offsets, agents)
        decay = self.gamma * self.lam_critic
        targets = scan_tokens_back(delta, decay, offsets, agents, out=delta)
        targets += value
        return token_credit(
            batch,
            advantage,
            components={"return": advantage + value, "baseline": -value},
            stats={"lambda_zero_turns": float(np.sum((lam == 0) & (batch.lengths > 0)))},
            targets=targets,
        )
