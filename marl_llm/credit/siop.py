"""SIOP: information gain about the episode's own answer, weighed by how many gave it; no gold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.segments import Array, last_of


def outcome_potential(before: Array, after: Array, share: Array, floor: float) -> Array:
    """Gain in the log-probability of the answer that the episode gave, as far as others gave it.

        r = q · (log(p_after + ε) - log(p_before + ε))

    Args:
        before: p of the episode's answer before the turn, [N].
        after: p after it, [N].
        share: q, how much of the group gave the episode's answer, [N].
        floor: ε.

    Returns:
        [N] float64; along a chain that leaves out nothing they sum to q · log(p_T / p_0).
    """
    return share * (np.log(after + floor) - np.log(before + floor))


@dataclass(frozen=True, slots=True, kw_only=True)
class SIOP(Grouped):
    """Self-induced outcome potentials.

        r_k = q · (log(p_k + ε_p) - log(p_{k-1} + ε_p)),   and at the last turn also (1 - λ) · q
        A_k = z(r_k) + γ · A_{k+1},   z(x) = (x - mean_cell) / (std_cell + ε)

    The final answers of a group are clustered by meaning. q [N], signal "answer_share", is the
    share of the episode's own cluster; p [N], signals "answer_before" and "answer_after", the
    policy's probability of that cluster, the mean over some wordings of it. What a turn does for
    other clusters is not seen. z is over all turns of a cell. The last turn is the last one with
    tokens; an agent with one turn has the last term only. An episode without an answer has share 0:
    its turns get r = 0 and count. A turn whose probe is missing counts nowhere and has z = 0.

    No reward is read. A majority that is wrong is reinforced.

    Source: arXiv 2605.04984 and its code (dl-m9/SIOP).
    """

    card: ClassVar[Card] = Card(
        name="siop",
        title="SIOP",
        source="arXiv 2605.04984",
        evidence="code",
        granularity="turn",
        methodology="information",
        needs=frozenset({"answer_before", "answer_after", "answer_share"}),
        cost="(T + 1) forward passes of the policy per reference answer, and clustering",
    )

    unit: baselines.Unit = "turn"  # counted once in z
    lam: float = 0.5  # λ; 1 = no reward for agreement itself
    gamma: float = 1.0  # γ, discount per turn of the agent
    floor: float = 1e-8  # ε_p, added to the probabilities
    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("siop.unit", self.unit, ("turn",))  # a reward belongs to one turn
        checks.within("siop.lam", self.lam, 0.0, 1.0)
        checks.within("siop.gamma", self.gamma, 0.0, 1.0)
        checks.within("siop.floor", self.floor, 1e-300)
        checks.one_of("siop.ddof", self.ddof, (0, 1))
        checks.within("siop.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        names = ("answer_before", "answer_after", "answer_share")
        known, missing = labelled(batch, *names)
        before, after, share = (
            np.where(known, label(batch, name, 0.0, 1.0), 0.0) for name in names
        )
        sampled = batch.lengths > 0
        several = returns.totals(sampled, agents) > 1
        last = last_of(sampled, agents)
        gain = np.where(several, outcome_potential(before, after, share, self.floor), 0.0)
        reward = gain + np.where(last, (1.0 - self.lam) * share, 0.0)
        pool = self.pool(batch, agents, known)
        compared = baselines.compare(reward, pool, ddof=self.ddof, epsilon=self.epsilon)
        scaled = self.settle(compared.scaled, reward / (1.0 + self.epsilon), pool, batch)
        raw, centred, advantage = (
            returns.to_go(np.where(known, x, 0.0), agents, self.gamma)
            for x in (reward, compared.centred, scaled)
        )
        return turn_credit(
            batch,
            advantage,
            components=ledger(raw, centred, advantage),
            stats={**compared.statistics, **missing},
        )
