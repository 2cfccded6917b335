"""AgentPRM, two papers of one name: Q by counting visits, and progress by temporal difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import GAE, errors
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, scan_back
from marl_llm.errors import ConfigError


def discounted_outcome(
    total: Array, exponent: Array, gamma: float, failure: float, success: float
) -> Array:
    """One visit's estimate of Q: its outcome, drawn to the middle by the discount.

        q = (γ^t · y + 1) / 2,   y = 2 · (R - failure) / (success - failure) - 1

    Args:
        total: R, [N].
        exponent: t, in turns of the agent, [N].
        gamma: γ, discount per turn of the agent.
        failure: the return that is a failure, y = -1.
        success: the return that is a success, y = 1.

    Returns:
        q, [N] float64, in [0, 1] where R is between the two.
    """
    y = 2.0 * (total - failure) / (success - failure) - 1.0
    return (gamma ** exponent.astype(np.float64) * y + 1.0) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPRMMonteCarlo:
    """Q of an action as the mean over its visits, against the mean of its state.

        Q(s, a) = mean over visits of (γ^t · y + 1) / 2
        A = Q(s, a) - mean of Q over the visits of s

    y is the return, mapped so that `failure` is -1 and `success` is 1. As coded, t counts turns
    *from the start* of the episode, which pulls the Q of late turns to 1/2 whatever comes next;
    `clock: end` counts the turns still to come, as a discount usually does. The paper regresses a
    process reward model on Q and prefers actions of higher Q; the baseline is ours (off:
    `centred: false`). An action never tried beside another at its state gets 0.

    Source: AgentPRM, arXiv 2502.10325, and its code; the shaped variant is not here.
    """

    card: ClassVar[Card] = Card(
        name="agentprm_mc",
        title="AgentPRM (Monte Carlo)",
        source="arXiv 2502.10325",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"zero", "shift"}),
    )

    by: tuple[str, ...] = ("group", "state_key")  # what makes a state
    gamma: float = 0.99  # discount per turn of the agent
    clock: Literal["start", "end"] = "start"  # from where the discount counts
    failure: float = 0.0  # return of a failed episode
    success: float = 1.0  # return of a successful one
    centred: bool = True  # against the state's mean; false = Q itself, in [0, 1]

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("agentprm_mc.by", self.by))
        checks.within("agentprm_mc.gamma", self.gamma, 0.0, 1.0)
        checks.one_of("agentprm_mc.clock", self.clock, ("start", "end"))
        if not np.isfinite(self.success - self.failure) or self.success <= self.failure:
            raise ConfigError(
                f"agentprm_mc.success must be above agentprm_mc.failure, got {self.success} and "
                f"{self.failure}"
            )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        one_visit = discounted_outcome(
            returns.totals(batch.reward, agents),
            agents.before if self.clock == "start" else agents.after,
            self.gamma,
            self.failure,
            self.success,
        )
        actions = baselines.pool(batch, agents, (*self.by, "action_key"), "turn")
        states = baselines.pool(batch, agents, self.by, "turn")
        q = baselines.mean(one_visit, actions)[actions.cell]
        value = baselines.mean(q, states)[states.cell] if self.centred else np.zeros(len(batch))
        return turn_credit(
            batch,
            q - value,
            components={"q": q, "value": -value},
            stats=baselines.pool_statistics(q, states),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPRMTemporal(GAE):
    """GAE of a promise: how much nearer to the goal a turn came, and those after it.

        progress_k = r_k + γ · P_{k+1} - P_k,   A_k = progress_k + γλ · A_{k+1}

    P [N], the promise, is the signal "value": what is to be expected before the turn. The parts of
    the advantage are the turn's own progress, which is all with λ = 0, and that of later turns.
    After the last turn P is 0, or "value_next" where the episode was cut short. `Credit.targets`
    are what P should have been.

    Source: AgentPRM, arXiv 2511.08325.
    """

    card: ClassVar[Card] = Card(
        name="agentprm_td",
        title="AgentPRM (temporal difference)",
        source="arXiv 2511.08325",
        evidence="notes",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value"}),
        cost="T forward passes of a promise model, trained on own rollouts",
        breaks=frozenset({"shift"}),
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        found = errors(batch, self.gamma)
        raw = scan_back(found.error, self.gamma * self.lam, found.agents)
        advantage = self.whitened(raw, batch.lengths.astype(np.float64))
        return turn_credit(
            batch,
            advantage,
            components={
                "progress": found.error,
                "later": raw - found.error,
                "scaling": advantage - raw,
            },
            stats=found.missing,
            targets=raw + found.value,
        )
