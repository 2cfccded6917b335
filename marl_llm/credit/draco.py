"""DRACO: an agent's advantage split over its turns by the rubric criteria that cite them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome, budgets, spend
from marl_llm.credit.segments import Array, Chains, sums


def quality(passed: Array, failed: Array, agents: Chains) -> Array:
    """How well a turn did by the criteria that cite it.

        Q_j = p_j / (p_j + f_j);   where nothing cites it, the mean of the agent's cited turns

    Args:
        passed: p, criteria passed that cite the turn, [N].
        failed: f, the same failed, [N].
        agents: chains of (episode, agent).

    Returns:
        Q, [N] in [0, 1]. NaN for an agent none of whose turns is cited.
    """
    cites = passed + failed
    cited = cites > 0
    own = np.divide(passed, cites, out=np.full(len(cites), np.nan), where=cited)
    weight = cited.astype(np.float64)
    pool = baselines.Pool(agents.of, weight, sums(weight, agents.of, agents.count))
    mean = baselines.mean(np.where(cited, own, 0.0), pool)
    mean = np.where(pool.count > 0, mean, np.nan)
    return np.where(cited, own, mean[agents.of])


@dataclass(frozen=True, slots=True, kw_only=True)
class Draco(FromOutcome):
    """Spend GRPO's advantage where a rubric saw good work, or its blame where it saw none.

        w_j = Q_j if A ≥ 0, else 1 - Q_j
        A_j = A · N · w_j / (n_j · Σ_l w_l)

    Q [N] is the share passed of the criteria that cite the turn, from the signals "rubric_pass"
    and "rubric_fail" [N]; a turn that none cites, or without a label, has the mean of the agent's
    cited turns. n_j is the number of its sampled tokens and N that of all the agent's. A_j goes to
    *each* token of the turn, so the agent's sum over tokens stays A · N, and of two turns with
    equal Q the shorter one has more on each token. Where nothing is cited, or Σ w = 0 (ours), A_j
    is A.

    R is what the game pays. In the paper it is (passed - failed) / all criteria of the rubric: pay
    that as the reward for the method as a whole.

    Source: DRACO, arXiv 2609.04094.
    """

    card: ClassVar[Card] = Card(
        name="draco",
        title="DRACO",
        source="arXiv 2609.04094",
        evidence="paper",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"rubric_pass", "rubric_fail"}),
        cost="1 long judge call",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        known, missing = labelled(batch, "rubric_pass", "rubric_fail")
        good = quality(
            np.where(known, label(batch, "rubric_pass", 0.0), 0.0),
            np.where(known, label(batch, "rubric_fail", 0.0), 0.0),
            agents,
        )
        uncited = np.isnan(good)
        share = np.where(outcome >= 0, good, 1.0 - good) / np.maximum(batch.lengths, 1)
        sampled = batch.lengths > 0
        factor = spend(np.where(uncited, 1.0, share), budgets(batch, agents, sampled))
        return turn_credit(
            batch,
            outcome * factor,
            components={"outcome": outcome, "rubric": outcome * (factor - 1.0)},
            stats={**stats, **missing, "uncited_turns": float(np.sum(uncited & sampled))},
        )
