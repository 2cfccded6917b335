"""Turn ablation: what an episode's return loses when one turn is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, Chains, sums


def multipliers(loss: Array, known: Array, sampled: Array, agents: Chains, slope: float) -> Array:
    """Losses as factors around 1 for the turns of an agent.

        m = (1 + slope · tanh(z(c))) / mean,   z(c) = (c - mean c) / std c over the agent's turns

    Args:
        loss: c, [N].
        known: turns whose loss is known, [N] bool; the others have 1 before the division.
        sampled: turns that count in the mean, [N] bool.
        agents: chains of (episode, agent).
        slope: in [0, 1).

    Returns:
        m, [N] float64, above 0, mean 1 over an agent's sampled turns; exactly 1 where its losses
        are equal.
    """
    weight = sampled.astype(np.float64)
    each = baselines.Pool(agents.of, weight, sums(weight, agents.of, agents.count))
    z = baselines.standardise(loss, baselines.counting(each, known), ddof=0, epsilon=0.0)
    factor = 1.0 + slope * np.tanh(np.where(known, z, 0.0))
    middle = baselines.mean(factor, each)[agents.of]
    return np.divide(factor, middle, out=np.ones(len(loss)), where=sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAblation(FromOutcome):
    """GRPO's advantage, shared out among an agent's turns by what each one's absence costs.

        c_k = R - R without turn k,   m = (1 + slope · tanh(z(c))) / mean,   A_k = m_k · z(R)

    R [N] is the whole return of the agent, "ablated_return" [N] the signal that says what it would
    have been without the turn. z(c) is over the agent's turns in the episode, with the population's
    std; the mean of m over them is 1, so nothing is added to GRPO's total, and no sign changes. An
    ablation that is missing has m = 1 before the division. slope = 0 is GRPO.

    The difference and its z are from a paper on jailbreaks, as notes on it say. The map from z to
    m is ours, since none was found, and the paper's local penalty is left out.

    Source: our reading of the credit formula of TRACE (the jailbreak method), second hand.
    """

    card: ClassVar[Card] = Card(
        name="turn_ablation_reading",
        title="Turn ablation",
        source="our reading of notes on TRACE, the jailbreak method",
        evidence="reading",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"ablated_return"}),
        cost="T replays",
    )

    slope: float  # how far m goes from 1, in [0, 1)

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("turn_ablation_reading.slope", self.slope, 0.0, 0.999)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        known, missing = labelled(batch, "ablated_return")
        loss = returns.totals(batch.reward, agents) - batch.signal("ablated_return")
        factor = multipliers(loss, known, batch.lengths > 0, agents, self.slope)
        outcome, stats = self.outcome(batch.reward, batch, agents)
        return turn_credit(
            batch,
            factor * outcome,
            components={"outcome": outcome, "ablation": (factor - 1.0) * outcome},
            stats={**stats, **missing},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationDelta:
    """What the return loses without the turn, and nothing else.

        A_k = R - R without turn k

    R [N] is the whole return of the agent, "ablated_return" [N] the signal that says what it would
    have been without the turn. A turn that changes nothing gets exactly 0, whatever the episode
    earned; two turns of which either would do get 0 both. A missing ablation gives 0.

    Source: our reading of the credit formula of TRACE (the jailbreak method), second hand.
    """

    card: ClassVar[Card] = Card(
        name="ablation_delta_reading",
        title="Turn ablation alone",
        source="our reading of notes on TRACE, the jailbreak method",
        evidence="reading",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"ablated_return"}),
        cost="T replays",
        breaks=frozenset({"shift"}),
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        known, missing = labelled(batch, "ablated_return")
        total = returns.totals(batch.reward, batch.agents())
        without = np.where(known, batch.signal("ablated_return"), total)
        return turn_credit(
            batch, total - without, components=ledger(total, total - without), stats=missing
        )
