"""HGPO: GiGPO's step term at several depths of shared history, deeper ones weighing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gigpo import AtStates, Mode, relative, singleton_share
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, cells, sums


def histories(state: Array, links: Chains, longest: int) -> list[Array]:
    """Number the last k states of every row, for k = 1 to `longest`.

    Args:
        state: [N] int.
        links: the chains along which states follow each other.
        longest: how many states to look at, the present one included.

    Returns:
        One [N] int per k: equal = the same k states in the same order; -1 where the chain has not
        yet had k rows.
    """
    previous = np.zeros(len(state), dtype=np.int64)
    previous[links.order[1:]] = links.order[:-1]
    out = [state]
    for k in range(1, longest):
        code, _ = cells((state, out[-1][previous]), len(state))
        out.append(np.where(links.before >= k, code, -1))
    return out


def blend(levels: Array, exponent: float) -> Array:
    """Weighted mean of the levels that say something, as its summands.

        A = Σ_k w_k · A^(k) / Σ_k w_k,   w_k = (k + 1)^α where A^(k) ≠ 0, else 0;  k = 0, 1, ...

    Args:
        levels: A^(k), [levels, N]; what is exactly 0 has no weight.
        exponent: α.

    Returns:
        [levels, N]: the summands. All 0 where all levels are.
    """
    weight = (levels != 0) * (np.arange(len(levels))[:, None] + 1.0) ** exponent
    total = weight.sum(axis=0)
    return weight * levels / np.where(total > 0, total, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HGPO(AtStates):
    """Hierarchy-of-groups policy optimisation.

        A^(k) = (G - mean G) / (std G + ε)   over the turns whose last k states are the same
        A = Σ_k w_k A^(k) / Σ_k w_k,   w_k = (k + 1)^α,   k = 1 .. K + 1

    G [N] is the discounted return from the turn on, K the number of states looked back; the std is
    the population's. A turn takes part at level k if its agent has had k turns. As in the code,
    levels at which the turn is alone, or its advantage happens to be exactly 0, have no weight, and
    w counts from 2 at the present state. With `base` the agent's whole return against its group
    joins as level 0, with weight 1. K = 0 without `base` is GiGPO's step term.

    Source: arXiv 2602.22817 and its code (a recipe in forks of verl-agent).
    """

    card: ClassVar[Card] = Card(
        name="hgpo",
        title="HGPO",
        source="arXiv 2602.22817",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"shift"}),
    )

    unit: baselines.Unit = "turn"  # counted once in level 0's mean
    history: int = 2  # K, states looked back beside the present one
    alpha: float = 1.0  # exponent of the weights; 0 = all levels weigh the same
    base: bool = False  # does the whole return join as level 0?
    mode: Mode = "mean_std_norm"

    def __post_init__(self) -> None:
        AtStates.__post_init__(self)
        checks.whole("hgpo.history", self.history, 0)
        checks.within("hgpo.alpha", self.alpha, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        pool = self.pool(batch, agents)
        whole, stats = self.whole(batch, agents, pool)
        to_go = returns.to_go(batch.reward, agents, self.gamma)
        sampled = batch.lengths > 0
        levels = [whole if self.base else np.zeros(len(batch))]
        alone = []
        for k, past in enumerate(histories(batch.state_key, agents, self.history + 1)):
            cell, count = cells((pool.cell, past), len(batch))
            weight = (sampled & (agents.before >= k)).astype(np.float64)
            same = baselines.Pool(cell, weight, sums(weight, cell, count))
            level = relative(to_go, same, self.mode, ddof=0, epsilon=self.epsilon)
            levels.append(np.where(weight > 0, level, 0.0))
            alone.append(singleton_share(same))
        summands = blend(np.stack(levels), self.alpha)
        return turn_credit(
            batch,
            summands.sum(axis=0),
            components={f"level_{k}": part for k, part in enumerate(summands)},
            stats={**stats, "singleton_share": alone[0]},
        )
