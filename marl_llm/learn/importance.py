"""The importance correction: what a token counts that older weights than the learner's sampled.

Three log-probs of a token are kept apart: the sampler's μ, the trainer's before the update π_old,
and the current π. A loss clips π/π_old, which says how far this update has gone; π_old/μ says how
far the learner had gone before, and is corrected here by a truncated weight:

    ratio     none of this; the loss clips π/μ as if this update had gone all the way
    token     w = min(π_old/μ, cap), each token by itself
    sequence  w = min(Π_t π_old/μ, cap), the same for all tokens of a turn
    none      w = 1: the difference is ignored, which is biased

Tokens that the learner's own weights sampled are never corrected: there μ = π_old but for rounding.

Source: truncated importance sampling, Ionides 2008; apart from the clipped ratio as in decoupled
PPO, Hilton et al., arXiv 2110.00641, and AReaL, arXiv 2505.24298.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marl_llm.errors import ConfigError
from marl_llm.learn.losses import log_ratio


@dataclass(frozen=True, slots=True)
class Correction:
    """Which correction, and the most that a token may count."""

    form: Literal["ratio", "token", "sequence", "none"] = "token"
    cap: float = 2.0  # largest weight; smaller ones stay

    def __post_init__(self) -> None:
        if self.form not in ("ratio", "token", "sequence", "none"):
            raise ConfigError(
                f"correction.form is ratio, token, sequence or none, got {self.form!r}"
            )
        if self.cap < 1:
            raise ConfigError(f"correction.cap must be at least 1, got {self.cap}")

    def of(
        self, sampler: Tensor, before: Tensor, fresh: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the loss takes its ratio from, [M] nats, and what each token counts, [M].

        Args:
            sampler: log μ, [M] nats.
            before: log π_old, [M] nats, without gradient.
            fresh: [M] bool: sampled by the weights that the update starts from.
            lengths: [N] tokens per turn.
        """
        one = torch.ones_like(sampler)
        if self.form == "ratio":
            return torch.where(fresh, before, sampler), one
        if self.form == "none":
            return before, one
        gone = log_ratio(before, sampler)
        if self.form == "sequence":
            whole = torch.segment_reduce(gone, "sum", lengths=lengths, initial=0.0)
            gone = whole.clamp(-20.0, 20.0).repeat_interleave(lengths, output_size=len(gone))
        return before, torch.where(fresh, one, gone.exp().clamp(max=self.cap))
