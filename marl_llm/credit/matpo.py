"""MATPO: a planner's advantage, and the same for everybody who worked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.calls import callers, roots
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array
from marl_llm.credit.signals import SIGNAL_KEYS
from marl_llm.errors import EpisodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class MATPO(FromOutcome):
    """One model as planner and as workers, paid by the planner's outcome.

        A = (R_top - mean_cell R) / (std_cell R + ε)

    R_top [N] is the whole return of the agent at the top of the turn's line of callers, which is
    the turn's own agent if nobody called it. Cells compare only agents that nobody called. What a
    worker itself is paid does not count.

    The workers' callers must be in the batch, so one policy has to play both. Turns whose callers
    are not there get weight 0 and are counted ("orphans"). The number of a turn goes to all its
    tokens, however long its caller's reply was; the authors' code copies the planner's masked row,
    so that a worker's token gets 0 where the planner's row has no token of its own.

    Source: MATPO, arXiv 2510.04678, and mzf666/MATPO.
    """

    card: ClassVar[Card] = Card(
        name="matpo",
        title="MATPO",
        source="arXiv 2510.04678",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        top = roots(callers(batch))
        uncalled = batch.depth == 0
        if len(batch) and not np.any(uncalled):
            raise EpisodeError(
                f"matpo: all {len(batch)} turns were called by turns that are not in the batch, "
                "whose outcome they would be paid by; let one policy play planner and workers, or "
                "use m_grpo"
            )
        rows = np.flatnonzero(uncalled)
        keys = {name: batch.column(name)[rows] for name in self.by if name in SIGNAL_KEYS}
        planners = batch.bare(rows).with_signals(keys)
        agents = planners.agents()
        total = returns.totals(planners.reward, agents)
        advantage, stats = self.outcome(planners.reward, planners, agents)
        centred = baselines.centre(total, self.pool(planners, agents))
        paid = uncalled[top]

        def below(x: Array) -> Array:
            """What the planners have, for everybody who worked for them."""
            out = np.zeros(len(batch))
            out[rows] = x
            return np.where(paid, out[top], 0.0)

        sampled = batch.lengths > 0
        return turn_credit(
            batch,
            below(advantage),
            components=ledger(below(total), below(centred), below(advantage)),
            stats=stats | {"orphans": float(np.sum(~paid & sampled))},
            weight=(paid & sampled).astype(np.float64),
        )
