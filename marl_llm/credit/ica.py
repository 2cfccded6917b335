"""ICA: a turn is credited with what the information it brought was worth to the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, Chains, cells, sums


def evidence_worth(total: Array, unit: Array, counted: baselines.Pool, agents: Chains) -> Array:
    """What a unit of information was worth, at the turn where an agent first came upon it.

        Δ_u = mean R of the agents of the cell that saw u - mean R of those that did not

    Args:
        total: R, the whole return of the row's agent, [N].
        unit: u, number of the unit that the turn brought, [N] int; below 0 = none.
        counted: cells, each agent counted once in them.
        agents: chains of (episode, agent).

    Returns:
        [N] float64; 0 at turns that brought nothing or nothing new, and for units that all or none
        of a cell saw.
    """
    out = np.zeros(len(total))
    # Relative to the cell's mean, so that equal returns give exactly 0.
    x = baselines.centre(total, counted)
    member, members = cells((counted.cell, agents.of), len(total))
    weight = sums(counted.weight, member, members)
    rows = agents.order[(unit >= 0)[agents.order] & (weight[member] > 0)[agents.order]]
    seen, _ = cells((member[rows], unit[rows]), len(rows))
    rows = rows[np.unique(seen, return_index=True)[1]]  # in playing order, so the first time
    key, keys = cells((counted.cell[rows], unit[rows]), len(rows))
    cell = np.zeros(keys, dtype=np.int64)
    cell[key] = counted.cell[rows]
    with_it = np.bincount(key, minlength=keys)
    without = counted.count[cell] - with_it
    got = sums(x[rows], key, keys)
    rest = sums(counted.weight * x, counted.cell, len(counted.count))[cell] - got
    both = without > 0
    worth = np.where(both, got / with_it - rest / np.where(both, without, 1.0), 0.0)
    out[rows] = worth[key]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class ICA(FromOutcome):
    """Information-aware credit assignment.

        A_k = z(R) + w · C_k,   C_k = Δ_{u_k} + γ · C_{k+1}
        Δ_u = mean R of the agents of the cell that saw u - mean R of those that did not

    u [N], signal "evidence_unit", numbers the unit of information (a page, a document) that the
    turn brought, -1 where it brought none. Only the turn that brings a unit to its agent for the
    first time is credited; a unit that all or none of a cell saw is worth 0. z(R) is GRPO's
    advantage of the whole return R. w = 0 is GRPO.

    One unit per turn: a turn that brings several pages needs one number for all of them together,
    and then a page that another turn brings with others is a different unit. Units are taken as
    independent, so what two pages are worth only together is credited to both in full.

    Source: arXiv 2602.10863, whose code has not appeared. That its decay of 0.95 is a discount of
    later turns' worth, and that z(R) is added, is our reading.
    """

    card: ClassVar[Card] = Card(
        name="ica",
        title="ICA",
        source="arXiv 2602.10863",
        evidence="notes",
        granularity="turn",
        methodology="counterfactual",
        needs=frozenset({"evidence_unit"}),
    )

    weight: float = 1.0  # w
    gamma: float = 0.95  # γ, discount per turn of the agent

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.one_of("ica.unit", self.unit, ("agent",))  # an agent sees a unit or does not
        checks.within("ica.weight", self.weight, 0.0)
        checks.within("ica.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward, batch, agents)
        total = returns.totals(batch.reward, agents)
        unit = np.where(batch.lengths > 0, batch.column("evidence_unit"), -1)
        worth = evidence_worth(total, unit, self.pool(batch, agents), agents)
        evidence = self.weight * returns.to_go(worth, agents, self.gamma)
        return turn_credit(
            batch,
            outcome + evidence,
            components={"outcome": outcome, "evidence": evidence},
            stats={**stats, "credited_turns": float(np.sum(worth != 0.0))},
        )
