"""Tree-GRPO: an episode against its group and against its tree, in sequence or as a sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, Chains, cells, sums

CARD = Card(
    name="tree_grpo",
    title="Tree-GRPO",
    source="arXiv 2509.21240",
    evidence="code",
    granularity="response",
    methodology="monte carlo",
    needs=frozenset({"node", "tree"}),
    cost="trees of rollouts",
)


def copies(batch: TurnBatch) -> tuple[baselines.Pool, Array]:
    """The copies of each decision, and weights that train it as training all of them would.

        A = mean over its copies,   weight = number of copies / number of rows that are trained

    Args:
        batch: N turns with the signal "node" and, if copies are not to be trained, "replayed".

    Returns:
        The decisions as cells, and the weight of each turn, [N]; that of copies that are not
        trained is 0.
    """
    sampled = (batch.lengths > 0).astype(np.float64)
    cell, count = cells((batch.group, batch.column("node")), len(batch))
    shared = baselines.Pool(cell, sampled, sums(sampled, cell, count))
    trained = sampled
    if "replayed" in batch.signals:
        trained = sampled * (batch.signal("replayed") == 0)
    rows = np.maximum(sums(trained, cell, count), 1.0)
    return shared, trained * (shared.count / rows)[cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGRPO(Grouped):
    """What both forms share: GRPO's z over a group, and again in each tree. Not a rule itself."""

    in_sequence: ClassVar[bool]  # what is standardised in a tree: z of the group, or the returns

    ddof: int = 1  # of the standard deviations
    epsilon: float = 1e-6  # added to them, in units of reward
    lone_tree: baselines.Singleton  # an episode alone in its tree: "raw" keeps what it had

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        name = self.card.name
        checks.one_of(f"{name}.ddof", self.ddof, (0, 1))
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)
        checks.one_of(f"{name}.lone_tree", self.lone_tree, checks.SINGLETON_RULES)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        inter, group = self._against(total, batch, agents, self.by, self.singleton)
        intra, tree = self._against(
            inter if self.in_sequence else total, batch, agents, (*self.by, "tree"), self.lone_tree
        )
        leaf = {"group": inter, "tree": intra - inter if self.in_sequence else intra}
        decisions, weight = copies(batch)
        shared = {
            name: baselines.mean(part, decisions)[decisions.cell] for name, part in leaf.items()
        }
        return turn_credit(
            batch,
            shared["group"] + shared["tree"],
            components=shared,
            stats={
                "groups": float(np.sum(group.count > 0)),
                "trees": float(np.sum(tree.count > 0)),
                "lone_trees": float(np.sum(tree.count == 1)),
            },
            weight=weight,
        )

    def _against(
        self,
        x: Array,
        batch: TurnBatch,
        agents: Chains,
        within: tuple[str, ...],
        alone: baselines.Singleton,
    ) -> tuple[Array, baselines.Pool]:
        """GRPO's z of the leaves in the cells of some columns, [N], and the cells.

        Args:
            x: of the leaves, the same at all their turns, [N].
            batch: N turns.
            agents: its chains of (episode, agent).
            within: the columns.
            alone: what a leaf gets that is its own cell.
        """
        pool = baselines.pool(batch, agents, within, self.unit, mix_roles=self.mix_roles)
        z = baselines.standardise(x, pool, ddof=self.ddof, epsilon=self.epsilon)
        raw = x / (1.0 + self.epsilon)
        few = baselines.alone(pool)
        return baselines.settle(z, raw, few, alone, batch.lengths > 0), pool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGRPOSequential(TreeGRPO):
    """Tree-GRPO with both normalisations in sequence.

        z = (R - mean_cell R) / (std_cell R + ε),   A = (z - mean_tree z) / (std_tree z + ε)

    Needs the signals "tree" [N], the number of the tree that an episode grew in, and "node" [N],
    equal for the copies of one decision in the episodes forked behind it. R is the return of the
    agent in its episode, and every episode is a leaf that counts once. With one tree it is GRPO, up
    to ε; every tree adds up to 0. An episode that is a tree by itself keeps z, as in the code
    (`lone_tree: raw`). What episodes share gets the mean of theirs, with as much weight as all
    copies together, whether or not the signal "replayed" leaves copies out.

    Source: code of Tree-GRPO (AMAP-ML/Tree-GRPO, advantage "tree_2norm"), arXiv 2509.21240.
    """

    card: ClassVar[Card] = replace(
        CARD, name="tree_grpo_sequential", title="Tree-GRPO, in sequence"
    )
    in_sequence: ClassVar[bool] = True

    lone_tree: baselines.Singleton = "raw"  # an episode alone in its tree: "raw" keeps z


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGRPOSum(TreeGRPO):
    """Tree-GRPO with both normalisations side by side, as in the paper and its experiments.

        A = (R - mean_cell R) / (std_cell R + ε) + (R - mean_tree R) / (std_tree R + ε)

    Needs the signals "tree" [N], the number of the tree that an episode grew in, and "node" [N],
    equal for the copies of one decision in the episodes forked behind it. R is the return of the
    agent in its episode, and every episode is a leaf that counts once. An episode that is a tree by
    itself gets 0 from its tree; in the code it gets its raw return there (`lone_tree: raw`), which
    no baseline touches. What episodes share gets the mean of theirs, with as much weight as all
    copies together, whether or not the signal "replayed" leaves copies out.

    Source: code of Tree-GRPO (AMAP-ML/Tree-GRPO, advantage "tree"), arXiv 2509.21240.
    """

    card: ClassVar[Card] = replace(CARD, name="tree_grpo_sum", title="Tree-GRPO, as a sum")
    in_sequence: ClassVar[bool] = False

    lone_tree: baselines.Singleton = "zero"  # an episode alone in its tree; the code has "raw"
