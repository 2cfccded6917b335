"""Policy losses: one term per sampled token, to be minimised.

Each loss is a pure function of flat tokens, and below them stands one frozen dataclass of settings
per loss that calls it. A term is not yet averaged: `aggregation.py` says how much each token
counts, with denominators of the whole batch, and the objective is Σ weight × term.

Three log-probs are kept apart: the sampler's, the *old* (the policy before this update) and the
*current*, which alone carries gradient. Below, ρ = exp(current - old) and A is the advantage, both
per token. The log-ratio is clamped to ±20 before the exponential, so that no ratio is infinite.

To add one: a dataclass with `terms` here or in a file of its own, and a YAML in `configs/loss/`.
Losses that must see the whole batch first are in `balance.py` and `delta.py`; see `twopass.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from marl_llm.errors import ConfigError

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a loss says of every token."""

    loss: Tensor  # [M] to be minimised, with gradient
    ratio: Tensor  # [M] of whatever the loss clips (token or sequence), without gradient
    clipped: Tensor  # [M] bool: the clip holds here


class PolicyLoss(Protocol):
    """Settings of a loss."""

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """Terms of all tokens.

        Args:
            logprobs: [M] current, nats, with gradient.
            old: [M] nats, without.
            advantages: [M].
            lengths: [N] tokens per turn (all > 0); the turns stand side by side in the others.
        """


def log_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """The log-ratio log ρ = current - old, clamped to ±20, [M]."""
    return (logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def ppo_clip(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual: float | None = None,
) -> Terms:
    """The clipped surrogate.

        ℓ = max(-A ρ, -A clip(ρ, 1 - low, 1 + high));   where A < 0 and dual = c:  ℓ = min(ℓ, -A c)

    Args:
        logprobs: [M] current, nats.
        old: [M] nats.
        advantages: [M].
        low: how far below 1 the ratio may bring gain.
        high: how far above 1.
        dual: c > 1 + high, or None. Bounds the loss of a token with A < 0 whose ratio has exploded.

    Returns:
        Terms; `clipped` where the gradient is 0.

    Source: Schulman et al. 2017, arXiv 1707.06347; asymmetric: DAPO, arXiv 2503.14476; dual clip:
    Ye et al. 2019, arXiv 1912.09729.
    """
    ratio = log_ratio(logprobs, old).exp()
    free = -advantages * ratio
    bound = -advantages * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(free, bound)
    clipped = bound > free
    if dual is not None:
        ceiling = -advantages * dual
        over = (advantages < 0) & (loss > ceiling)
        loss = torch.where(over, ceiling, loss)
        clipped = clipped | over
    return Terms(loss, ratio.detach(), clipped)


def gspo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor, low: float, high: float
) -> Terms:
    """Group sequence policy optimisation in its token form: one ratio per turn.

        s_i = exp(mean_t log ρ_{i,t});   s_{i,t} = sg(s_i) · π_{i,t} / sg(π_{i,t})
        ℓ_{i,t} = max(-A s_{i,t}, -A clip(s_{i,t}, 1 - low, 1 + high)),   sg = stop-gradient

    The value of every token's ratio is s_i; its gradient goes through its own log-prob, so A may
    differ between the tokens of a turn. With A constant in the turn and `turn` aggregation this is
    sequence GSPO. Meant for weights that divide by the turn's length, or length counts twice.

    Args:
        logprobs: [M] current, nats.
        old: [M] nats.
        advantages: [M].
        lengths: [N] tokens per turn, all > 0.
        low: about 1e-3 of PPO's, because s_i is a mean over the turn: 3e-4.
        high: 4e-4.

    Source: Zheng et al. 2025, arXiv 2507.18071 (GSPO-token).
    """
    mean = torch.segment_reduce(log_ratio(logprobs, old).detach(), "mean", lengths=lengths)
    value = mean.exp().repeat_interleave(lengths, output_size=len(logprobs))
    ratio = value * (logprobs - logprobs.detach()).exp()
    free = -advantages * ratio
    bound = -advantages * ratio.clamp(1 - low, 1 + high)
    return Terms(torch.maximum(free, bound), value, bound > free)


def cispo(logprobs: Tensor, old: Tensor, advantages: Tensor, floor: float, cap: float) -> Terms:
    """Clipped importance weights on REINFORCE: no token ever loses its gradient.

        ℓ = -sg(clip(ρ, floor, cap)) · A · log π,   sg = stop-gradient

    Args:
        logprobs: [M] current, nats.
        old: [M] nats.
        advantages: [M].
        floor: least weight, an absolute ratio (0 = none).
        cap: largest weight, an absolute ratio.

    Source: MiniMax-M1, arXiv 2506.13585.
    """
    ratio = log_ratio(logprobs, old).exp().detach()
    weight = ratio.clamp(floor, cap)
    return Terms(-weight * advantages * logprobs, ratio, weight != ratio)


def reinforce(
    logprobs: Tensor, old: Tensor, advantages: Tensor, importance: bool, cap: float | None = None
) -> Terms:
    """The score-function estimator, with or without importance weights.

        ℓ = -sg(w) · A · log π,   w = min(ρ, cap) or 1

    Args:
        logprobs: [M] current, nats.
        old: [M] nats.
        advantages: [M].
        importance: weigh by ρ, as is right once the policy has moved from the one that sampled.
        cap: largest weight (truncated importance sampling), None = no limit.

    Source: Williams 1992, Machine Learning 8, 229-256.
    """
    ratio = log_ratio(logprobs, old).exp().detach()
    none = torch.zeros_like(ratio, dtype=torch.bool)
    if not importance:
        return Terms(-advantages * logprobs, ratio, none)
    weight = ratio if cap is None else ratio.clamp(max=cap)
    return Terms(-weight * advantages * logprobs, ratio, none if cap is None else ratio > cap)


def gmpo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor, low: float, high: float
) -> Terms:
    """Geometric-mean policy optimisation: one ratio per turn, whose tokens are clipped apart.

        s_i = exp(mean_t clip(log ρ_{i,t}, -low, high)),   ℓ_{i,t} = -A_{i,t} s_i

    A log-ratio is clipped only where that takes gain away: above where A > 0, below where A < 0.
    The gradient goes through s_i, to all tokens that are not clipped. Meant for weights that divide
    by the turn's length, or length counts twice.

    Args:
        logprobs: [M] current, nats.
        old: [M] nats.
        advantages: [M]. Where they differ inside a turn, only their mean reaches the gradient.
        lengths: [N] tokens per turn, all > 0.
        low: nats.
        high: nats.

    Source: Zhao et al. 2025, arXiv 2507.20673.
    """
    free = log_ratio(logprobs, old)
    bound = free.clamp(-low, high)
    kept = torch.where(advantages > 0, torch.minimum(free, bound), torch.maximum(free, bound))
    kept = torch.where(advantages == 0, free, kept)
    mean = torch.segment_reduce(kept, "mean", lengths=lengths)
    ratio = mean.exp().repeat_interleave(lengths, output_size=len(logprobs))
    return Terms(-advantages * ratio, ratio.detach(), kept != free)


def sapo(logprobs: Tensor, old: Tensor, advantages: Tensor, gain: float, harm: float) -> Terms:
    """Soft adaptive policy optimisation: a smooth gate in place of a clip.

        ℓ = -A · (4/τ) · σ(τ (ρ - 1)),   τ = gain where A > 0, harm elsewhere

    The gradient is that of REINFORCE at ρ = 1 and fades on both sides, faster for larger τ.

    Args:
        logprobs: [M] current, nats.
        old: [M] nats.
        advantages: [M].
        gain: τ of tokens with A > 0.
        harm: τ of the others; larger, because what they push up is everything else.

    Returns:
        Terms; nothing is clipped.

    Source: SAPO, arXiv 2511.20347.
    """
    ratio = log_ratio(logprobs, old).exp()
    tau = torch.where(advantages > 0, gain, harm).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    return Terms(-advantages * gate, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class PPOClip:
    """`ppo_clip`. DAPO's clip-higher is low 0.2, high 0.28."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = 3.0

    def __post_init__(self) -> None:
        check_band("PPOClip", self.low, self.high)
        if self.dual is not None and not self.dual > 1 + self.high:
            raise ConfigError(
                f"PPOClip.dual must be above 1 + high = {1 + self.high} (or null), got {self.dual}"
            )

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """See `ppo_clip`."""
        return ppo_clip(logprobs, old, advantages, self.low, self.high, self.dual)


@dataclass(frozen=True, slots=True)
class GSPO:
    """`gspo`."""

    low: float = 3e-4
    high: float = 4e-4

    def __post_init__(self) -> None:
        check_band("GSPO", self.low, self.high)

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """See `gspo`."""
        return gspo(logprobs, old, advantages, lengths, self.low, self.high)


@dataclass(frozen=True, slots=True)
class CISPO:
    """`cispo`. Bounds are absolute ratios; the paper's form with a free lower side is floor 0."""

    floor: float = 0.8
    cap: float = 1.28

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1 <= self.cap:
            raise ConfigError(
                "CISPO.floor and cap are absolute ratios around 1: 0 <= floor <= 1 <= cap, got "
                f"{self.floor}, {self.cap}"
            )

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """See `cispo`."""
        return cispo(logprobs, old, advantages, self.floor, self.cap)


@dataclass(frozen=True, slots=True)
class Reinforce:
    """`reinforce`."""

    importance: bool = True
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and not (self.cap >= 1 and self.importance):
            raise ConfigError(
                f"Reinforce.cap bounds importance weights from above: at least 1 and with "
                f"importance on, got cap {self.cap}, importance {self.importance}"
            )

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """See `reinforce`."""
        return reinforce(logprobs, old, advantages, self.importance, self.cap)


@dataclass(frozen=True, slots=True)
class GMPO:
    """`gmpo`. The bounds are nats, not distances of a ratio from 1."""

    low: float = 0.4
    high: float = 0.4

    def __post_init__(self) -> None:
        if not (self.low >= 0 and self.high >= 0):
            raise ConfigError(
                f"GMPO.low and high must be at least 0 nats, got {self.low}, {self.high}"
            )

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """See `gmpo`."""
        return gmpo(logprobs, old, advantages, lengths, self.low, self.high)


@dataclass(frozen=True, slots=True)
class SAPO:
    """`sapo`."""

    gain: float = 1.0
    harm: float = 1.05

    def __post_init__(self) -> None:
        if not (self.gain > 0 and self.harm > 0):
            raise ConfigError(f"SAPO.gain and harm must be above 0, got {self.gain}, {self.harm}")

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """See `sapo`."""
        return sapo(logprobs, old, advantages, self.gain, self.harm)


def check_band(name: str, low: float, high: float) -> None:
    """Refuse a clip band that is not around 1."""
    if not (0 <= low <= 1 and high >= 0):
        raise ConfigError(
            f"{name}.low must be in [0, 1] and high at least 0 (distances from ratio 1), got "
            f"{low}, {high}"
        )
