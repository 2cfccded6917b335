"""PACT: a token's credit is how much it moved the expected return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import token_errors, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.tokens import scan_tokens_back


@dataclass(frozen=True, slots=True, kw_only=True)
class PACT:
    """The one credit that is complete, knows no future, and is neutral.

        c_t = r_t + V_{t+1} - V_t,   A_t = Σ_{u≥t} λ^(u-t) · c_u

    Complete: an agent's c sum to its return minus V at its start. Knows no future: c_t depends on
    what came up to token t only. Neutral: its mean over what the policy could have sampled is 0, if
    V is the expected return under that policy. With one reward at the end, c_t is V after the token
    minus V before it, the return standing for V at the end. λ = 0 gives c itself; λ = 1 sums what
    is still to come, as the paper's training does: R - V_t.

    Needs the signal "token_value" [M], V before each token, of what is still to come; after an
    agent's last token V is 0, or the signal "value_next" [N] if the episode was cut short.
    `Credit.targets` [M] is the undiscounted return from each token on. The paper fits its critic to
    it by cross-entropy, which asks for returns in [0, 1]: "targets_outside" counts the others.

    Source: PACT, arXiv 2609.26355. The order of updates and the ratios in the critic's loss belong
    to the learner.
    """

    card: ClassVar[Card] = Card(
        name="pact",
        title="PACT",
        source="arXiv 2609.26355",
        evidence="notes",
        granularity="token",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"token_value"}),
        cost="a critic's value of every token",
        breaks=frozenset({"shift"}),
    )

    lam: float = 0.0  # per sampled token; 0 = the credit of the token itself

    def __post_init__(self) -> None:
        checks.within("pact.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents, offsets = batch.agents(), batch.offsets
        value, end = batch.token_signal("token_value"), value_end(batch, agents)
        moved = token_errors(batch.reward, value, end, offsets, agents, gamma=1.0)
        advantage = scan_tokens_back(moved, self.lam, offsets, agents)
        targets = scan_tokens_back(moved, 1.0, offsets, agents, out=moved)
        targets += value
        outside = np.count_nonzero(targets < 0) + np.count_nonzero(targets > 1)
        return token_credit(
            batch,
            advantage,
            components={"after": advantage + value, "before": -value},
            stats={"targets_outside": float(outside)},
            targets=targets,
        )
