"""QAE: an agent's return against a quantile of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError

Interpolation = Literal["inverted_cdf", "linear"]


def quantiles(
    x: Array, counted: baselines.Pool, level: float, interpolation: Interpolation
) -> Array:
    """The quantile of x in each cell.

        Q_K = min {x : F(x) ≥ K},  the ⌈nK⌉-th of n values                      "inverted_cdf"
        Q_K = the value at place K (n - 1) from 0, between two values in a line  "linear"

    Args:
        x: [N].
        counted: cells, whose rows count once or not at all.
        level: K, above 0 and below 1.
        interpolation: which of the two.

    Returns:
        Q, [K] float64; 0 where nothing is counted.
    """
    count = counted.count.astype(np.int64)
    rows = np.flatnonzero(counted.weight > 0)
    ascending = np.append(x[rows[np.lexsort((x[rows], counted.cell[rows]))]], 0.0)
    start = np.cumsum(count) - count
    last = np.maximum(count - 1, 0)
    if interpolation == "inverted_cdf":
        # 20 · .55 is a little more than 11, and the 12th value would be wrong.
        place = np.clip(np.ceil(count * level - 1e-9) - 1.0, 0.0, last)
    else:
        place = level * last
    below = np.floor(place).astype(np.int64)
    low = ascending[start + below]
    high = ascending[start + np.minimum(below + 1, last)]
    return np.where(count > 0, low + (place - below) * (high - low), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QAE(Grouped):
    """Quantile advantage estimation: GRPO with a quantile in place of the mean.

        A = (R - Q_K) / (std_cell R + ε)

    R [N] is the whole return of the turn's agent in its episode, and all turns of the agent get the
    same A [N]. With returns of 0 and 1 and a share p of ones in the cell, it is a gate: for
    p ≤ 1 - K only ones are paid, for p > 1 - K only zeros are charged. That holds for every p only
    with the quantile that is one of the values; the published code calls a function that
    interpolates (`interpolation: linear`), under which both can be non-zero. Nothing is centred: A
    does not add up to 0 in a cell. A cell alone, or with equal returns, gives exactly 0.

    Source: Wu et al., Quantile advantage estimation, arXiv 2509.22611, and its readme.
    """

    card: ClassVar[Card] = Card(
        name="qae",
        title="QAE",
        source="arXiv 2509.22611",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
    )

    level: float | None = 0.4  # K; none = the mean, which is GRPO
    interpolation: Interpolation = "inverted_cdf"  # or "linear", as published
    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("qae.unit", self.unit, ("agent", "turn"))  # values that count once, or not
        if self.level is not None and not 0.0 < self.level < 1.0:
            raise ConfigError(
                f"qae.level must be above 0 and below 1, got {self.level}; null takes the mean"
            )
        checks.one_of("qae.interpolation", self.interpolation, ("inverted_cdf", "linear"))
        checks.one_of("qae.ddof", self.ddof, (0, 1))
        checks.within("qae.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        if self.level is None:
            baseline = baselines.mean(total, pool)
        else:
            baseline = quantiles(total, pool, self.level, self.interpolation)
        centred = total - baseline[pool.cell]
        spread = baselines.std(total, pool, self.ddof)[pool.cell]
        scaled = np.divide(
            centred, spread + self.epsilon, out=np.zeros(len(batch)), where=spread > 0
        )
        advantage = self.settle(scaled, total / (1.0 + self.epsilon), pool, batch)
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, centred, advantage),
            stats=baselines.pool_statistics(total, pool),
        )
