"""LCA: what a turn changed in a score that was fitted to rankings of states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array, Chains, following


def potential_differences(
    potential: Array, end: Array, agents: Chains, gamma: float
) -> tuple[Array, Array]:
    """What each turn changed in a score of the state.

        F_k = γ · φ_{k+1} - φ_k

    Args:
        potential: φ before the turn, [N].
        end: φ after the agent's last turn, [N]; read at last turns only.
        agents: chains of (episode, agent).
        gamma: γ, discount per turn of the agent.

    Returns:
        The two parts γ φ_{k+1} and -φ_k of F, [N] each. Σ_k γ^k F_k = γ^K φ_K - φ_0.
    """
    return gamma * following(potential, agents, end), -np.asarray(potential, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LCAReading:
    """Credit by potential differences, each agent with a potential of its own.

        A_k = γ · φ_i(s_{k+1}) - φ_i(s_k)

    A language model ranks pairs of states as agent i sees the team's task, and φ_i is fitted to the
    rankings (Bradley-Terry); contradicting rankings drive differences to 0. φ before the turn is
    the signal "potential" [N], φ after the agent's last turn "potential_next" [N]. A newcomer
    starts from φ of the state that it finds, so taking over is neither paid nor charged. With γ = 1
    the credits of an agent sum to φ at the end minus φ at the start. Rewards are not read; where
    the team is paid too, add the two. A turn next to a missing score gets 0.

    Source: our reading of arXiv 2502.03723, of whose equations only the idea is known to us.
    """

    card: ClassVar[Card] = Card(
        name="lca_reading",
        title="LCA, potential differences",
        source="our reading of arXiv 2502.03723",
        evidence="reading",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"potential", "potential_next"}),
        cost="rankings of pairs of states, once",
    )

    gamma: float = 1.0  # discount per turn of the agent

    def __post_init__(self) -> None:
        checks.within("lca_reading.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        after, before = potential_differences(
            batch.signal("potential"), batch.signal("potential_next"), agents, self.gamma
        )
        here, _ = labelled(batch, "potential")
        there = following(batch.known("potential"), agents, batch.known("potential_next")) > 0
        known = here & there
        parts = {
            "after": np.where(known, after, 0.0),
            "before": np.where(known, before, 0.0),
        }
        return turn_credit(
            batch,
            parts["after"] + parts["before"],
            components=parts,
            stats={"missing_labels": float(np.sum((batch.lengths > 0) & ~known))},
        )
