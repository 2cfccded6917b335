"""OTB: what an agent still got after a token, against the group's mean at the same token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns, tokens
from marl_llm.credit.batch import Credit, TurnBatch, ledger, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, cells, chains, sums


def score_norms(logprob: Array, collision: Array) -> Array:
    """Squared norm of the gradient of a token's log-prob in the logits.

        w = ‖e_y - π‖² = 1 - 2 π(y) + Σ_v π(v)² = (1 - π(y))² + Σ_{v≠y} π(v)²

    The last form, since the first is 0 or worse for tokens that are nearly certain.

    Args:
        logprob: log π(y) of the sampled token, nats, [M].
        collision: Σ_v π(v)², [M]; taken as π(y)² where rounding, or another engine, says less.

    Returns:
        w, [M], in [0, 2].
    """
    return np.expm1(logprob) ** 2 + np.maximum(collision - np.exp(logprob) ** 2, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OTB(Grouped):
    """The optimal token baseline: the mean of a group at a token, by how noisy a row is there.

        w = 1 - 2 π(y) + Σ_v π(v)²,   W_t = Σ_{u≤t} w_u
        b_t = Σ_i W_{i,t} G_{i,t} / Σ_i W_{i,t},   A_{i,t} = G_{i,t} - b_t

    Needs the signals "collision" [M], Σ π², and "old_logprob" [M], log π(y). The t-th token of an
    agent is the t-th that it sampled in its episode, over all its turns; other agents' words do not
    exist. G [M] is the return from the token's turn on, and i are the agents of the cell that got
    as far as t. b_t is the baseline of least variance if scores of unlike tokens do not correlate.
    Where all rows were certain so far, W = 0 and b = 0: no gradient comes from there. The tail that
    only the longest row reaches has nobody to be compared with.

    Source: Li et al., The optimal token baseline, arXiv 2602.07078; its form for several turns as
    in verl, which leaves tails and rows alone as they are, and adds 1e-8 to the denominator.
    """

    card: ClassVar[Card] = Card(
        name="otb",
        title="Optimal token baseline",
        source="arXiv 2602.07078",
        evidence="code",
        granularity="token",
        methodology="monte carlo",
        level="token",
        needs=frozenset({"collision", "old_logprob"}),
        breaks=frozenset({"shift"}),
    )

    tail: Literal["raw", "zero"] = "raw"  # A of the tokens that only one row reaches: G, or 0
    ratio_cap: float | None = None  # w is multiplied by min(π_old/π_sampler, cap)²; none = by 1

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of("otb.unit", self.unit, ("agent",))  # each row is there once at each token
        checks.one_of("otb.tail", self.tail, ("raw", "zero"))
        if self.ratio_cap is not None:
            checks.within("otb.ratio_cap", self.ratio_cap, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        pool = self.pool(batch, agents)
        turn = tokens.turn_of(batch.offsets)
        total = returns.totals(batch.reward, agents)
        to_go = returns.to_go(batch.reward, agents)[turn]
        before = returns.totals(batch.lengths, agents) - returns.to_go(batch.lengths, agents)
        place = before.astype(np.int64)[turn] + tokens.places(batch.offsets)
        moment, moments = cells((pool.cell[turn], place), len(turn))
        weight = _up_to_here(self._noise(batch), batch)
        there = baselines.Pool(moment, weight, sums(weight, moment, moments))
        baseline = baselines.mean(to_go, there)[moment]
        few = baselines.alone(pool)[turn]
        tail = (np.bincount(moment, minlength=moments)[moment] == 1) & ~few
        baseline[few] = 0.0
        baseline[tail] = 0.0 if self.tail == "raw" else to_go[tail]
        # 0 at rows alone whose rule is "zero", 1 elsewhere.
        heard = self.settle(np.ones(len(batch)), np.ones(len(batch)), pool, batch)[turn]
        advantage = heard * (to_go - baseline)
        return token_credit(
            batch,
            advantage,
            components=ledger(to_go, advantage),
            stats={
                **baselines.pool_statistics(total, pool),
                "tail_tokens": float(np.sum(tail)),
            },
        )

    def _noise(self, batch: TurnBatch) -> Array:
        """The w of every token, [M]."""
        old = batch.token_signal("old_logprob")
        noise = score_norms(old, batch.token_signal("collision"))
        if self.ratio_cap is None:
            return noise
        ratio = np.exp(np.minimum(old - batch.logprobs, np.log(self.ratio_cap)))
        return noise * ratio**2


def _up_to_here(x: Array, batch: TurnBatch) -> Array:
    """Sum over the agent's tokens up to each, [M].

    Backwards over the batch turned round: a difference of sums would drown the first tokens' small
    numbers in the rounding of all that come after them.
    """
    turned = chains((batch.episode[::-1], batch.agent[::-1]), -batch.agent_turn[::-1])
    offsets = batch.offsets[-1] - batch.offsets[::-1]
    return tokens.scan_tokens_back(x[::-1], 1.0, offsets, turned)[::-1]
