"""RTMC: what followed an action at a state, against what followed all actions there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, sums


def shrunk(value: Array, visits: Array, prior: Array, prior_visits: float) -> Array:
    """State values drawn towards a prior where few visits tell.

        V' = (n · V + n_0 · V_0) / (n + n_0)

    Args:
        value: V, [N].
        visits: n, [N], positive.
        prior: V_0, [N].
        prior_visits: n_0.
    """
    return (visits * value + prior_visits * prior) / (visits + prior_visits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RTMC(Grouped):
    """Rollout-tree Monte Carlo.

        Q(s, a) = mean of G over the visits of (s, a),   G_k = r_k + γ · G_{k+1}
        V(s) = mean of Q over the visits of s
        A = Q(s, a) - V'(s),   V' = (n_s · V + n_0 · V_0) / (n_s + n_0)

    V_0 is the mean return R of the agents of the cell, undiscounted, and n_s the visits that V
    counts. With `visit: first` an agent's first turn with (s, a) in an episode is a visit, so that
    a state counts once for each new action there; with `every` each turn is. All turns with (s, a)
    get the same A. With `scale` A is divided by its standard deviation over the turns of the cell,
    uncentred, so that signs stay.

    n_0 = 0: the credit at a state adds up to 0 over its visits, and a state visited once gets 0.
    n_0 > 0: such a state gets G - V_0, shrunk (`fallback: shrunk`, as published); `zero` and
    `trajectory` (R - V_0) are the other choices. Watch "singleton_share".

    Source: Wang et al., RTMC, arXiv 2604.11037, as a public implementation has it.
    """

    card: ClassVar[Card] = Card(
        name="rtmc",
        title="RTMC",
        source="arXiv 2604.11037",
        evidence="notes",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"shift"}),
    )

    by: tuple[str, ...] = ("group", "role")
    anchor: tuple[str, ...] = ("state_key",)  # columns that make a state
    visit: Literal["first", "every"] = "first"
    gamma: float = 0.99  # discount per turn of the agent
    prior_visits: float = 2.0  # n_0
    scale: bool = False
    fallback: Literal["shrunk", "zero", "trajectory"] = "shrunk"  # a state visited once

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        object.__setattr__(self, "anchor", checks.key_names("rtmc.anchor", self.anchor))
        checks.one_of("rtmc.singleton", self.singleton, ("zero",))  # `fallback` is for lone visits
        checks.one_of("rtmc.visit", self.visit, ("first", "every"))
        checks.within("rtmc.gamma", self.gamma, 0.0, 1.0)
        checks.within("rtmc.prior_visits", self.prior_visits, 0.0)
        checks.one_of("rtmc.fallback", self.fallback, ("shrunk", "zero", "trajectory"))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        to_go = returns.to_go(batch.reward, agents, self.gamma)
        total = returns.totals(batch.reward, agents)
        state = (*self.by, *self.anchor)
        unit: baselines.Unit = "agent" if self.visit == "first" else "turn"
        taken = baselines.pool(
            batch, agents, (*state, "action_key"), unit, mix_roles=self.mix_roles
        )
        cell = baselines.pool(batch, agents, state, unit, mix_roles=self.mix_roles).cell
        count = int(cell.max(initial=-1)) + 1
        here = baselines.Pool(cell, taken.weight, sums(taken.weight, cell, count))
        q = baselines.mean(to_go, taken)[taken.cell]
        group = self.pool(batch, agents)
        prior = baselines.mean(total, group)[group.cell]
        value = baselines.mean(to_go, here)[cell]
        baseline = shrunk(value, np.maximum(here.count[cell], 1.0), prior, self.prior_visits)
        few = baselines.alone(here) & (batch.lengths > 0)
        if self.fallback != "shrunk":
            stand_in = total if self.fallback == "trajectory" else prior
            q, baseline = np.where(few, stand_in, q), np.where(few, prior, baseline)
        centred = q - baseline
        advantage = centred / self._spread(centred, batch) if self.scale else centred
        counted = float(np.sum(batch.lengths > 0))
        return turn_credit(
            batch,
            advantage,
            components=ledger(q, centred, advantage),
            stats={
                **baselines.pool_statistics(total, group),
                "states": float(np.sum(here.count > 0)),
                "singleton_share": float(few.sum()) / max(counted, 1.0),
            },
        )

    def _spread(self, advantage: Array, batch: TurnBatch) -> Array:
        """Standard deviation of the turns' credit in the cell of each, 1 where it is 0, [N]."""
        turns = baselines.pool(batch, batch.agents(), self.by, "turn", mix_roles=self.mix_roles)
        spread = baselines.std(advantage, turns, ddof=0)[turns.cell]
        return np.where(spread > 0, spread, 1.0)
