"""COMA: the action taken against what the agent would have done on average, others as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array


def own_mean(action_values: Array, policy: Array) -> Array:
    """What an agent's own policy expects of its actions, the others' being as they were.

        b_i = Σ_x π_i(x) · Q(s, (x, u_-i))

    Args:
        action_values: Q of each action of the agent, [N, U], or of K that it sampled.
        policy: π_i, [N, U], each row summing to 1; 1/K for sampled actions.

    Returns:
        b, [N]. It does not depend on the action taken, so subtracting it adds no bias.
    """
    return np.sum(policy * action_values, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class COMA:
    """Counterfactual multi-agent policy gradients.

        A_i = Q(s, u) - Σ_x π_i(x) · Q(s, (x, u_-i))

    Needs the signals "action_value" [N], Q of the actions as taken, and "action_value_mean" [N],
    the sum; a critic makes both, and `own_mean` is the formula of the second. Texts cannot be
    listed: there the sum is a mean over K replies drawn anew and scored by the critic. The rewards
    of the batch are not read. What the others did cancels, so that A has mean 0 under the agent's
    own policy; the advantages of a team do not add up to the joint one. A turn without either label
    gets 0.

    Source: Foerster et al., arXiv 1705.08926, and EPyMARL.
    """

    card: ClassVar[Card] = Card(
        name="coma",
        title="COMA",
        source="arXiv 1705.08926",
        evidence="code",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"action_value", "action_value_mean"}),
        cost="a critic's value of each action, or of K replies, per turn",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        known, stats = labelled(batch, "action_value", "action_value_mean")
        taken = np.where(known, batch.signal("action_value"), 0.0)
        expected = np.where(known, batch.signal("action_value_mean"), 0.0)
        return turn_credit(
            batch,
            taken - expected,
            components={"taken": taken, "expected": -expected},
            stats=stats,
        )
