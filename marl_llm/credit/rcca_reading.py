"""RCCA: rubric verdicts on the tokens they were traced to, beside the outcome on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, tokens
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, cells


def standardise_items(
    item: Array, verdict: Array, agent: Array, cell: Array, *, ddof: int, epsilon: float
) -> Array:
    """The verdict on each rubric item against the verdicts on the same item in the cell.

        z = (v - mean v) / (std v + ε) over the agents of the cell that have the item

    Args:
        item: number of the rubric item a token is traced to, -1 = none, [M] int.
        verdict: what the judge says of the item, [M]; an agent's verdict is their mean.
        agent: number of the (episode, agent) of a token, [M] int.
        cell: whom it is compared with, [M] int.
        ddof: subtracted from the number of agents in the variance.
        epsilon: ε, added to the standard deviation.

    Returns:
        z at every token of its item, [M]; 0 at tokens of none, and where all verdicts are equal.
    """
    out = np.zeros(len(item))
    traced = np.flatnonzero(item >= 0)
    which, count = cells((agent[traced], item[traced]), len(traced))
    ones = np.ones(len(traced))
    own = baselines.mean(
        verdict[traced], baselines.Pool(which, ones, np.bincount(which, minlength=count))
    )
    first = traced[np.unique(which, return_index=True)[1]]
    peers, groups = cells((cell[first], item[first]), count)
    pool = baselines.Pool(peers, np.ones(count), np.bincount(peers, minlength=groups))
    out[traced] = baselines.standardise(own, pool, ddof=ddof, epsilon=epsilon)[which]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class RccaReading(FromOutcome):
    """Add to GRPO what the rubric says of the very span.

        A_t = A_outcome + z(verdict on the item that token t is traced to)

    The signal "rubric_item" [M] is the number of a rubric item whose verdict was traced to the
    token, -1 = none; "rubric_verdict" [M] is the verdict on it, from failed 0 to passed 1. z
    compares the agents of a cell of `by` that have the item. An item that all pass changes nothing,
    and a token without an item keeps GRPO's A. Where several items point at a token, the annotator
    decides for one.

    Source: our reading of RCCA, arXiv 2608.27906, whose equations were not at hand. Its gates (the
    format first, then sources, then whether it runs and works) belong in the game's reward.
    """

    card: ClassVar[Card] = Card(
        name="rcca_reading",
        title="RCCA",
        source="our reading of arXiv 2608.27906",
        evidence="reading",
        granularity="segment",
        methodology="judge",
        level="token",
        needs=frozenset({"rubric_item", "rubric_verdict"}),
        cost="1 judge call that traces its verdicts to spans",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        turn = tokens.turn_of(batch.offsets)
        item = np.rint(batch.token_signal("rubric_item")).astype(np.int64)
        rubric = standardise_items(
            item,
            batch.token_signal("rubric_verdict"),
            agents.of[turn],
            self.pool(batch, agents).cell[turn],
            ddof=self.ddof,
            epsilon=self.epsilon,
        )
        parts = {"outcome": tokens.spread(outcome, batch.offsets), "rubric": rubric}
        return token_credit(
            batch,
            parts["outcome"] + rubric,
            components=parts,
            stats={**stats, "untraced_tokens": float(np.sum(item < 0))},
        )
