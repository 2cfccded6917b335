"""ReCAST: each reward acts on the turns that it tells something about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, sums
from marl_llm.errors import ConfigError


def allocate(
    informative: Array, weight: Array, cell: Array, count: int, rounds: int
) -> tuple[Array, float]:
    """Split rewards over turns by Sinkhorn's scaling, each cell by itself.

        W_kt = u_k · I_kt · v_t,   Σ_t W_kt = ω_k,   Σ_k W_kt = 1 / T

    Args:
        informative: I > 0, what reward k tells about turn t, [K, T].
        weight: ω, how much a reward counts, [K], of sum 1.
        cell: whose turn it is, [T] int; T in the formula is the size of the cell.
        count: how many cells there are.
        rounds: scalings of rows, each followed by one of columns.

    Returns:
        W, [K, T]: columns are exact, rows as near as `rounds` brought them; and the largest error
        of a row.
    """
    rows = np.arange(len(weight))[:, None] * count + cell  # a cell's row, as one number
    turns = 1.0 / np.maximum(np.bincount(cell, minlength=count), 1)[cell]
    target = np.repeat(weight, count)

    def row_sums(split: Array) -> Array:
        return sums(split.ravel(), rows.ravel(), len(target))

    split = informative.astype(np.float64)
    for _ in range(rounds):
        held = row_sums(split)
        scale = np.divide(target, held, out=np.zeros(len(held)), where=held > 0)
        split = split * scale[rows]
        split = split * turns / split.sum(axis=0)
    empty = np.tile(np.bincount(cell, minlength=count) == 0, len(weight))
    error = np.where(empty, 0.0, np.abs(row_sums(split) - target))
    return split, float(error.max(initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecastReading(FromOutcome):
    """Mix the advantages of several rewards anew at every turn, each reward's weight kept in all.

        A_t = T · Σ_k W_kt · A_k
        W by Sinkhorn from I:  Σ_t W_kt = ω_k,  Σ_k W_kt = 1 / T

    The rewards are the game's own (everything but shaping) and shaping, and A_k is GRPO of each
    alone. I comes from the signals "informative_outcome" and "informative_shaping" [N], at least 0:
    how much the reward tells about the turn. Every turn gets a weighted mean of the A_k, and the
    mean over an agent's T sampled turns is Σ_k ω_k A_k, up to how far the scaling has come
    (statistic ``allocation_error``). Turns that are all alike share alike: plain Σ_k ω_k A_k. A
    turn without labels counts as much as `floor` for both.

    Source: our reading of the abstract of ReCAST, which splits rewards over the timesteps of a
    diffusion; how it measures what is informative, and its rule, were not at hand.
    """

    card: ClassVar[Card] = Card(
        name="recast_reading",
        title="ReCAST",
        source="our reading of the abstract of ReCAST",
        evidence="reading",
        granularity="turn",
        methodology="redistribution",
        needs=frozenset({"informative_outcome", "informative_shaping"}),
        cost="2 T labels of a judge",
    )

    weights: tuple[float, ...]  # ω of the outcome and of shaping, of any sum
    floor: float  # least that a reward tells about a turn, above 0, in units of I
    rounds: int = 100  # of Sinkhorn's scaling

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        object.__setattr__(self, "weights", tuple(self.weights))
        if len(self.weights) != 2 or min(self.weights) < 0 or not 0 < sum(self.weights) < np.inf:
            raise ConfigError(
                "recast_reading.weights are two numbers, of the outcome and of shaping, at least 0 "
                f"and not both 0, got {list(self.weights)}"
            )
        checks.within("recast_reading.floor", self.floor, np.finfo(np.float64).tiny)
        checks.whole("recast_reading.rounds", self.rounds, 1)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        outcome, stats = self.outcome(batch.reward - batch.shaping, batch, agents)
        shaping, _ = self.outcome(batch.shaping, batch, agents)
        names = ("informative_outcome", "informative_shaping")
        known, missing = labelled(batch, *names)
        told = np.stack([np.where(known, label(batch, name, 0.0), 0.0) for name in names])
        sampled = np.flatnonzero(batch.lengths > 0)
        weight = np.asarray(self.weights, dtype=np.float64)
        split, error = allocate(
            np.maximum(told, self.floor)[:, sampled],
            weight / weight.sum(),
            agents.of[sampled],
            agents.count,
            self.rounds,
        )
        share = np.zeros((2, len(batch)))
        share[:, sampled] = split / split.sum(axis=0)
        parts = {"outcome": share[0] * outcome, "shaping": share[1] * shaping}
        return turn_credit(
            batch,
            parts["outcome"] + parts["shaping"],
            components=parts,
            stats={**stats, **missing, "allocation_error": error},
        )
