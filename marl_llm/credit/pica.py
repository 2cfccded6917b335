"""PiCA: step rewards of a process reward model for PPO, as the paper puts them and as coded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import filled, gae, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.segments import Array, last_of, scan_back


def progress(before: Array, after: Array, gamma: float) -> Array:
    """Potential-based shaping.

        F = γ · Φ(after) - Φ(before)

    Args:
        before: Φ before the turn, [N].
        after: Φ after it, [N].
        gamma: γ.

    Returns:
        F, [N] float64. With γ = 1 they sum to Φ_T - Φ_0 along a chain that leaves out nothing.
    """
    return gamma * after - before


def step_reward(error: Array, place: Array, baseline: float, onset: int, growth: float) -> Array:
    """The step reward of PiCA's code, before it is scaled.

        s_i = 1 - e_i - b - c_i,   c_i = 0.3 · growth^(i-2) from i = onset on, else 0

    Args:
        error: e, score of the step, 0 = good, 1 = bad, [N].
        place: i, how many turns of the agent came before, [N] int.
        baseline: b.
        onset: first i that costs.
        growth: how fast the cost grows.

    Returns:
        s, [N] float64.
    """
    late = np.where(place >= onset, place - 2.0, 0.0)
    return 1.0 - error - baseline - np.where(place >= onset, 0.3 * growth**late, 0.0)


def shaped(
    batch: TurnBatch, reward: Array, bonus: Array, gamma: float, lam: float, stats: dict[str, float]
) -> Credit:
    """GAE over turns, with a bonus beside the reward that is a component of its own.

    Args:
        batch: N turns, with the signals that GAE needs.
        reward: what the critic foretells, [N].
        bonus: the shaping, [N].
        gamma: discount per turn of the agent.
        lam: of GAE, per turn of the agent.
        stats: counts to report.
    """
    agents = batch.agents()
    end = value_end(batch, agents)
    value = filled(reward, batch.signal("value"), batch.known("value"), end, agents, gamma)
    plain = gae(reward, value, end, agents, gamma, lam)
    shaping = scan_back(bonus, gamma * lam, agents)
    return turn_credit(
        batch,
        plain + shaping,
        components=ledger(plain + value, plain) | {"shaping": shaping},
        stats=stats,
        targets=plain + shaping + value,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PiCAShipped:
    """PiCA's step reward as its code has it.

        s_i = 1 - e_i - b - c_i,   c_i = 0 for i < 3, then 0.3 · 1.5^(i-2)
        A = GAE(r'),   r'_i = ω · r_i + κ · s_i;  no s at the agent's last turn with tokens

    e [N], signal "prm_error", is the score of a process reward model (0 = good, 1 = bad), i the
    number of turns the agent has had. GAE reads the signal "value" [N], and "value_next" where an
    episode was cut short; A + V is `Credit.targets`. κ is 0.3 in the training script, and 1.3 in
    effect, since the code adds the scaled rewards to a tensor that already holds them. A missing
    score adds nothing. The cost of late turns is no difference of potentials: it moves the optimum
    towards short episodes. κ = 0 is GAE on ω r.

    The code works on tokens and whitens the result.

    Source: the code of novdream/PiCA, of arXiv 2605.09287.
    """

    card: ClassVar[Card] = Card(
        name="pica_shipped",
        title="PiCA as its code has it",
        source="novdream/PiCA",
        evidence="code",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"value", "prm_error"}),
        cost="1 call of a process reward model, and a critic",
        breaks=frozenset({"shift", "zero"}),
    )

    step_scale: float = 1.3  # κ
    outcome_scale: float = 1.5  # ω
    baseline: float = 0.55  # b, what a step must reach to be worth it
    onset: int = 3  # first turn of the agent, from 0, that costs
    growth: float = 1.5  # of that cost, per turn of the agent
    gamma: float = 1.0  # discount per turn of the agent
    lam: float = 1.0  # of GAE, per turn of the agent

    def __post_init__(self) -> None:
        checks.within("pica_shipped.step_scale", self.step_scale, 0.0)
        checks.within("pica_shipped.outcome_scale", self.outcome_scale, 0.0)
        checks.within("pica_shipped.baseline", self.baseline, 0.0, 1.0)
        checks.whole("pica_shipped.onset", self.onset, 0)
        checks.within("pica_shipped.growth", self.growth, 0.0)
        checks.within("pica_shipped.gamma", self.gamma, 0.0, 1.0)
        checks.within("pica_shipped.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        error = label(batch, "prm_error", 0.0, 1.0)
        known, _ = labelled(batch, "prm_error")
        step = step_reward(error, agents.before, self.baseline, self.onset, self.growth)
        answer = last_of(batch.lengths > 0, agents)
        bonus = np.where(known & ~answer, self.step_scale * step, 0.0)
        _, missing = labelled(batch, "value", "prm_error")
        outcome = self.outcome_scale * batch.reward
        return shaped(batch, outcome, bonus, self.gamma, self.lam, missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiCA:
    """PiCA as its abstract puts it: rewards are differences of the probability of success.

        F_k = κ · (γ Φ(after) - Φ(before)),   A = GAE(r + F)

    Φ is a reward model's probability of success; signals "success_before" and "success_after" [N],
    so that what others did in between is not this agent's progress. GAE reads the signal "value"
    [N], and "value_next" where an episode was cut short; A + V is `Credit.targets`. A missing
    probability gives F = 0. κ = 0 is GAE.

    The shaping leaves the best policy unchanged only if Φ is the same at all ends; here it is not,
    and with γ = 1 the sum Φ_T - Φ_0 is a bonus for how an episode ends.

    Source: our reading of arXiv 2605.09287, whose code (`pica_shipped`) does something else.
    """

    card: ClassVar[Card] = Card(
        name="pica_reading",
        title="PiCA as shaping",
        source="our reading of arXiv 2605.09287",
        evidence="reading",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value", "success_before", "success_after"}),
        cost="T + 1 calls of a process reward model, and a critic",
        breaks=frozenset({"shift"}),
    )

    step_scale: float = 1.0  # κ
    gamma: float = 1.0  # γ, discount per turn of the agent
    lam: float = 1.0  # of GAE, per turn of the agent

    def __post_init__(self) -> None:
        checks.within("pica_reading.step_scale", self.step_scale, 0.0)
        checks.within("pica_reading.gamma", self.gamma, 0.0, 1.0)
        checks.within("pica_reading.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        names = ("success_before", "success_after")
        before, after = (label(batch, name, 0.0, 1.0) for name in names)
        known, _ = labelled(batch, *names)
        _, missing = labelled(batch, "value", *names)
        bonus = np.where(known, self.step_scale * progress(before, after, self.gamma), 0.0)
        return shaped(batch, batch.reward, bonus, self.gamma, self.lam, missing)
