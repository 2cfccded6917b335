"""GAE over tokens: PPO's credit, one step per sampled token of an agent's whole episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.gae import token_errors, value_credit, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.tokens import scan_tokens_back
from marl_llm.credit.whitened import Whitened


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGAE(Whitened):
    """Generalised advantage estimation on the clock of sampled tokens.

        δ_t = r_t + γ · V_{t+1} - V_t,   A_t = δ_t + γλ · A_{t+1}

    t runs over the sampled tokens of an agent's turns, one turn after the other: what others said
    in between costs no step and lends no value. Needs the signal "token_value" [M], V before each
    token. The reward of a turn lies on its last token; `token_rewards` adds the signal
    "token_reward" [M]. After an agent's last token V is 0 if the episode terminated; if it was cut
    short, the signal "value_next" [N] has V there. `Credit.targets` is A + V [M], taken before any
    whitening.

    Source: Schulman et al., arXiv 1506.02438; λ = 1 as in verl, whose advantages are whitened.
    """

    card: ClassVar[Card] = Card(
        name="gae_token",
        title="GAE over tokens",
        source="arXiv 1506.02438",
        evidence="code",
        granularity="token",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"token_value"}),
        cost="a critic's value of every token",
        breaks=frozenset({"shift"}),
    )

    gamma: float = 1.0  # discount per sampled token
    lam: float = 1.0  # per sampled token; .95 forgets all but some hundred tokens
    token_rewards: bool = False  # add the signal "token_reward" to the rewards of the turns

    def __post_init__(self) -> None:
        Whitened.__post_init__(self)
        checks.within(f"{self.card.name}.gamma", self.gamma, 0.0, 1.0)
        checks.within(f"{self.card.name}.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents, offsets = batch.agents(), batch.offsets
        value, end = batch.token_signal("token_value"), value_end(batch, agents)
        advantage = token_errors(batch.reward, value, end, offsets, agents, self.gamma)
        if self.token_rewards:
            advantage += batch.token_signal("token_reward")
        decay = self.gamma * self.lam
        advantage = scan_tokens_back(advantage, decay, offsets, agents, out=advantage)
        return value_credit(batch, advantage, value, self)
