"""Hindsight: was the turn likelier once one knows how the episode ended?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, Chains, following, sums
from marl_llm.credit.tokens import mean_turns
from marl_llm.errors import ConfigError


def hindsight_ratio(
    likelihood: Array, known: Array, agents: Chains, low: float, high: float
) -> Array:
    """How much likelier than the agent's other turns a turn is in hindsight.

        ρ = clip(π / mean of π over the agent's turns, low, high)

    Args:
        likelihood: π, hindsight likelihood of each turn, above 0, [N].
        known: turns that count, [N] bool.
        agents: chains of (episode, agent).
        low: smallest ratio.
        high: largest.

    Returns:
        ρ, [N] float64; exactly 1 where it is not known, and where all of an agent's turns are
        equally likely.
    """
    weight = known.astype(np.float64)
    counted = baselines.Pool(agents.of, weight, sums(weight, agents.of, agents.count))
    middle = baselines.mean(likelihood, counted)[agents.of]
    ratio = np.divide(likelihood, middle, out=np.ones(len(likelihood)), where=known)
    return np.clip(ratio, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class HCAPO(FromOutcome):
    """Hindsight credit assignment policy optimisation.

        π_k = exp(h_k / τ),   ρ_k = clip(π_k / mean of π over the agent's turns, low, high)
        Q_k = ρ_k · γ^(T-1-k) · R,   Q'_k = s Q_k + (1 - s) Q_{k+1}
        A = z(R) + w · z(Q'),   but no z(Q') below 0 in an episode that succeeded

    h [N], signal "hindsight_logprob", is the mean log-prob of the turn's own tokens when the prompt
    also shows how the episode ended. R [N] is the whole return of the agent, T the number of its
    turns. z(R) is over agents, z(Q') over all turns of a cell, both with the population's std. An
    agent succeeded if R is above `success`. A missing h gives ρ = 1. w = 0 is GRPO.

    Source: arXiv 2603.08754.
    """

    card: ClassVar[Card] = Card(
        name="hcapo",
        title="HCAPO",
        source="arXiv 2603.08754",
        evidence="notes",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"hindsight_logprob"}),
        cost="T forward passes of the policy",
        breaks=frozenset({"shift"}),
    )

    success: float  # returns above it are a success; 0 where they are 0 and 1, as in the paper
    ddof: int = 0  # 0 = divide the squares by n
    temperature: float = 5.0  # τ
    low: float = 0.8  # smallest ρ
    high: float = 1.2  # largest ρ
    gamma: float = 0.95  # γ, discount per turn of the agent
    smoothing: float = 1.0  # s, share of the own turn; 1 = none, the paper's other choice is 0.5
    weight: float = 1.0  # w

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("hcapo.temperature", self.temperature, 1e-6)
        _check_limits("hcapo", self.low, self.high)
        checks.within("hcapo.gamma", self.gamma, 0.0, 1.0)
        checks.within("hcapo.smoothing", self.smoothing, 0.0, 1.0)
        checks.within("hcapo.weight", self.weight, 0.0)
        checks.within("hcapo.success", self.success, -np.inf)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        known, missing = labelled(batch, "hindsight_logprob")
        likelihood = np.exp(label(batch, "hindsight_logprob", -np.inf, 0.0) / self.temperature)
        ratio = hindsight_ratio(likelihood, known, agents, self.low, self.high)
        total = returns.totals(batch.reward, agents)
        q = ratio * self.gamma ** agents.after.astype(np.float64) * total
        q = self.smoothing * q + (1.0 - self.smoothing) * following(q, agents, q)
        turns = baselines.pool(batch, agents, self.by, "turn", mix_roles=self.mix_roles)
        step = baselines.standardise(q, turns, ddof=self.ddof, epsilon=self.epsilon)
        harm = (total > self.success) & (step < 0.0)
        outcome, stats = self.outcome(batch.reward, batch, agents)
        hindsight = self.weight * np.where(harm, 0.0, step)
        return turn_credit(
            batch,
            outcome + hindsight,
            components={"outcome": outcome, "hindsight": hindsight},
            stats={**stats, **missing},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightRatio:
    """The plain hindsight advantage.

        ρ_k = clip(exp(h_k - l_k), low, high),   A_k = (1 - 1/ρ_k) · R

    h [N], signal "hindsight_logprob", is the mean log-prob of the turn's own tokens when the prompt
    also shows how the episode ended, and l [N] their mean log-prob when they were sampled. R [N] is
    the whole return of the agent. What the outcome says nothing of has ρ = 1 and gets 0; a failure
    with R = 0 teaches nothing. A missing h gives 0.

    Source: our reading of hindsight credit assignment, arXiv 1912.02503, which conditions on the
    return and has the probability of whole actions, not the geometric mean over tokens.
    """

    card: ClassVar[Card] = Card(
        name="hindsight_ratio_reading",
        title="Hindsight ratio",
        source="our reading of arXiv 1912.02503",
        evidence="reading",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"hindsight_logprob"}),
        cost="T forward passes of the policy",
        breaks=frozenset({"shift"}),
    )

    low: float  # smallest ρ, above 0
    high: float  # largest ρ

    def __post_init__(self) -> None:
        _check_limits("hindsight_ratio_reading", self.low, self.high)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        known, missing = labelled(batch, "hindsight_logprob")
        hindsight = label(batch, "hindsight_logprob", -np.inf, 0.0)
        gap = np.where(known, hindsight - mean_turns(batch.logprobs, batch.offsets), 0.0)
        ratio = np.exp(np.clip(gap, np.log(self.low), np.log(self.high)))
        total = returns.totals(batch.reward, batch.agents())
        advantage = (1.0 - 1.0 / ratio) * total
        return turn_credit(batch, advantage, components=ledger(total, advantage), stats=missing)


def _check_limits(name: str, low: float, high: float) -> None:
    """The limits of a ratio: around 1, so that 1 stays what says nothing."""
    if not 0.0 < low <= 1.0 <= high < np.inf:
        raise ConfigError(
            f"{name} needs 0 < low <= 1 <= high, so that a ratio of 1, which says nothing, stays "
            f"1; got low={low}, high={high}"
        )
