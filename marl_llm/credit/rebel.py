"""ReBel: GiGPO whose states are the beliefs that the agent states, with a reward for true ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gigpo import AtStates, relative, singleton_share
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ReBel(AtStates):
    """Reward belief.

        A = (R - mean_cell R) + w · ((G - mean G) + (B - mean B)),   B_k = b_k + γ · B_{k+1}

    R [N] is the whole return of the agent and G [N] its discounted return from the turn on, both
    of the game's rewards; B [N] is the same of the signal "belief_reward" [N], which the first term
    does not see. The means of G and B are over the turns of a cell with the same "belief_key" [N],
    apart, so that a game that pays 10 does not drown beliefs that pay 0.3; a turn alone in its
    belief gets 0. With `mode: mean_std_norm` the three differences are divided by the std of their
    cell plus ε. A belief reward that is missing counts as the mean of its belief, or of the group
    where the belief has none. w = 0 leaves the first term; belief rewards of 0 leave GiGPO with
    beliefs as states.

    Adding a constant to all belief rewards is not neutral: B grows with the turns still to come.

    Source: arXiv 2605.20061 and its code (Fateyetian/Rebel), whose games pay at the end only.
    """

    card: ClassVar[Card] = Card(
        name="rebel",
        title="ReBel",
        source="arXiv 2605.20061",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        needs=frozenset({"belief_key", "belief_reward"}),
        cost="a belief in every reply, and the true state to check it with",
        breaks=frozenset({"shift"}),
    )

    step_weight: float = 0.5  # w

    def __post_init__(self) -> None:
        AtStates.__post_init__(self)
        checks.within("rebel.step_weight", self.step_weight, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        episode, stats = self.whole(batch, agents, self.pool(batch, agents))
        beliefs = baselines.pool(
            batch, agents, (*self.by, "belief_key"), "turn", mix_roles=self.mix_roles
        )
        known, missing = labelled(batch, "belief_reward")
        reward = np.where(known, batch.signal("belief_reward"), 0.0)
        lost = ~known & (batch.lengths > 0)
        for by in (self.by, (*self.by, "belief_key")):  # the belief's mean, where it has one
            told = baselines.pool(batch, agents, by, "turn", mix_roles=self.mix_roles, known=known)
            there = lost & (told.count > 0)[told.cell]
            reward = np.where(there, baselines.mean(reward, told)[told.cell], reward)

        def step(paid: Array) -> Array:
            to_go = returns.to_go(paid, agents, self.gamma)
            apart = relative(to_go, beliefs, self.mode, ddof=1, epsilon=self.epsilon)
            return self.step_weight * apart

        parts = {"episode": episode, "step": step(batch.reward), "belief": step(reward)}
        return turn_credit(
            batch,
            parts["episode"] + parts["step"] + parts["belief"],
            components=parts,
            stats={**stats, "singleton_share": singleton_share(beliefs), **missing},
        )
