"""GiGPO: the episode against its group, and each turn against the turns at the same state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, Chains

Mode = Literal["mean_norm", "mean_std_norm"]
MODES = ("mean_norm", "mean_std_norm")


def relative(x: Array, counted: baselines.Pool, mode: Mode, *, ddof: int, epsilon: float) -> Array:
    """How far x is from the mean of its cell.

        x_i - mean                   mean_norm
        (x_i - mean) / (std + ε)     mean_std_norm

    Args:
        x: [N].
        counted: cells and what counts in them.
        mode: which of the two.
        ddof: of the standard deviation.
        epsilon: added to it.

    Returns:
        [N]; exactly 0 where a cell counts one value, or equal values only.
    """
    if mode == "mean_norm":
        return baselines.centre(x, counted)
    return baselines.standardise(x, counted, ddof=ddof, epsilon=epsilon)


def singleton_share(counted: baselines.Pool) -> float:
    """Share of the counted turns that have nobody to be compared with; 0 if nothing is counted."""
    rows = counted.weight > 0
    return float(np.mean(baselines.alone(counted)[rows])) if np.any(rows) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStates(Grouped):
    """Settings, and the first step, of rules that compare episodes, and turns at one state."""

    mode: Mode = "mean_norm"
    gamma: float = 0.95  # discount of the return from a turn on, per turn of the agent
    epsilon: float = 1e-6  # added to the standard deviations, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        name = self.card.name
        checks.one_of(f"{name}.mode", self.mode, MODES)
        checks.within(f"{name}.gamma", self.gamma, 0.0, 1.0)
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def whole(
        self, batch: TurnBatch, agents: Chains, pool: baselines.Pool
    ) -> tuple[Array, dict[str, float]]:
        """The whole return of each agent against its cell, [N]; and counts of the cells."""
        total = returns.totals(batch.reward, agents)
        apart = relative(total, pool, self.mode, ddof=1, epsilon=self.epsilon)
        raw = total if self.mode == "mean_norm" else total / (1.0 + self.epsilon)
        return self.settle(apart, raw, pool, batch), baselines.pool_statistics(total, pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiGPO(AtStates):
    """Group-in-group policy optimisation.

        A = w_E · A_E + w_S · A_S
        A_E = R - mean_cell R,      A_S,k = G_k - mean of G over the turns at the same state

    R [N] is the whole return of the agent, G [N] its discounted return from the turn on; with
    `mode: mean_std_norm` both differences are divided by the std of their cell plus ε. A state is
    a cell of `by` and `anchor`; its turns may belong to one episode or to many. A turn alone in its
    state gets A_S = 0, so where states never repeat only A_E is left: watch "singleton_share". The
    code's fuzzy match of observations is a matter of how state keys are made.

    As shipped, the mean of A_E counts every turn (`unit: turn`), so that long episodes weigh more
    and Σ_i T_i A_i = 0 instead of Σ_i A_i = 0; `unit: agent` counts each agent once. As shipped, a
    group of one turn keeps its raw return (`singleton: raw`); the default here is 0.

    Source: arXiv 2505.10978 and forks of its code (verl-agent).
    """

    card: ClassVar[Card] = Card(
        name="gigpo",
        title="GiGPO",
        source="arXiv 2505.10978",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"shift"}),
    )

    unit: baselines.Unit = "turn"  # counted once in A_E's mean
    episode_weight: float = 1.0  # w_E; 0 = the step term alone
    step_weight: float = 1.0  # w_S
    anchor: tuple[str, ...] = ("state_key",)  # columns that make a state

    def __post_init__(self) -> None:
        AtStates.__post_init__(self)
        object.__setattr__(self, "anchor", checks.key_names("gigpo.anchor", self.anchor))
        checks.within("gigpo.episode_weight", self.episode_weight, 0.0)
        checks.within("gigpo.step_weight", self.step_weight, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        episode, stats = self.whole(batch, agents, self.pool(batch, agents))
        states = baselines.pool(
            batch, agents, (*self.by, *self.anchor), "turn", mix_roles=self.mix_roles
        )
        to_go = returns.to_go(batch.reward, agents, self.gamma)
        step = relative(to_go, states, self.mode, ddof=1, epsilon=self.epsilon)
        parts = {"episode": self.episode_weight * episode, "step": self.step_weight * step}
        return turn_credit(
            batch,
            parts["episode"] + parts["step"],
            components=parts,
            stats={**stats, "singleton_share": singleton_share(states)},
        )
