"""SPO-tree: what a decision changed in the value of the tree below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns, trees
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given


@dataclass(frozen=True, slots=True, kw_only=True)
class SPOTree:
    """Segment policy optimisation on trees, a decision being the segment.

        A = V(behind the decision) - V(in front of it)                                edges: rloo
        A = (V(behind) - V(in front)) / (std of V over its alternatives + ε)          edges: grpo

    Needs the signal "node" [N]: equal for the copies of one decision in the episodes forked behind
    it. V is what the agent got in its whole episode, averaged from the leaves up, every child of a
    state counting once (`average: children`) or every episode (`episodes`). Along an episode the
    credit of a team that is paid alike adds up to its return minus V(root); over the alternatives
    in one state it adds up to 0. The authors call the plain difference "rloo", although a child is
    part of its parent's mean.

    As in the code, decisions with exactly 0 are not trained (`drop_zero`), and a decision that
    episodes share is trained once: copies, by the signal "replayed", have weight 0.

    Source: Guo et al., Segment Policy Optimization, arXiv 2505.23564, and its code
    (AIFrameResearch/SPO), where a segment is a number of tokens.
    """

    card: ClassVar[Card] = Card(
        name="spo_tree",
        title="SPO-tree",
        source="arXiv 2505.23564",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        needs=frozenset({"node"}),
        cost="a tree of rollouts",
    )

    edges: Literal["rloo", "grpo"] = "rloo"
    average: trees.Average = "children"  # of what V is the mean; unlike in trees of uneven growth
    drop_zero: bool = True  # decisions with credit 0 get weight 0
    epsilon: float = 1e-8  # added to the standard deviation, which is the population's

    def __post_init__(self) -> None:
        checks.one_of("spo_tree.edges", self.edges, ("rloo", "grpo"))
        checks.one_of("spo_tree.average", self.average, trees.AVERAGES)
        checks.within("spo_tree.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        tree = trees.grow(batch)
        total = returns.totals(batch.reward, batch.agents())
        behind, front = trees.values(tree, batch, total, self.average)
        siblings = trees.siblings(tree, batch)
        advantage = behind - front
        if self.edges == "grpo":
            spread = baselines.std(behind, siblings, ddof=0)[siblings.cell]
            advantage = np.divide(
                advantage, spread + self.epsilon, out=np.zeros(len(batch)), where=spread > 0
            )
        weight = trees.once(batch)
        return turn_credit(
            batch,
            advantage,
            components=ledger(behind, behind - front, advantage),
            stats=trees.statistics(tree, siblings),
            weight=np.where(advantage == 0, 0.0, weight) if self.drop_zero else weight,
        )
