"""DN-MOPD: a teacher's log-probs as credit, each role's in units of its own spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, tokens
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, cells
from marl_llm.errors import ConfigError


def domain_weights(gap: Array, domain: Array, domains: int, low: float, high: float) -> Array:
    """How much each domain counts, so that none is louder than its spread allows.

        w_d = clip(σ / σ_d, low, high)

    Args:
        gap: how much more the teacher likes a token than the sampler did, nats, [M].
        domain: of each token, [M] int in 0..D-1.
        domains: D.
        low: smallest w.
        high: largest w.

    Returns:
        w, [D]. σ_d and σ are the population's standard deviations in the domain and over all M
        tokens; w is 1 where σ_d is 0 or comes from one token.
    """
    one = np.ones(len(gap))
    count = np.bincount(domain, minlength=domains).astype(np.float64)
    spread = baselines.std(gap, baselines.Pool(domain, one, count), ddof=0)
    whole = baselines.Pool(np.zeros(len(gap), dtype=np.int64), one, np.array([float(len(gap))]))
    ratio = np.divide(
        baselines.std(gap, whole, ddof=0), spread, out=np.ones(domains), where=spread > 0
    )
    return np.where(spread > 0, np.clip(ratio, low, high), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DNMOPD:
    """Domain-normalised multi-teacher on-policy distillation.

        A_t = w_d · (log π_teacher(y_t) - log π_old(y_t)),   w_d = clip(σ / σ_d, low, high)

    Needs the signals "teacher_logprob" [M], under the teacher of the token's domain, and
    "old_logprob" [M]. σ_d is the standard deviation of log π_teacher - log π_sampler over the
    sampled tokens of the domain, σ that over all M tokens. Rewards play no part. Domains are tasks
    in the source; here they are roles by default, so that a role whose teacher says much, such as
    one with long free replies, does not drown the others.

    Source: the package readme of DN-MOPD; roles as domains are our reading.
    """

    card: ClassVar[Card] = Card(
        name="dn_mopd",
        title="DN-MOPD",
        source="the package readme of DN-MOPD",
        evidence="code",
        granularity="token",
        methodology="information",
        level="token",
        needs=frozenset({"teacher_logprob", "old_logprob"}),
        cost="1 scoring pass of a teacher",
        breaks=frozenset({"groups"}),
    )

    by: tuple[str, ...] = ("role",)  # equal values make a domain
    low: float = 0.25  # smallest w
    high: float = 4.0  # largest w

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("dn_mopd.by", self.by))
        checks.within("dn_mopd.low", self.low, 0.0)
        checks.within("dn_mopd.high", self.high, 0.0)
        if self.low > self.high:
            raise ConfigError(f"dn_mopd.low is {self.low}, above dn_mopd.high, {self.high}")

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        teacher = batch.token_signal("teacher_logprob")
        feedback = teacher - batch.token_signal("old_logprob")
        domain, domains = cells([batch.column(name) for name in self.by], len(batch))
        of = tokens.spread(domain, batch.offsets)
        weight = domain_weights(teacher - batch.logprobs, of, domains, self.low, self.high)
        scaling = (weight[of] - 1.0) * feedback
        used = weight[np.unique(of)]
        return token_credit(
            batch,
            feedback + scaling,
            components={"teacher": feedback, "scaling": scaling},
            stats={
                "domains": float(len(used)),
                "clipped_domains": float(np.sum((used == self.low) | (used == self.high))),
            },
        )
