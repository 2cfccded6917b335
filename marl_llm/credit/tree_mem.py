"""TreeMem: each role of a pipeline is worth the mean of all that was made of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns, trees
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import sums


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMem(Grouped):
    """Credit of a role by averaging over what the roles after it did.

        A = (V - mean of V over the role) / (std of V over the role + ε)      against: role
        A = V - V(in front of the decision)                                   against: parent

    Needs the signal "node" [N]: equal for the copies of one decision in the episodes forked behind
    it. V is the mean return over the leaves below the decision: with G builders, J summaries of
    each and K answers to each summary, an answer is worth its own return, a summary the mean of its
    K, a builder's memory the mean of its J·K. Cells are the roles of a group, and count every
    decision once. Node means compare a summary of a good memory with one of a bad memory; `against:
    parent` compares it with the others of the same memory, and adds up along an episode to the
    return minus V(root) where all are paid alike.

    The paper trains one path below each builder and takes its mean and std over these G; here all
    decisions are counted and, copies (signal "replayed") apart, trained. Its length penalty is a
    reward of the builder's own.

    Source: Mao et al., TreeMem, arXiv 2605.04811. Neither ddof nor ε is given there.
    """

    card: ClassVar[Card] = Card(
        name="tree_mem",
        title="TreeMem",
        source="arXiv 2605.04811",
        evidence="notes",
        granularity="agent",
        methodology="monte carlo",
        needs=frozenset({"node"}),
        cost="a tree of rollouts: G·J·K leaves",
    )

    by: tuple[str, ...] = ("group", "role")
    against: Literal["role", "parent"] = "role"
    ddof: int  # of the standard deviation over a role
    epsilon: float  # added to it, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("tree_mem.unit", self.unit, ("agent",))  # a decision counts once
        checks.one_of("tree_mem.against", self.against, ("role", "parent"))
        checks.one_of("tree_mem.ddof", self.ddof, (0, 1))
        checks.within("tree_mem.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        tree = trees.grow(batch)
        total = returns.totals(batch.reward, agents)
        siblings = trees.siblings(tree, batch)
        if self.against == "parent":
            worth, front = trees.values(tree, batch, total)
            advantage = worth - front
            components = ledger(worth, advantage)
        else:
            worth = trees.worth(tree, total)
            cell = self.pool(batch, agents).cell
            weight = tree.first.astype(np.float64)
            pool = baselines.Pool(cell, weight, sums(weight, cell, int(cell.max(initial=-1)) + 1))
            compared = baselines.compare(worth, pool, ddof=self.ddof, epsilon=self.epsilon)
            advantage = self.settle(compared.scaled, worth / (1.0 + self.epsilon), pool, batch)
            components = ledger(worth, compared.centred, advantage)
        return turn_credit(
            batch,
            advantage,
            components=components,
            stats=trees.statistics(tree, siblings),
            weight=trees.once(batch),
        )
