"""TRACE: temporal differences of how far a frozen reference still is from the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, Chains, following
from marl_llm.errors import EpisodeError


def window_mean(x: Array, known: Array, links: Chains, width: int, decay: float) -> Array:
    """Weighted mean over the next rows of the chain, this one included.

        c_k = Σ_u g^(u-k) x_u / Σ_u g^(u-k),   u = k .. k + width - 1, as far as the chain goes

    Args:
        x: [N].
        known: rows that count in either sum, [N] bool.
        links: the chains of the N rows.
        width: how many rows.
        decay: g, per row.

    Returns:
        c, [N] float64; 0 where no row of the window is known.
    """
    counts = known.astype(np.float64)
    values = np.where(known, x, 0.0)
    total, weight, factor = np.zeros(len(x)), np.zeros(len(x)), 1.0
    for _ in range(min(width, int(links.before.max(initial=0)) + 1)):
        total += factor * values
        weight += factor * counts
        values, counts = following(values, links, 0.0), following(counts, links, 0.0)
        factor *= decay
    return np.divide(total, weight, out=np.zeros(len(x)), where=weight > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLogRatio(FromOutcome):
    """Log-ratio temporal differences beside the outcome.

        d = ε_d - l,   δ_k = log(d_before / d_after)
        A_k = α_O · z(R) + α_T · c_k,   c_k = Σ_u g^(u-k) δ_u / Σ_u g^(u-k),   u = k .. k + K - 1

    l is the mean log-prob of the right answer's tokens under a frozen reference; signals
    "gold_before" and "gold_after" [N]. log(d_0 / d_k) is the value that δ is the difference of, so
    a turn that brings the answer nearer gets a positive δ, and along an agent that is alone they
    sum to log(d_0 / d_T). A window stops at the agent's last turn. z(R) is GRPO's advantage of the
    whole return. A missing probe leaves the windows; turns that sampled nothing are in none.

    K = 1 with α_O = 0 and α_T = 1 is δ alone (`trace_delta`). ε_d is 0.1 in notes on the paper,
    whose own examples fit 0.001 better; with ε_d = 0 only the ratio of log-probs counts. The
    factor that the paper puts on windows which reach the end is not known exactly and left out.

    Source: arXiv 2607.13988, TRACE; not the jailbreak detector of that name.
    """

    card: ClassVar[Card] = Card(
        name="trace_logratio",
        title="TRACE, log-ratio TD",
        source="arXiv 2607.13988",
        evidence="notes",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"gold_before", "gold_after"}),
        cost="T + 1 forward passes of a reference, and gold answers",
    )

    eps_d: float = 0.1  # ε_d, added to the distance, nats per token
    window: int = 3  # K, turns of the agent
    decay: float = 0.8  # g, per turn of the agent
    outcome_weight: float = 1.0  # α_O
    trace_weight: float = 0.2  # α_T

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.within("trace_logratio.eps_d", self.eps_d, 0.0)
        checks.whole("trace_logratio.window", self.window, 1)
        checks.within("trace_logratio.decay", self.decay, 0.0, 1.0)
        checks.within("trace_logratio.outcome_weight", self.outcome_weight, 0.0)
        checks.within("trace_logratio.trace_weight", self.trace_weight, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        known, missing = labelled(batch, "gold_before", "gold_after")
        delta = self._distance(batch, "gold_before", known)
        delta = np.where(known, delta - self._distance(batch, "gold_after", known), 0.0)
        ahead = window_mean(delta, known, agents, self.window, self.decay)
        outcome, stats = self.outcome(batch.reward, batch, agents)
        parts = {"outcome": self.outcome_weight * outcome, "trace": self.trace_weight * ahead}
        return turn_credit(
            batch, parts["outcome"] + parts["trace"], components=parts, stats={**stats, **missing}
        )

    def _distance(self, batch: TurnBatch, name: str, known: Array) -> Array:
        """Logarithm of d of a probe, [N]; anything where it is not known."""
        d = self.eps_d - label(batch, name, -np.inf, 0.0)
        bad = np.flatnonzero(known & (d <= 0.0))
        if len(bad):
            i = bad[0]
            raise EpisodeError(
                f"signal {name!r} of turn {batch.turn[i]} of episode {batch.episode[i]} is 0, a "
                "certain answer, whose distance has no logarithm; set trace_logratio.eps_d above 0"
            )
        return np.log(np.where(d > 0.0, d, 1.0))
