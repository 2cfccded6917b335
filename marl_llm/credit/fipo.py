"""FIPO: tokens whose future the update is making likelier count more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array
from marl_llm.credit.shaped import Shaped, shaped_credit
from marl_llm.credit.tokens import sum_ahead

SAFE = (0.8, 1.0)  # where the factor of a token with A < 0 and a large ratio is kept


def future_shift(log_ratio: Array, offsets: Array, half_life: float) -> Array:
    """How much likelier the rest of a response has become, the near tokens more.

        F_t = Σ_{k≥t} γ^(k-t) · log ρ_k,   γ = 2^(-1/half_life)

    Args:
        log_ratio: log ρ, current minus old log-prob, [M] nats.
        offsets: responses, [R+1].
        half_life: tokens after which a shift counts half.

    Returns:
        F, [M] nats.
    """
    return sum_ahead(log_ratio, offsets, 2.0 ** (-1.0 / half_life))


@dataclass(frozen=True, slots=True, kw_only=True)
class FIPO(Shaped):
    """GRPO, weighted by the discounted shift of the tokens to come.

        F_t = Σ_{k≥t} γ^(k-t) · log ρ_k,   f_t = clip(exp(F_t), 1, 1 + ε),   A_t = A · f_t

    ρ is the current over the old policy; after the clip, a token with A < 0 and ρ > `safe_ratio`
    gets its factor clipped to [0.8, 1] as well. Needs the signals "new_logprob" and "old_logprob"
    [M]. On the first step after sampling they are equal, f = 1, and this is GRPO: the method acts
    where a batch is used for several steps.

    Source: FIPO, arXiv 2603.19835, and its port in ms-swift.
    """

    card: ClassVar[Card] = Card(
        name="fipo",
        title="FIPO",
        source="arXiv 2603.19835; code of modelscope/ms-swift",
        evidence="code",
        granularity="token",
        methodology="information",
        level="token",
        needs=frozenset({"new_logprob", "old_logprob"}),
        cost="one pass of the policy per optimizer step",
    )

    half_life: float = 32.0  # tokens
    clip: float = 0.2  # ε
    high_only: bool = True  # False: the factor may also fall, to 1 - ε
    safe_ratio: float = 4.0
    outlier: float | None = None  # tokens with a larger ratio are left out of F; None = all count

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        checks.within("fipo.half_life", self.half_life, 1.0)
        checks.within("fipo.clip", self.clip, 0.0, 1.0)
        checks.within("fipo.safe_ratio", self.safe_ratio, 1.0)
        if self.outlier is not None:
            checks.within("fipo.outlier", self.outlier, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        responses = self.responses(batch, agents)
        log_ratio = batch.token_signal("new_logprob") - batch.token_signal("old_logprob")
        shift = responses.lay(log_ratio)
        if self.outlier is not None:
            shift = np.where(shift <= math.log(self.outlier), shift, 0.0)
        factor = future_shift(shift, responses.offsets, self.half_life)
        factor = responses.put_back(factor)
        low, high = (1.0 if self.high_only else 1.0 - self.clip), 1.0 + self.clip
        np.exp(np.minimum(factor, math.log(high), out=factor), out=factor)
        np.clip(factor, low, high, out=factor)
        risky = np.flatnonzero((base < 0) & (log_ratio > math.log(self.safe_ratio)))
        factor[risky] = np.clip(factor[risky], *SAFE)
        factor *= base
        return shaped_credit(batch, base, factor, stats)
