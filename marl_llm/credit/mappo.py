"""MAPPO: GAE of the team's value, normalised over everybody who acted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import errors
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, scan_back


@dataclass(frozen=True, slots=True, kw_only=True)
class MAPPO:
    """Multi-agent PPO's advantage.

        δ_k = r_k + γ · V_{k+1} - V_k,   A_k = Σ_{j≥k} (γλ)^(j-k) · δ_j,   (A - mean) / (std + ε)

    r [N] is the team's reward and the signal "value" [N] a critic's V of what the whole team knows;
    where an episode was cut short, "value_next" [N] says what was still to come. Mean and std (over
    n) are over the sampled turns of the batch, so agents that are gone or silent move neither. What
    a team earns after an agent has left reaches its last turn if the game pays it there.
    `by: [agent]` normalises each agent by itself, as TorchRL does, `normalise: false` is GAE.

    Source: Yu et al., arXiv 2103.01955, and the code of on-policy.
    """

    card: ClassVar[Card] = Card(
        name="mappo",
        title="MAPPO",
        source="arXiv 2103.01955",
        evidence="code",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value"}),
        cost="a critic's T values",
        breaks=frozenset({"groups", "shift"}),
    )

    gamma: float = 0.99  # discount per turn of the agent
    lam: float = 0.95  # per turn of the agent
    normalise: bool = True
    by: tuple[str, ...] = ()  # normalised together; () = the whole batch
    epsilon: float = 1e-5  # added to the standard deviation, in units of reward

    def __post_init__(self) -> None:
        name = self.card.name
        checks.within(f"{name}.gamma", self.gamma, 0.0, 1.0)
        checks.within(f"{name}.lam", self.lam, 0.0, 1.0)
        object.__setattr__(self, "by", checks.key_names(f"{name}.by", self.by))
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        found = errors(batch, self.gamma)
        raw = scan_back(found.error, self.gamma * self.lam, found.agents)
        targets = raw + found.value
        advantage = self.normalised(raw, batch, found.agents)
        return turn_credit(
            batch,
            advantage,
            components=ledger(targets, raw, advantage),
            stats=found.missing,
            targets=targets,
        )

    def normalised(self, advantage: Array, batch: TurnBatch, agents: Chains) -> Array:
        """The advantages in units of their spread, if that is asked for, [N].

        Args:
            advantage: [N].
            batch: N turns.
            agents: its chains of (episode, agent).
        """
        if not self.normalise:
            return advantage
        pool = baselines.pool(batch, agents, self.by, "turn", mix_roles=True)
        return baselines.standardise(advantage, pool, ddof=0, epsilon=self.epsilon)
