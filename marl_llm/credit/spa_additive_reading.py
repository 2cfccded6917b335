"""SPA without a network: an additive model of the return, fitted by ridge on the batch itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, cells, extremes, sums

OF_AGENTS = ("group", "episode", "agent", "role", "policy", "game")  # one value per agent's episode
PRECISION = 1e-12  # relative, of the fit


def fit_additive(
    feature: Array, agent: Array, total: Array, counted: baselines.Pool, ridge: float
) -> Array:
    """Effects that add up to returns as well as they can.

        θ = argmin Σ_i (R_i - Σ_f n_if · θ_f)² + ρ · Σ_f θ_f²

    R and the counts n are taken against their mean in the cell of i, so that what a cell has in
    common is nobody's effect. The least squares are solved by LSMR, without a matrix.

    Args:
        feature: what a turn shows, 0..F-1, [T] int.
        agent: whose turn it is, 0..I-1, [T] int; n_if is how often i shows f.
        total: R, [I].
        counted: the cells of the agents, [I].
        ridge: ρ, at least 0; at 0 the smallest θ of all that fit best.

    Returns:
        θ, [F] float64; 0 where all returns of every cell are equal.
    """
    features = int(feature.max(initial=-1)) + 1
    if not features:
        return np.zeros(0)

    def predict(theta: Array) -> Array:
        return baselines.centre(sums(theta.ravel()[feature], agent, len(total)), counted)

    def collect(residual: Array) -> Array:
        return sums(baselines.centre(residual.ravel(), counted)[agent], feature, features)

    counts = LinearOperator(
        (len(total), features), matvec=predict, rmatvec=collect, dtype=np.float64
    )
    own = baselines.centre(total, counted)
    return lsmr(
        counts, own, damp=math.sqrt(ridge), atol=PRECISION, btol=PRECISION, conlim=0.0,
        maxiter=10 * (features + len(total)),
    )[0]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaAdditiveReading:
    """Redistribute returns by what each action adds to them, all turns of the batch pooled.

        R_i ≈ mean_cell R + Σ_k θ(state_k, action_k),   by ridge
        A_k = θ(state_k, action_k) - mean of θ over the turns at state_k

    A state is the columns of `state`, an action its action key; how often an agent's episode shows
    each pair are the features. States at which every turn took one and the same action have none,
    and their turns get exactly 0. Each state's A sums to 0 over its turns. Needs no critic, no
    judge and no second visit of an *episode*, only of states; it fails where effects do not add up,
    as with parity.

    Source: our reading of SPA-RL, arXiv 2505.20732, whose model of progress is a language model.
    """

    card: ClassVar[Card] = Card(
        name="spa_additive_reading",
        title="SPA, additive fit",
        source="our reading of arXiv 2505.20732",
        evidence="reading",
        granularity="turn",
        methodology="redistribution",
        cost="one sparse least-squares fit per batch",
        breaks=frozenset({"groups"}),
    )

    ridge: float  # ρ, in visits: an effect seen about so often is half believed
    by: tuple[str, ...] = ("group", "agent")  # whose mean return is nobody's effect
    state: tuple[str, ...] = ("role", "agent", "state_key")  # where turns have the same choice
    mix_roles: bool = False  # may a cell or a state hold several roles?

    def __post_init__(self) -> None:
        name = self.card.name
        object.__setattr__(self, "by", checks.key_names(f"{name}.by", self.by, OF_AGENTS))
        object.__setattr__(self, "state", checks.key_names(f"{name}.state", self.state))
        checks.within(f"{name}.ridge", self.ridge, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = baselines.pool(batch, agents, self.by, "agent", mix_roles=self.mix_roles)
        states = baselines.pool(batch, agents, self.state, "turn", mix_roles=self.mix_roles)
        sampled = batch.lengths > 0
        chosen = np.flatnonzero(sampled & _differ(batch.action_key, states))
        feature, _ = cells([states.cell[chosen], batch.action_key[chosen]], len(chosen))

        # One row per agent of an episode: the one that counts in the cell.
        rows = np.flatnonzero(pool.weight > 0)
        number = np.zeros(agents.count, dtype=np.int64)
        number[agents.of[rows]] = np.arange(len(rows))
        cell = baselines.Pool(pool.cell[rows], pool.weight[rows], pool.count)
        theta = fit_additive(feature, number[agents.of[chosen]], total[rows], cell, self.ridge)

        effect = np.zeros(len(batch))
        effect[chosen] = theta[feature]
        advantage = np.where(sampled, baselines.centre(effect, states), 0.0)
        return turn_credit(
            batch,
            advantage,
            components=ledger(effect, advantage),
            stats={
                **baselines.pool_statistics(total, pool),
                "features": float(len(theta)),
                "turns_without_choice": float(sampled.sum() - len(chosen)),
            },
        )


def _differ(action: Array, states: baselines.Pool) -> Array:
    """Turns at whose state several actions were sampled, [N] bool."""
    counted = states.weight > 0
    low, high = extremes(action[counted], states.cell[counted], len(states.count))
    return (low < high)[states.cell]
