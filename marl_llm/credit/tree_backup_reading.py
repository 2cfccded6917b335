"""TreeGRPO's back-up, read for turns: leaves are normalised, then averaged up the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import baselines, checks, returns, trees
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBackupReading(Grouped):
    """Leaf advantages backed up: a decision gets the mean advantage of the leaves below it.

        z = (R - mean_cell R) / (std_cell R + ε),   A = mean of z below the decision

    Needs the signal "node" [N]: equal for the copies of one decision in the episodes forked behind
    it. R is the return of the agent in an episode, counted once per leaf. Nothing of the decision's
    parent is subtracted: all decisions below a good one are praised for it. Whether a mean counts
    leaves or children is not known to us, so `average` has no default. Copies, by the signal
    "replayed", have weight 0.

    Source: our reading of the abstract of TreeGRPO, arXiv 2512.08153, whose tree is the denoising
    of an image.
    """

    card: ClassVar[Card] = Card(
        name="tree_backup_reading",
        title="TreeGRPO's back-up over turns",
        source="our reading of arXiv 2512.08153",
        evidence="reading",
        granularity="turn",
        methodology="monte carlo",
        needs=frozenset({"node"}),
        cost="a tree of rollouts",
    )

    average: trees.Average  # of what A is the mean; unlike in trees of uneven growth
    ddof: int  # of the standard deviation over leaves
    epsilon: float  # added to it, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("tree_backup_reading.average", self.average, trees.AVERAGES)
        checks.one_of("tree_backup_reading.ddof", self.ddof, (0, 1))
        checks.within("tree_backup_reading.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        tree = trees.grow(batch)
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        leaf = self.standardise(total, pool, batch, ddof=self.ddof, epsilon=self.epsilon)
        backed_up = trees.worth(tree, leaf, self.average)
        return turn_credit(
            batch,
            backed_up,
            components={"leaf": leaf, "back-up": backed_up - leaf},
            stats={
                **baselines.pool_statistics(total, pool),
                **trees.statistics(tree, trees.siblings(tree, batch)),
            },
            weight=trees.once(batch),
        )
