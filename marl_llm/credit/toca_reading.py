"""TOCA without a critic: an episode against those of its group that met the same turnover.

Which agents join, leave or are replaced moves a return as much as what they do. Episodes are
compared under one **schedule** of events, drawn before they began, so that nobody is praised or
blamed for the luck of the roster. Never under the events that they in fact met: an episode that
ends early meets fewer, and that is its agents' doing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, Chains, extremes
from marl_llm.credit.turnover import refuse_endogenous
from marl_llm.errors import EpisodeError

CARD = Card(
    name="toca_reading",
    title="TOCA",
    source="our reading of arXiv 2610.02847",
    evidence="reading",
    granularity="agent",
    methodology="monte carlo",
    needs=frozenset({"event", "event_exogenous"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByEvent(Grouped):
    """What the three forms share: comparing within a schedule of events. Not a rule itself."""

    allow_endogenous: bool = False  # events in which an action had a part

    def strata(self, batch: TurnBatch, agents: Chains) -> baselines.Pool:
        """The turns of a batch sorted into the cells of `by` and of "event".

        Raises:
            EpisodeError: an action had a part in an event, and that is not allowed.
        """
        refuse_endogenous(batch, self.card.name, self.allow_endogenous)
        return baselines.pool(
            batch, agents, (*self.by, "event"), self.unit, mix_roles=self.mix_roles
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TOCASharedReading(ByEvent):
    """The group mean, where all episodes of a group share one schedule of events.

        A = R - mean over the group's episodes with the same schedule of R

    R [N] is the whole return of the turn's agent in its episode. With one schedule per group, which
    is a matter of seeds, the plain group mean estimates what is to be expected of this schedule,
    and nothing has to be tuned or learned. The signal "event" [N] numbers the schedules. A group
    that has several by mistake is parted by them (`mixed: split`, counted as "mixed_groups") or
    refused. The signal "event_exogenous" [N] says that no action had a part in the event; others
    are refused unless allowed.

    Source: our reading of arXiv 2610.02847, of which we know the abstract.
    """

    card: ClassVar[Card] = replace(CARD, name="toca_shared_reading", title="TOCA, shared schedules")

    mixed: Literal["split", "error"] = "split"  # of a group with several schedules

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("toca_shared_reading.mixed", self.mixed, ("split", "error"))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        stratum = self.strata(batch, agents)
        mixed = {"mixed_groups": self._mixed(batch, agents)}
        return self.difference(total, baselines.centre(total, stratum), stratum, batch, mixed)

    def _mixed(self, batch: TurnBatch, agents: Chains) -> float:
        """How many cells of `by` hold several schedules."""
        groups = self.pool(batch, agents)
        low, high = extremes(batch.column("event"), groups.cell, len(groups.count))
        mixed = np.flatnonzero(low < high)
        if len(mixed) and self.mixed == "error":
            i = np.flatnonzero(groups.cell == mixed[0])[0]
            raise EpisodeError(
                f"{len(mixed)} groups (the first: group {batch.group[i]}) hold episodes with "
                "different schedules of events; give all episodes of a group one schedule seed, or "
                "use toca_stratified_reading"
            )
        return float(len(mixed))


@dataclass(frozen=True, slots=True, kw_only=True)
class TOCAStratifiedReading(ByEvent):
    """A baseline for each schedule of events, drawn towards the group's where few had it.

        b(c) = (Σ_{j in c} R_j + κ · R̄) / (n_c + κ),   A = R - b(c)

    R [N] is the whole return of the turn's agent in its episode, R̄ its mean in the group, c the
    stratum: the group's episodes with the same signal "event" [N]. κ = 0 compares within strata
    only, κ = ∞ is the group mean; strata that count `enough` are not drawn. What is taken off
    beside the group mean, b(c) - R̄, is the component "turnover". The statistic "turnover_share" is
    the share of the variance of returns that lies between strata: where it is 0, none of this is
    needed.

    The signal "event_exogenous" [N] says that no action had a part in the event; others are refused
    unless allowed, since b would take away what the action did. Dividing by a standard deviation
    afterwards does no harm, subtracting the group's mean again undoes it.

    Source: our reading of arXiv 2610.02847, of which we know the abstract.
    """

    card: ClassVar[Card] = replace(CARD, name="toca_stratified_reading", title="TOCA, event strata")

    kappa: float  # κ, in units that are counted
    enough: float | None = None  # units at which a stratum stands by itself; None = never

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.within("toca_stratified_reading.kappa", self.kappa, 0.0)
        if self.enough is not None:
            checks.within("toca_stratified_reading.enough", self.enough, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        group, stratum = self.pool(batch, agents), self.strata(batch, agents)
        overall = baselines.mean(total, group)[group.cell]
        middle = baselines.mean(total, stratum)[stratum.cell]
        pull = self._pull(stratum)
        turnover = (1.0 - pull) * (middle - overall)
        advantage = baselines.settle(
            total - middle + pull * (middle - overall),
            raw=total,
            few=baselines.alone(group) | (baselines.alone(stratum) & (pull == 0)),
            rule=self.singleton,
            sampled=batch.lengths > 0,
        )
        between = np.sum(stratum.weight * (middle - overall) ** 2)
        around = np.sum(stratum.weight * (total - overall) ** 2)
        return turn_credit(
            batch,
            advantage,
            components={
                "return": total,
                "baseline": advantage - total + turnover,
                "turnover": -turnover,
            },
            stats=baselines.pool_statistics(total, stratum)
            | {"turnover_share": float(between / around) if around > 0 else 0.0},
        )

    def _pull(self, stratum: baselines.Pool) -> Array:
        """Share of the group's mean in the baseline of each row, κ / (n + κ), [N]."""
        n = stratum.count[stratum.cell]
        kappa = np.full(len(n), float(self.kappa))
        if self.enough is not None:
            kappa[n >= self.enough] = 0.0
        return np.divide(kappa, n + kappa, out=np.zeros(len(n)), where=kappa > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TOCALooReading(ByEvent):
    """The mean of the *others* of the group that had the same schedule of events.

        A_i = R_i - 1/(n_c - 1) Σ_{j in c, j≠i} R_j = n_c/(n_c - 1) · (R_i - mean of stratum c)

    R [N] is the whole return of the turn's agent in its episode; a stratum is a group's episodes
    with the same signal "event" [N]. The baseline of i knows the event and not what i did, so it
    adds no bias where the signal "event_exogenous" [N] says that no action had a part in the event;
    other events are refused unless allowed. An agent alone in its stratum gets 0.

    Source: our reading of arXiv 2610.02847, of which we know the abstract.
    """

    card: ClassVar[Card] = replace(CARD, name="toca_loo_reading", title="TOCA, leave one out")

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        # What is left out is what is counted once.
        checks.one_of("toca_loo_reading.unit", self.unit, ("episode", "agent"))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        stratum = self.strata(batch, agents)
        others = baselines.leave_one_out(total, stratum)
        return self.difference(total, others, stratum, batch)
