"""Stepwise gain: how much a turn raised the expected return, in units of the spread of gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import filled, gae, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class StepwiseGain(Grouped):
    """Gains in the estimated return, normalised over all turns of the cell at once.

        g_k = r_k + V_{k+1} - V_k,   A_k = (g_k - mean_cell g) / (std_cell g + ε)

    Needs the signal "value" [N], the return that is expected from before each turn on; after an
    agent's last turn it is 0, or the signal "value_next" [N] if the episode was cut short. With one
    reward at the end, g is the estimate after the turn minus the estimate before it. All turns of
    the cell are one sample, whatever their place: normalising each place by itself would make a
    large early gain and a small late one look alike. A turn whose value is missing gains nothing,
    is not counted, and gets 0; its neighbour before it gains what both did.

    Source: Stepwise-Flow-GRPO, arXiv 2603.28718, where the steps are those of a flow sampler and
    estimates come from the image expected at each; turns of agents are our transfer.
    """

    card: ClassVar[Card] = Card(
        name="stepwise_gain",
        title="Stepwise gain",
        source="arXiv 2603.28718",
        evidence="notes",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value"}),
        cost="a critic's T values",
        breaks=frozenset({"shift"}),
    )

    unit: baselines.Unit = "turn"  # counted once: turn, or token
    ddof: int = 0  # of the standard deviation
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("stepwise_gain.unit", self.unit, ("turn", "token"))
        checks.one_of("stepwise_gain.ddof", self.ddof, (0, 1))
        checks.within("stepwise_gain.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        reward = np.asarray(batch.reward, dtype=np.float64)
        sampled, end = batch.lengths > 0, value_end(batch, agents)
        known = batch.known("value") & sampled
        value = filled(reward, batch.signal("value"), known, end, agents, 1.0)
        gain = gae(reward, value, end, agents, gamma=1.0, lam=0.0)
        pool = self.pool(batch, agents, known)
        scaled = baselines.standardise(gain, pool, ddof=self.ddof, epsilon=self.epsilon)
        raw = gain / (1.0 + self.epsilon)
        advantage = np.where(known, self.settle(scaled, raw, pool, batch), 0.0)
        return turn_credit(
            batch,
            advantage,
            components=ledger(gain, baselines.centre(gain, pool), advantage),
            stats=baselines.pool_statistics(gain, pool)
            | {"missing_labels": float(np.sum(sampled & ~known))},
        )
