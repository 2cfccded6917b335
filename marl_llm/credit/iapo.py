"""IAPO: an agent's advantage moved to the turns that others of its turns rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome, budgets, spend
from marl_llm.credit.segments import Array


def reliance(feature: Array, counted: baselines.Pool, clip: float, epsilon: float) -> Array:
    """Factors that grow with a feature, bounded, of mean 1 over the tokens of a budget.

        ζ = (φ - mean φ) / (std φ + ε),   m = exp(clip(ζ, ±c)),   divided by the mean of m

    All means and the standard deviation count every token once.

    Args:
        feature: φ, [N].
        counted: the budgets; a turn that does not count has factor 1.
        clip: c, at least 0.
        epsilon: ε, at least 0.

    Returns:
        m, [N], in [e^-2c, e^2c]; 1 where all features of the budget are equal.
    """
    zeta = baselines.standardise(feature, counted, ddof=0, epsilon=epsilon)
    return spend(np.exp(np.clip(zeta, -clip, clip)), counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iapo(FromOutcome):
    """Weigh GRPO's advantage by a graph of which turn supports which.

        φ⁺ = log(1 + d⁺ + d_in),   φ⁻ = log(1 + e · (1 + d⁻ + d_in))
        A > 0:  w = m(φ⁺) · exp(-β · (φ⁻ - mean φ⁻)), divided by its mean
        A < 0:  w = m(φ⁻)
        A_j = A · w_j

    Signals over turns [N]: "support_out" d⁺ edges to turns that use this one, "support_in" d_in
    edges from turns that this one uses, "contradicted" d⁻ edges of failed use, "faulty" e = 1
    where the turn is wrong. m is `reliance`; all means are over the agent's sampled tokens, so the
    sum over tokens stays A · N and no sign changes. A turn without all four labels keeps A. Edges
    that are known from ids (a call, a quoted message) need no judge.

    Source: IAPO, arXiv 2608.24588.
    """

    card: ClassVar[Card] = Card(
        name="iapo",
        title="IAPO",
        source="arXiv 2608.24588",
        evidence="paper",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"support_out", "support_in", "contradicted", "faulty"}),
        cost="1 judge call for the support graph",
    )

    clip: float = 0.25  # c, bounds the standardised feature
    beta: float = 0.05  # β, how much an error takes from a turn of a good episode
    graph_epsilon: float = 1e-6  # added to the feature's standard deviation

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("iapo.clip", self.clip, 0.0)
        checks.within("iapo.beta", self.beta, 0.0)
        checks.within("iapo.graph_epsilon", self.graph_epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        names = ("support_out", "support_in", "contradicted", "faulty")
        known, missing = labelled(batch, *names)
        used, uses, refuted = (np.where(known, label(batch, name, 0.0), 0.0) for name in names[:3])
        faulty = np.where(known, label(batch, "faulty", 0.0, 1.0), 0.0)
        counted = budgets(batch, agents, known)
        blame = np.log1p(faulty * (1.0 + refuted + uses))
        praise = reliance(np.log1p(used + uses), counted, self.clip, self.graph_epsilon)
        praise = spend(praise * np.exp(-self.beta * baselines.centre(blame, counted)), counted)
        blamed = reliance(blame, counted, self.clip, self.graph_epsilon)
        factor = np.where(outcome >= 0, praise, blamed)
        return turn_credit(
            batch,
            outcome * factor,
            components={"outcome": outcome, "support": outcome * (factor - 1.0)},
            stats={**stats, **missing},
        )
