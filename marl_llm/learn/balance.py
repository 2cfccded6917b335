"""Trajectory balance: match log π to the reward instead of climbing it.

At the optimum of E[R] - β KL(π ‖ π_ref) the number

    x_i = log π(y_i) - log π_ref(y_i) - R_i / β

is the same for all trajectories from one start, namely -log Z. These losses descend the square of
how far it is from that. log Z is not learned but estimated by the mean of the group (VarGrad), and
held fixed under the gradient; both need the whole group, so they are computed in a first pass.

A **trajectory** is what one agent said in one episode, all its turns; its group is that of the
credit, the agents of one name in one group of episodes. R_i is the advantage, the same at all its
tokens: what the group has in common goes into log Z, so `dr_grpo` serves as well as the raw return.
The reported objective is a surrogate with the right gradient, not the squares themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from marl_llm.credit.segments import cells, extremes, sums
from marl_llm.errors import ConfigError, TrainingError
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.losses import LOG_RATIO_LIMIT, Terms, reinforce
from marl_llm.learn.rows import Array
from marl_llm.learn.twopass import Seen, TwoPassLoss


def residuals(x: Array, group: Array) -> Array:
    """How far each trajectory is from balance: x_i - mean of x over its group, [K].

    With log Z = -mean x this is log Z + log π - log π_ref - R/β. Exactly 0 in a group of one.

    Args:
        x: log π - log π_ref - R/β, [K].
        group: [K] int.
    """
    of, count = cells((group,), len(x))
    mean = sums(x, of, count) / np.maximum(np.bincount(of, minlength=count), 1)
    return x - mean[of]


@dataclass(frozen=True, slots=True)
class Trajectories:
    """The m tokens of a batch sorted into K trajectories."""

    of: Array  # [m] int: the trajectory of each token
    group: Array  # [K] int: comparable ones
    tokens: Array  # [K] float: how many tokens each has
    worth: Array  # [K] the advantage of its tokens

    def total(self, values: Array) -> Array:
        """Sum over the tokens of each trajectory, [K] float64."""
        return sums(values, self.of, len(self.tokens))


def trajectories(live: LiveTurns) -> Trajectories:
    """Sort tokens into trajectories.

    Raises:
        TrainingError: the tokens of a trajectory have different advantages.
    """
    n = len(live.pairs)
    turn_of, count = cells((live.episode, live.agent), n)
    turn_group, _ = cells((live.group, live.agent), n)
    group = np.empty(count, np.int64)
    group[turn_of] = turn_group
    of = np.repeat(turn_of, live.lengths)
    low, high = extremes(live.advantages, of, count)
    unlike = np.flatnonzero(high - low > 1e-9 * np.maximum(1.0, np.abs(high)))
    if len(unlike):
        place = live.places[np.flatnonzero(turn_of == unlike[0])[0]]
        raise TrainingError(
            f"{live.name(int(place))}: the advantages of this agent's tokens in this episode go "
            f"from {low[unlike[0]]:g} to {high[unlike[0]]:g}; trajectory balance takes one number "
            "for all of them, so choose a credit rule of responses, such as dr_grpo"
        )
    return Trajectories(of, group, np.bincount(of, minlength=count).astype(np.float64), high)


class Balance(TwoPassLoss):
    """What both losses share: terms with given coefficients, whose length is counted."""

    __slots__ = ()

    reads_reference: ClassVar[bool] = True
    off_policy: ClassVar[bool] = True
    modes: ClassVar[tuple[str, ...]] = ("constant", "token")  # all tokens weigh the same

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """-coefficient · log π; the coefficients stand in place of the advantages."""
        return reinforce(logprobs, old, advantages, importance=False)


@dataclass(frozen=True, slots=True)
class TrajectoryBalance(Balance):
    """Trajectory balance with log Z from the group's mean.

        ℓ_i = (log Z + Σ_t log π(y_t) - Σ_t log π_ref(y_t) - R_i / β)²
        log Z = sg(mean over the group of Σ_t log π_ref - Σ_t log π + R / β),   sg = stop-gradient

    Sums over the tokens, not means. The gradient needs no importance weights, whoever sampled. On
    the first step it is 2/β times that of REINFORCE with Dr. GRPO's advantage of the reward
    R - β Σ_t (log π - log π_ref). Needs no kl setting; the reference is kept for it.

    Source: Malkin et al., arXiv 2201.13259; VarGrad and its use on stale samples: TBA, arXiv
    2503.18929, whose code takes log Z over the samples of a prompt that are in one micro-batch.
    """

    beta: float  # β, in units of R per nat

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ConfigError(f"TrajectoryBalance.beta must be above 0, got {self.beta}")

    def coefficients(self, live: LiveTurns, seen: Seen) -> Array:
        """-2 residual of the token's trajectory, [m]."""
        found = trajectories(live)
        log_ratio = found.total(seen.logprobs - against(live))
        return -2.0 * residuals(log_ratio - found.worth / self.beta, found.group)[found.of]


@dataclass(frozen=True, slots=True)
class FlowRL(Balance):
    """Trajectory balance on mean log-probs, with weights for stale samples.

        ℓ_i = sg(w_i) · (log Z + mean_t log π(y_t) - mean_t log π_ref(y_t) - scale · R_i)²
        w_i = min(Π_t ρ_t, cap),   log Z = sg(mean over the group)

    R is GRPO's advantage there (`credit=grpo`). The authors learn log Z by a head on the prompt's
    hidden states, trained with the policy; the mean of the group in its place is our reading.

    Source: FlowRL, arXiv 2509.15207, and its code; log Z: our reading.
    """

    scale: float = 15.0  # of the advantage, nats per token
    cap: float = 10.0  # largest weight w

    def __post_init__(self) -> None:
        if not (self.scale > 0 and self.cap >= 1):
            raise ConfigError(
                "FlowRL.scale must be above 0 and FlowRL.cap at least 1, got "
                f"{self.scale}, {self.cap}"
            )

    def coefficients(self, live: LiveTurns, seen: Seen) -> Array:
        """-2 w residual / tokens of the token's trajectory, [m]."""
        found = trajectories(live)
        mean = found.total(seen.logprobs - against(live)) / found.tokens
        residual = residuals(mean - self.scale * found.worth, found.group)
        log_weight = found.total(seen.logprobs - seen.old)
        weight = np.minimum(np.exp(np.minimum(log_weight, LOG_RATIO_LIMIT)), self.cap)
        return (-2.0 * weight * residual / found.tokens)[found.of]


def against(live: LiveTurns) -> Array:
    """The reference's log-probs, [m] nats."""
    assert live.reference is not None, "the learner keeps a reference for losses that read one"
    return live.reference
