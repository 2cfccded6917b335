"""HAE split across policies: the planner's policy has the high value, the executors' the low one.

Each learner sees its own turns; three numbers per turn stand for what the others did meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.calls import call_chains
from marl_llm.credit.card import Card
from marl_llm.credit.gae import filled
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array, cells, following, scan_back, sums

SIGNALS = ("value", "span", "value_behind", "reward_others")


@dataclass(frozen=True, slots=True, kw_only=True)
class HAESplit:
    """HAE for a planner and the agents that it calls, each policy in a learner of its own.

        δ_k = R_k + γ^d · V_next - V_k,   A_k = δ_k + γ^d λ · A_{k+1} within the call

    A call is a segment: the planner's turn chooses it, its agent acts in it and ends it by its
    report. d is the signal "span" [N], the turns of anybody until the agent of k goes on, and R_k
    what it earned with the turn, plus the signal "reward_others" [N]. V_next is V of the agent's
    next turn; behind the last turn of a call it is "value_behind" [N], the V with which the caller
    goes on, and A runs no further. For a planner whose turns make calls this is HAE's A^H (an SMDP
    step per turn, d its calls' length), for those that it calls A^L with the bootstrap from V^H,
    and an agent that is called and calls has both. λ is `lam_segment` for agents that nobody
    called, `lam_turn` for the others. There is no switch: who ends a segment is who reports.

    "value" [N] is V before the turn. A missing one is filled in from behind; where another signal
    is missing the turn has δ = 0. A planner whose episode was cut short goes on from
    "value_behind", too. With `whiten` A is centred and divided by its std (over n) over the sampled
    turns of each role. All tokens of a turn get the same A [N]; each turn weighs 1, whatever the
    number of calls, since this is the gradient of the return.

    Source: our reading of HiPER, arXiv 2602.16165, which has one policy and calls nobody.
    """

    card: ClassVar[Card] = Card(
        name="hae_split",
        title="HAE split across policies",
        source="our reading of arXiv 2602.16165",
        evidence="reading",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset(SIGNALS),
        cost="a critic's T values",
        breaks=frozenset({"groups", "shift"}),
    )

    gamma: float = 1.0  # discount per turn of the episode, whoever takes it
    lam_turn: float = 1.0  # per turn of an agent that was called
    lam_segment: float = 0.95  # per turn of one that was not
    whiten: bool = True  # each role by itself
    epsilon: float = 1e-8  # added to the standard deviation, if whitened

    def __post_init__(self) -> None:
        checks.within("hae_split.gamma", self.gamma, 0.0, 1.0)
        checks.within("hae_split.lam_turn", self.lam_turn, 0.0, 1.0)
        checks.within("hae_split.lam_segment", self.lam_segment, 0.0, 1.0)
        checks.within("hae_split.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        calls, called = call_chains(batch), batch.depth > 0
        done = batch.terminated & ~called
        span, behind, others = (_or_zero(batch, name) for name in SIGNALS[1:])
        gained = np.asarray(batch.reward, dtype=np.float64) + others
        decay, end = self.gamma**span, np.where(done, 0.0, behind)
        told = batch.known("span") & batch.known("reward_others")
        told &= (calls.after > 0) | done | batch.known("value_behind")
        value = filled(gained, batch.signal("value"), batch.known("value"), end, calls, decay)
        error = np.where(told, gained + decay * following(value, calls, end) - value, 0.0)
        lam = np.where(called, self.lam_turn, self.lam_segment)
        raw = scan_back(error, decay * lam, calls)
        advantage = self._whitened(batch, raw)
        _, stats = labelled(batch, *SIGNALS)
        return turn_credit(
            batch,
            advantage,
            components=ledger(raw + value, raw, advantage),
            stats=stats,
            targets=raw + value,
        )

    def _whitened(self, batch: TurnBatch, raw: Array) -> Array:
        """An advantage in units of its spread over the sampled turns of its role, [N]."""
        if not self.whiten:
            return raw
        role, roles = cells((batch.role,), len(batch))
        counted = (batch.lengths > 0).astype(np.float64)
        pool = baselines.Pool(role, counted, sums(counted, role, roles))
        return baselines.standardise(raw, pool, ddof=0, epsilon=self.epsilon)


def _or_zero(batch: TurnBatch, name: str) -> Array:
    """A signal over turns, 0 where it is missing, [N]."""
    return np.where(batch.known(name), batch.signal(name), 0.0)
