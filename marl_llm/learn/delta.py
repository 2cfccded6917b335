"""DelTA: tokens that tell good responses from bad ones weigh more.

A policy gradient separates the gradients of praised tokens from those of blamed ones, and words
that both sides share blur the two. Each token is scored by how much nearer its gradient is to the
mean of its own side. Gradients are taken at the output layer, by a proxy that needs only the hidden
state h and the probability p of the token, v = (1 - p) h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from marl_llm.errors import ConfigError
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.losses import PolicyLoss, PPOClip, Terms
from marl_llm.learn.rows import Array
from marl_llm.learn.twopass import Seen, TwoPassLoss

LEAST_SPREAD = 1e-4  # of margins, so that equal ones are not noise over noise


def centroids(v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of v on the praised side and on the blamed side, [H] each.

        μ± = Σ |w| v / Σ |w|   over the tokens with w > 0, and those with w < 0

    Args:
        v: [m, H].
        weight: signed, [m]. A side without tokens has the mean 0.
    """

    def mean(w: Tensor) -> Tensor:
        return (w @ v) / w.sum().clamp_min(1e-8)

    return mean(weight.clamp(min=0.0)), mean((-weight).clamp(min=0.0))


def margins(v: Tensor, side: Tensor, praised: Tensor, blamed: Tensor) -> Tensor:
    """How much nearer each token is to its own side: ‖v - μ_other‖² - ‖v - μ_own‖², [m].

    Args:
        v: [m, H].
        side: 1, -1, or 0 (then the margin is 0), [m].
        praised: μ+, [H].
        blamed: μ-, [H].
    """
    toward = 2.0 * (v @ (praised - blamed)) + blamed.square().sum() - praised.square().sum()
    return side * toward


def spreads(margin: Tensor, side: Tensor) -> Tensor:
    """The standard deviation of the margins on each token's own side, [m], at least `LEAST_SPREAD`.

    Args:
        margin: [m].
        side: 1, -1 or 0, [m].
    """
    out = torch.full_like(margin, LEAST_SPREAD)
    for sign in (1.0, -1.0):
        mine = side == sign
        if mine.any():
            out[mine] = margin[mine].std(correction=0).clamp_min(LEAST_SPREAD)
    return out


def token_scores(v: Tensor, advantages: Tensor, rounds: int) -> Tensor:
    """How typical each token is of its side, [m] in (0, 1); 1/2 where the sides are alike.

        a = σ(margin / γ),   γ = standard deviation of the side's margins

    In each round the means are taken again, weighted by |A| a, and the tokens scored against them;
    γ is that of the margins from which the means came.

    Args:
        v: [m, H].
        advantages: A, [m].
        rounds: how often the means are taken again.
    """
    side = advantages.sign()
    sides = centroids(v, advantages)
    margin = margins(v, side, *sides)
    gamma = spreads(margin, side)
    for _ in range(rounds):
        sides = centroids(v, advantages * torch.sigmoid(margin / gamma))
        gamma = spreads(margin, side)
        margin = margins(v, side, *sides)
    return torch.sigmoid(margin / gamma)


@dataclass(frozen=True, slots=True)
class DelTA(TwoPassLoss):
    """Any loss, its tokens weighted by how well they tell praise from blame.

        λ = least + (most - least) · a,   J = Σ w λ ℓ(A) · Σ w / Σ w λ

    a is the token's score on its side (`token_scores`); tokens with A = 0 get `least`. Σ runs over
    the whole batch, so that the weights have mean 1 under the batch's own w. Needs the hidden state
    behind every token, which the first pass keeps: m · H floats on the device. The scores are those
    of the policy before each step; the authors compute them once per batch.

    Source: DelTA, arXiv 2605.21467, and code of RUCBM/DelTA.
    """

    loss: PolicyLoss = field(default_factory=lambda: PPOClip(high=0.28, dual=10.0))
    least: float = 0.8  # smallest weight
    most: float = 1.2  # largest
    rounds: int = 1  # how often the means of the sides are taken again

    reads_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 < self.least <= self.most and self.rounds >= 0):
            raise ConfigError(
                "DelTA needs 0 < least <= most and rounds >= 0, got "
                f"{self.least}, {self.most}, {self.rounds}"
            )
        if isinstance(self.loss, TwoPassLoss):
            raise ConfigError(
                f"DelTA.loss may not be {type(self.loss).__name__}, which sets the advantages of "
                "tokens itself; use ppo_clip or another loss of one pass"
            )

    def terms(self, logprobs: Tensor, old: Tensor, advantages: Tensor, lengths: Tensor) -> Terms:
        """Those of the loss inside."""
        return self.loss.terms(logprobs, old, advantages, lengths)

    def coefficients(self, live: LiveTurns, seen: Seen) -> Array:
        """Advantages times weights of mean 1, [m]."""
        assert seen.features is not None, "the first pass keeps features for losses that read them"
        h = seen.features
        p = torch.as_tensor(np.exp(seen.logprobs), dtype=h.dtype, device=h.device)
        a = torch.as_tensor(live.advantages, dtype=h.dtype, device=h.device)
        scores = token_scores((1.0 - p)[:, None] * h, a, self.rounds)
        scores = torch.where(a == 0, torch.zeros_like(scores), scores)
        weight = self.least + (self.most - self.least) * scores.double().cpu().numpy()
        return live.advantages * weight * live.weights.sum() / (live.weights @ weight)
