"""TOCA with a critic: GAE from which the luck of the roster is taken out, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import filled, gae, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import scan_back
from marl_llm.credit.turnover import refuse_endogenous


@dataclass(frozen=True, slots=True, kw_only=True)
class TOCAGAEReading:
    """Generalised advantage estimation without turnover innovations.

        A_k = Σ_{j≥k} (γλ)^(j-k) · (δ_j - τ_j) = Σ_{j≥k} (γλ)^(j-k) · (r_j + γ · V_{j+1} - b_j)
        δ_j = r_j + γ · V_{j+1} - V_j,   τ_j = b_j - V_j

    The signal "value" [N] is V before the turn, of what is known without the event at hand;
    "value_event" [N] is b, the same critic's value with it. τ, what the event alone changed, has
    mean 0 if no action had a part in it, so that leaving it out changes no expected gradient and
    takes its noise away: of the pay of any event whatever, nothing is left. What actions do for or
    against the event stays. It is the same formula whether the agent saw the event before it acted
    or not; to go on from b instead of V would put the next τ back in.

    The signal "event_exogenous" [N] says that no action had a part in the event; others are refused
    unless allowed. Where an episode was cut short, "value_next" [N] says what was still to come.
    A turn without b counts as one without an event, τ = 0.

    `Credit.targets` is what V should have said, δ summed and V.

    Source: our reading of arXiv 2610.02847, of which we know the abstract.
    """

    card: ClassVar[Card] = Card(
        name="toca_gae_reading",
        title="TOCA over turns",
        source="our reading of arXiv 2610.02847",
        evidence="reading",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value", "value_event", "event_exogenous"}),
        cost="a critic's 2 T values",
        breaks=frozenset({"shift"}),
    )

    gamma: float = 1.0  # discount per turn of the agent
    lam: float = 0.95  # per turn of the agent
    allow_endogenous: bool = False

    def __post_init__(self) -> None:
        checks.within("toca_gae_reading.gamma", self.gamma, 0.0, 1.0)
        checks.within("toca_gae_reading.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        refuse_endogenous(batch, self.card.name, self.allow_endogenous)
        agents = batch.agents()
        reward, end = np.asarray(batch.reward, dtype=np.float64), value_end(batch, agents)
        value = filled(reward, batch.signal("value"), batch.known("value"), end, agents, self.gamma)
        both = batch.known("value") & batch.known("value_event")
        innovation = np.where(both, batch.signal("value_event") - value, 0.0)
        plain = gae(reward, value, end, agents, self.gamma, self.lam)
        turnover = scan_back(innovation, self.gamma * self.lam, agents)
        _, stats = labelled(batch, "value", "value_event")
        return turn_credit(
            batch,
            plain - turnover,
            components={"gae": plain, "turnover": -turnover},
            stats=stats,
            targets=plain + value,
        )
