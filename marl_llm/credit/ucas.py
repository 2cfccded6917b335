"""UCAS: GRPO's credit, shaped by how sure the model was of a reply and of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns, tokens
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array


def modulation(advantage: Array, z: Array, positive: float, negative: float) -> Array:
    """How much more, or less, a reply counts for its certainty.

        m = exp(-α z) if A > 0,  exp(β z) otherwise

    A right reply counts more if the model was unsure of it, a wrong one if it was sure.

    Args:
        advantage: A, [N].
        z: certainty in standard deviations from the group's mean, [N].
        positive: α.
        negative: β.

    Returns:
        m, [N], above 0.
    """
    return np.exp(np.where(advantage > 0, -positive, negative) * z)


def unit_range(x: Array) -> Array:
    """Shares of the range, (x - min) / (max - min), [M] in [0, 1]; 1/2 if all are equal."""
    if len(x) == 0 or np.ptp(x) == 0:
        return np.full(len(x), 0.5)
    return (x - x.min()) / np.ptp(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class UCAS(FromOutcome):
    """Uncertainty-aware advantage shaping, two stages on top of GRPO.

        S_i = A_i · m_i,   m_i = exp(-α z_i) if A_i > 0, exp(β z_i) otherwise
        A_{i,t} = S_i - λ u_t,   not below 0 if S_i > 0

    Needs the signals "certainty" [M] and "logit" [M]. A_i is GRPO's advantage of an agent's whole
    episode and z_i its certainty, summed over all its tokens, in standard deviations from the mean
    of its cell. u_t in [0, 1] is the sampled token's logit as a share of the range of all M logits
    of the batch: what a token gets hangs on other groups. A group without signal gets -λ u.

    A sum over tokens favours long replies; "mean" is our reading. The published code adds ln |V| to
    the certainty at each token, which matters to a sum: `vocabulary` is |V|.

    Source: Xie et al., UCAS, arXiv 2510.10649, and xvolcano02/UCAS.
    """

    card: ClassVar[Card] = Card(
        name="ucas",
        title="UCAS",
        source="arXiv 2510.10649",
        evidence="code",
        granularity="token",
        methodology="information",
        level="token",
        needs=frozenset({"certainty", "logit"}),
        breaks=frozenset({"zero", "groups"}),
    )

    positive: float = 0.25  # α, per standard deviation of certainty
    negative: float = 0.35  # β, per standard deviation of certainty
    penalty: float = 0.05  # λ, the most that a token can lose
    certainty: Literal["sum", "mean"] = "sum"  # over the agent's tokens in its episode
    vocabulary: int = 1  # |V|, whose ln is added to the certainty of each token

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("ucas.positive", self.positive, 0.0)
        checks.within("ucas.negative", self.negative, 0.0)
        checks.within("ucas.penalty", self.penalty, 0.0)
        checks.one_of("ucas.certainty", self.certainty, ("sum", "mean"))
        checks.within("ucas.vocabulary", self.vocabulary, 1)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        response, stats = self.outcome(batch.reward, batch, agents)
        sure = batch.token_signal("certainty") + np.log(self.vocabulary)
        certainty = returns.totals(tokens.sum_turns(sure, batch.offsets), agents)
        if self.certainty == "mean":
            certainty = certainty / np.maximum(returns.totals(batch.lengths, agents), 1.0)
        z = baselines.standardise(
            certainty, self.pool(batch, agents), ddof=self.ddof, epsilon=self.epsilon
        )
        shaped = response * modulation(response, z, self.positive, self.negative)
        first = tokens.spread(response, batch.offsets)
        second = tokens.spread(shaped, batch.offsets)
        advantage = second - self.penalty * unit_range(batch.token_signal("logit"))
        advantage = np.where(second > 0, np.maximum(advantage, 0.0), advantage)
        return token_credit(
            batch,
            advantage,
            components={
                "response": first,
                "certainty": second - first,
                "logit": advantage - second,
            },
            stats=stats,
        )
