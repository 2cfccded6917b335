"""GDPO: several rewards, each in units of its own spread before they are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, Chains, sums
from marl_llm.credit.signals import REWARD
from marl_llm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GDPO(Grouped):
    """Group reward-decoupled normalisation.

        A_n = (R_n - mean_cell R_n) / (std_cell R_n + ε)      for each reward n
        S = Σ_n w_n A_n,   A = (S - m) / √(v + ε')

    R_n [N] is what the turn's agent got of reward n in its whole episode, and all its turns get the
    same A [N]. GRPO adds first: (0, 1) and (0, 2) of two rewards then look alike, whereas here a
    group whose members differ in both counts twice as much, and a large reward drowns no small one.
    m and v are mean and variance of S over the whole batch, so that |A| does not grow with the
    number of rewards. Counted over tokens, as in the code for verl, m need not be 0, and a group
    without signal then gets -m/√v; counted by agent, as in the code for TRL, it gets 0.

    Rewards are named: "strategic" and "shaping" are the two parts of every turn's reward, any other
    NAME is the signal "reward/NAME" [N]. An agent with a missing part has no R_n: it is left out of
    that reward's statistics, and its A_n is 0.

    Source: Liu et al., GDPO, arXiv 2601.05242, and NVlabs/GDPO.
    """

    card: ClassVar[Card] = Card(
        name="gdpo",
        title="GDPO",
        source="arXiv 2601.05242",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
        breaks=frozenset({"groups"}),
    )

    rewards: tuple[str, ...] = ("strategic", "shaping")
    weights: tuple[float, ...] = (1.0, 1.0)  # w, of the rewards in their order
    whiten: baselines.Unit | None = "token"  # what m and v count once; none = A is S
    ddof: int = 1  # of all standard deviations
    epsilon: float = 1e-6  # added to the standard deviations in the cells, in units of reward
    white_epsilon: float = 1e-8  # added to v

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        object.__setattr__(self, "rewards", tuple(self.rewards))
        object.__setattr__(self, "weights", tuple(self.weights))
        if not self.rewards or len(self.rewards) != len(set(self.rewards)):
            raise ConfigError(f"gdpo.rewards must be distinct names, got {list(self.rewards)}")
        if len(self.weights) != len(self.rewards):
            raise ConfigError(
                f"gdpo.weights has {len(self.weights)} numbers for {len(self.rewards)} rewards; "
                "give each reward its weight"
            )
        for weight in self.weights:
            checks.within("gdpo.weights", weight, -np.inf)
        if self.whiten is not None:
            checks.one_of("gdpo.whiten", self.whiten, checks.UNITS)
        checks.one_of("gdpo.ddof", self.ddof, (0, 1))
        checks.within("gdpo.epsilon", self.epsilon, 0.0)
        checks.within("gdpo.white_epsilon", self.white_epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        pool = self.pool(batch, agents)
        stats = {"missing_labels": 0.0}
        parts = {}
        for name, weight in zip(self.rewards, self.weights, strict=True):
            total, known = _earned(name, batch, agents)
            counted = self.pool(batch, agents, known)
            scaled = self.settle(
                baselines.standardise(total, counted, ddof=self.ddof, epsilon=self.epsilon),
                total / (1.0 + self.epsilon),
                counted,
                batch,
            )
            parts[name] = weight * np.where(known, scaled, 0.0)
            stats["missing_labels"] += float(np.sum(~known & (batch.lengths > 0)))
            alike = baselines.pool_statistics(total, counted)
            stats[f"zero_std_groups/{name}"] = alike["zero_std_groups"]
        added = np.sum(list(parts.values()), axis=0)
        advantage = added
        if self.whiten is not None:
            everybody = baselines.pool(batch, agents, (), self.whiten, mix_roles=True)
            advantage = baselines.whiten(
                added, everybody.weight, ddof=self.ddof, epsilon=self.white_epsilon
            )
        return turn_credit(
            batch,
            advantage,
            components=parts | {"scaling": advantage - added},
            stats=stats | baselines.pool_statistics(added, pool),
        )


def _earned(name: str, batch: TurnBatch, agents: Chains) -> tuple[Array, Array]:
    """R_n at each turn of the agent, [N], and whether all of it is known, [N] bool."""
    if name == "shaping":
        reward, missing = batch.shaping, np.zeros(len(batch))
    elif name == "strategic":
        reward, missing = batch.reward - batch.shaping, np.zeros(len(batch))
    else:
        reward, missing = batch.signal(REWARD + name), ~batch.known(REWARD + name)
    lost = sums(missing, agents.of, agents.count)[agents.of] > 0
    return returns.totals(reward, agents), ~lost
