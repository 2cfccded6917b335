"""MT-PPO: token-level GAE in which every turn is paid where it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit.card import Card
from marl_llm.credit.gae_token import TokenGAE


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPPO(TokenGAE):
    """PPO with turn rewards: GAE over tokens, the reward of a turn on its last token.

        A_t = Σ_{u≥t} (γλ)^(u-t) · (r_u + γ · V_{u+1} - V_u),   r_u = r of the turn that u ends

    This is `gae_token`, under the name by which it is compared with paying all at the end of the
    episode. Needs the signal "token_value" [M]. With λ < 1 a long turn hides what comes after it;
    `turn_ppo` has one step per turn instead.

    Source: MT-PPO in arXiv 2505.11821, which gives no λ.
    """

    card: ClassVar[Card] = Card(
        name="mt_ppo",
        title="MT-PPO",
        source="arXiv 2505.11821",
        evidence="notes",
        granularity="token",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"token_value"}),
        cost="a critic's value of every token",
        breaks=frozenset({"shift"}),
    )

    lam: float  # per sampled token
