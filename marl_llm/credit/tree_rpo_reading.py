"""TreeRPO, read for turns: a decision against its siblings, by what grew from each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks, returns, trees
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRPOReading:
    """Tree relative policy optimisation, a decision being the step.

        A = (V - mean of V over the siblings) / (std of V over the siblings + ε)

    Needs the signal "node" [N]: equal for the copies of one decision in the episodes forked behind
    it. V is the mean of what the agent got below the decision, a leaf's V its return. Siblings are
    the decisions that an agent took in the same state, each counted once. An only child, and
    siblings of equal worth, get exactly 0. Copies, by the signal "replayed", have weight 0.

    Source: our reading of the abstract of TreeRPO, Yang et al., arXiv 2506.05183: expected rewards
    of steps by tree sampling, and groups of siblings in the place of GRPO's. Its steps are of a
    number of tokens. How it takes the spread is not known to us: `ddof` and `epsilon` have no
    default.
    """

    card: ClassVar[Card] = Card(
        name="tree_rpo_reading",
        title="TreeRPO over turns",
        source="our reading of arXiv 2506.05183",
        evidence="reading",
        granularity="turn",
        methodology="monte carlo",
        needs=frozenset({"node"}),
        cost="a tree of rollouts",
    )

    ddof: int  # of the standard deviation over siblings
    epsilon: float  # added to it, in units of reward
    average: trees.Average = "children"  # of what V is the mean; unlike in trees of uneven growth

    def __post_init__(self) -> None:
        checks.one_of("tree_rpo_reading.ddof", self.ddof, (0, 1))
        checks.within("tree_rpo_reading.epsilon", self.epsilon, 0.0)
        checks.one_of("tree_rpo_reading.average", self.average, trees.AVERAGES)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        tree = trees.grow(batch)
        total = returns.totals(batch.reward, batch.agents())
        worth = trees.worth(tree, total, self.average)
        siblings = trees.siblings(tree, batch)
        compared = baselines.compare(worth, siblings, ddof=self.ddof, epsilon=self.epsilon)
        return turn_credit(
            batch,
            compared.scaled,
            components=ledger(worth, compared.centred, compared.scaled),
            stats=trees.statistics(tree, siblings),
            weight=trees.once(batch),
        )
