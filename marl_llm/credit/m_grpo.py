"""M-GRPO: a planner and its sub-agents, each call against the calls of the same query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.calls import call_chains, nested_shares
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, cells, sums

Alignment = Literal["weights", "nested", "none"]


def duplicate_or_drop(rollout: Array, size: int, rng: np.random.Generator) -> Array:
    """How often each call counts when every rollout is brought to the same number of calls.

    A rollout with fewer calls repeats some, drawn with replacement; one with more loses some, drawn
    without. A call of a rollout of n counts size / n times on average.

    Args:
        rollout: number of the rollout that each call belongs to, [C] int from 0 on.
        size: d, calls of a rollout afterwards.
        rng: of the draws.

    Returns:
        [C] int; the sum over each rollout is d.
    """
    have = np.bincount(rollout)
    start = np.cumsum(have) - have
    shuffled = np.lexsort((rng.random(len(rollout)), rollout))
    rank = np.empty(len(rollout), dtype=np.int64)
    rank[shuffled] = np.arange(len(rollout)) - np.repeat(start, have)
    short = np.repeat(np.arange(len(have)), np.where(have > 0, np.maximum(size - have, 0), 0))
    again = shuffled[start[short] + rng.integers(0, have[short])]
    return (rank < size) + np.bincount(again, minlength=len(rollout))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Settings and steps of a comparison between calls, whatever each of them weighs."""

    card: ClassVar[Card]

    by: tuple[str, ...] = ("group", "role", "depth")  # equal values make a cell
    singleton: baselines.Singleton = "zero"  # a call alone: 0, "raw" return, or "error"
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        name = self.card.name
        object.__setattr__(self, "by", checks.key_names(f"{name}.by", self.by))
        checks.one_of(f"{name}.singleton", self.singleton, checks.SINGLETON_RULES)
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        calls, sampled = call_chains(batch), batch.lengths > 0
        total = returns.totals(batch.reward, calls)
        each = baselines.pool(batch, calls, self.by, "agent", mix_roles=self.mix_roles)
        share = self.shares(batch, calls, each, given)
        weight = each.weight * share
        counted = baselines.Pool(each.cell, weight, sums(weight, each.cell, len(each.count)))
        advantage = baselines.settle(
            baselines.standardise(total, counted, ddof=0, epsilon=self.epsilon),
            raw=total / (1.0 + self.epsilon),
            few=baselines.alone(each),
            rule=self.singleton,
            sampled=sampled,
        )
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, baselines.centre(total, counted), advantage),
            stats=baselines.pool_statistics(total, each),
            weight=share * sampled,
        )

    def shares(self, batch: TurnBatch, calls: Chains, each: baselines.Pool, given: Given) -> Array:
        """How much the call of each row counts, [N].

        Args:
            batch: N turns.
            calls: its `call_chains`.
            each: the cells, in which every call counts once.
            given: what the estimator may use beside them.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class MGRPO(Aligned):
    """Group-relative advantages for a planner and the sub-agents that it calls.

        A = (R - mean_q R) / (std_q R + ε)

    R [N] is what an agent got in one call, and the whole return for the planner. At depth 0 the
    statistics are over the planner's episodes at query q. Below, they are over all calls of one
    role at q, in all its episodes; since episode k makes d_k calls, these are aligned:

        weights   a call counts 1/d_k in mean and std, and its turns weigh 1/d_k in the loss
        nested    the same down a tree of calls: w(call) = w(caller) / calls of the caller
        none      every call counts once

    The paper duplicates or drops calls at random instead, see `m_grpo_random`; a call of episode k
    then counts d/d_k times on average, so "weights" is that rule without its noise: our reading of
    it. An episode without calls counts for the planner only. A call alone at its query gets 0.

    Source: M-GRPO, arXiv 2511.13288, which has the std over n and no ε.
    """

    card: ClassVar[Card] = Card(
        name="m_grpo",
        title="M-GRPO",
        source="arXiv 2511.13288",
        evidence="paper",
        granularity="agent",
        methodology="monte carlo",
    )

    alignment: Alignment = "weights"  # or "nested", "none": see above

    def __post_init__(self) -> None:
        Aligned.__post_init__(self)
        checks.one_of("m_grpo.alignment", self.alignment, ("weights", "nested", "none"))

    def shares(self, batch: TurnBatch, calls: Chains, each: baselines.Pool, given: Given) -> Array:
        """How much the call of each row counts, [N]."""
        if self.alignment == "nested":
            return nested_shares(batch, calls)
        if self.alignment == "none":
            return np.ones(len(batch))
        rollout, rollouts = cells((batch.episode, each.cell), len(batch))
        return 1.0 / np.maximum(sums(each.weight, rollout, rollouts), 1.0)[rollout]


@dataclass(frozen=True, slots=True, kw_only=True)
class MGRPORandom(Aligned):
    """M-GRPO with the paper's alignment: every episode is brought to d calls by chance.

        A = (R - mean_q R) / (std_q R + ε),   mean and std over the d calls of each episode at q

    An episode with fewer calls of a role repeats some of them, drawn at random; one with more loses
    some, whose turns weigh 0. A turn weighs copies/d, so that every episode weighs the same. The
    planner's turns weigh 1. `size` is d, which the paper chooses so that 99% of the episodes make
    no more calls, 8 in its experiments. An episode without calls has nothing to copy, a case that
    the paper leaves open: it counts for the planner only.

    Source: M-GRPO, arXiv 2511.13288, which has the std over n and no ε.
    """

    card: ClassVar[Card] = Card(
        name="m_grpo_random",
        title="M-GRPO with random alignment",
        source="arXiv 2511.13288",
        evidence="paper",
        granularity="agent",
        methodology="monte carlo",
        draws=True,
    )

    size: int = 8  # d, calls of each role in an episode after the alignment

    def __post_init__(self) -> None:
        Aligned.__post_init__(self)
        checks.whole("m_grpo_random.size", self.size, 1)

    def shares(self, batch: TurnBatch, calls: Chains, each: baselines.Pool, given: Given) -> Array:
        """How much the call of each row counts, [N]."""
        rng = given.draws(self.card.name)
        speaks = np.flatnonzero(each.weight)  # one sampled turn of each call
        speaks = speaks[np.argsort(calls.of[speaks])]  # in an order that the rows do not decide
        rollout, _ = cells((batch.episode[speaks], each.cell[speaks]), len(speaks))
        copies = np.zeros(calls.count)
        copies[calls.of[speaks]] = duplicate_or_drop(rollout, self.size, rng)
        return np.where(batch.depth > 0, copies[calls.of] / self.size, 1.0)
