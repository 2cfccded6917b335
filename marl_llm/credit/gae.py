"""GAE over turns: what a turn changed in the critic's expectation, and in those after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import Resampler, baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.segments import Array, Chains, following, scan_back
from marl_llm.errors import EpisodeError


def gae(
    reward: Array, value: Array, value_end: Array, agents: Chains, gamma: float, lam: float
) -> Array:
    """Generalised advantage estimation along each agent's turns.

        δ_k = r_k + γ · V_{k+1} - V_k,   A_k = δ_k + γλ · A_{k+1}

    Args:
        reward: r, [N].
        value: V of what the agent knew before the turn, [N].
        value_end: V after the agent's last turn, [N]; read at last turns only.
        agents: chains of (episode, agent).
        gamma: γ, discount per turn of the agent.
        lam: λ, per turn of the agent; 0 = one-step error, 1 = return minus V.

    Returns:
        A, [N] float64. A + V is what the critic should have said.
    """
    delta = reward + gamma * following(value, agents, value_end) - value
    return scan_back(delta, gamma * lam, agents)


@dataclass(frozen=True, slots=True, kw_only=True)
class GAE:
    """Generalised advantage estimation, one step per turn of an agent.

        δ_k = r_k + γ · V_{k+1} - V_k,   A_k = Σ_{j≥k} (γλ)^(j-k) · δ_j

    Needs the signal "value" [N], V before each turn. After the last turn V is 0 if the episode
    terminated; if it was cut short, the signal "value_next" [N] has V there. All tokens of a turn
    get the same A [N]. `Credit.targets` is A + V, taken before any whitening.

    Source: Schulman et al., arXiv 1506.02438; over turns: Turn-PPO, arXiv 2512.17008.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"value"})
    level: ClassVar[Literal["turn", "token"]] = "turn"
    source: ClassVar[str] = "arXiv 1506.02438, 2512.17008"
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]] = "notes"

    gamma: float = 1.0  # discount per turn of the agent
    lam: float = 0.95  # per turn of the agent
    whiten: bool = False  # (A - mean) / √(variance + ε) over the sampled tokens of the batch
    ddof: int = 1  # of that variance
    epsilon: float = 1e-8  # added to that variance

    def __post_init__(self) -> None:
        checks.within("gae.gamma", self.gamma, 0.0, 1.0)
        checks.within("gae.lam", self.lam, 0.0, 1.0)
        checks.one_of("gae.ddof", self.ddof, (0, 1))
        checks.within("gae.epsilon", self.epsilon, 0.0)

    def estimate(
        self,
        batch: TurnBatch,
        *,
        rng: np.random.Generator | None = None,
        resample: Resampler | None = None,
    ) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        reward = np.asarray(batch.reward, dtype=np.float64)
        value = batch.signal("value")
        advantage = gae(reward, value, _value_end(batch, agents), agents, self.gamma, self.lam)
        targets = advantage + value
        if self.whiten:
            advantage = baselines.whiten(
                advantage,
                batch.lengths.astype(np.float64),
                ddof=self.ddof,
                epsilon=self.epsilon,
            )
        return turn_credit(batch, advantage, components={"value": value}, stats={}, targets=targets)


def _value_end(batch: TurnBatch, agents: Chains) -> Array:
    """V after the last turn of each agent, [N]: 0 if terminated, "value_next" otherwise."""
    cut = (agents.after == 0) & ~batch.terminated
    if not np.any(cut):
        return np.zeros(len(batch))
    if "value_next" not in batch.signals:
        i = np.flatnonzero(cut)[0]
        raise EpisodeError(
            f"{int(cut.sum())} agents' last turns did not end their episode (the first: turn "
            f"{batch.turn[i]} of episode {batch.episode[i]}), and the batch has no signal "
            "'value_next' that says what was still to come; attach it, or train on whole episodes"
        )
    return np.where(cut, batch.signal("value_next"), 0.0)
