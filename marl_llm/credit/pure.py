"""PURE: the worst step of a response, and not the sum of its steps, is what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns, tokens
from marl_llm.credit.baselines import Pool
from marl_llm.credit.batch import Credit, TurnBatch, token_credit, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array, Chains, cells, extremes, sums


def min_form(score: Array, response: Array, count: int, temperature: float) -> Array:
    """Step rewards whose sum over a response is about its smallest score.

        w_k = exp(-p_k / τ) / Σ_j exp(-p_j / τ),   reward_k = w_k · p_k

    τ → 0: the sum is min p; τ → ∞: it is the mean of p.

    Args:
        score: p, one per step, [K].
        response: which response a step is in, [K] int.
        count: how many responses there are.
        temperature: τ, in units of score.

    Returns:
        Rewards, [K].
    """
    low, _ = extremes(score, response, count)
    weight = np.exp((low[response] - score) / temperature)
    return score * weight / sums(weight, response, count)[response]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinForm(Grouped):
    """Settings that both granularities share, and the two baselines."""

    temperature: float = 0.1  # τ of the softmax over steps, in units of score
    outcome_weight: float = 1.0  # of the agent's return beside the step rewards
    whiten: bool = True  # (A - mean) / √(variance + ε) over the sampled tokens of the batch
    ddof: int = 0  # of that variance
    epsilon: float = 1e-8  # added to that variance

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        name = self.card.name
        checks.one_of(f"{name}.unit", self.unit, ("episode", "agent"))
        checks.within(f"{name}.temperature", self.temperature, 1e-6)
        checks.within(f"{name}.outcome_weight", self.outcome_weight, 0.0)
        checks.one_of(f"{name}.ddof", self.ddof, (0, 1))
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def steps(self, score: Array, turn: Array, batch: TurnBatch, agents: Chains) -> Array:
        """What each step earns beyond the others' average step, [K].

        Args:
            score: p, one per step, [K].
            turn: the turn a step is in, [K] int.
            batch: N turns.
            agents: its chains of (episode, agent).
        """
        of = agents.of[turn]
        reward = min_form(score, of, agents.count, self.temperature)
        count = sums(np.ones(len(of)), of, agents.count)
        average = sums(reward, of, agents.count) / np.maximum(count, 1.0)
        # An agent without a known step has no average, and is nobody's baseline.
        judged = self.pool(batch, agents, count[agents.of] > 0)
        own = average[agents.of]
        beyond, alone = baselines.centre_on_others(own, judged, batch.episode)
        baseline = own - beyond
        return baselines.settle(
            reward - baseline[turn],
            raw=reward,
            few=alone[turn],
            rule=self.singleton,
            sampled=np.ones(len(turn), dtype=bool),
        )

    def outcome(self, total: Array, batch: TurnBatch, pool: Pool) -> Array:
        """The weighted return beyond that of the others, [N]."""
        beyond, alone = baselines.centre_on_others(total, pool, batch.episode)
        settled = baselines.settle(
            beyond, raw=total, few=alone, rule=self.singleton, sampled=batch.lengths > 0
        )
        return self.outcome_weight * settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Pure(MinForm):
    """Min-form credit of turns scored by a judge, a turn being a step.

        w = softmax(-p / τ) over the agent's K turns,   b = mean over the others of Σ_k w_k p_k / K
        A_k = Σ_{j≥k} (w_j p_j - b) + c · (R - mean over the others of R)

    p is the signal "judge_score" [N], in [-1, 1] there; R [N] is the whole return of the agent in
    its episode, in the paper the verified answer; the others are those of the cell in other
    episodes. Then A is whitened over all sampled tokens of the batch. A turn whose score is missing
    is no step: it earns nothing, is charged nothing, and is counted in `missing_labels`. Nobody to
    compare with: no step rewards (`singleton: raw` leaves b out).

    A response of K steps is charged b K times, so that with b > 0 longer ones are worth less.

    Source: PURE, arXiv 2504.15275, and code of CJReinforce/PURE (its baseline "step").
    """

    card: ClassVar[Card] = Card(
        name="pure",
        title="PURE",
        source="arXiv 2504.15275; code of CJReinforce/PURE",
        evidence="code",
        granularity="turn",
        methodology="judge",
        needs=frozenset({"judge_score"}),
        cost="one pass of a process reward model",
        breaks=frozenset({"groups"}),  # whitening
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        pool = self.pool(batch, agents)
        known, missing = labelled(batch, "judge_score")
        rows = np.flatnonzero(known)
        step = np.zeros(len(batch))
        step[rows] = self.steps(batch.signal("judge_score")[rows], rows, batch, agents)
        process = returns.to_go(step, agents)
        total = returns.totals(batch.reward, agents)
        parts = {"process": process, "outcome": self.outcome(total, batch, pool)}
        advantage = process + parts["outcome"]
        if self.whiten:
            white = baselines.whiten(
                advantage,
                batch.lengths.astype(np.float64),
                ddof=self.ddof,
                epsilon=self.epsilon,
            )
            parts["whitening"], advantage = white - advantage, white
        stats = {**baselines.pool_statistics(total, pool), **missing}
        return turn_credit(batch, advantage, components=parts, stats=stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class PureSegments(MinForm):
    """Min-form credit of the steps inside turns.

        w = softmax(-p / τ) over the agent's K steps,   b = mean over the others of Σ_k w_k p_k / K
        A_t = Σ over steps that end at t or later of (w_k p_k - b)
              + c · (R - mean over the others of R)

    Needs the signals "segment" [M], which cuts turns into steps, and "token_reward" [M], whose sum
    over a step is its score p, in [-1, 1] in the paper. As in the authors' code, the last token of
    a step gets 0 (`skip_ends`): there it is the separator that the score was read at. Such tokens,
    and those in no step, are left out of the whitening. Otherwise as `Pure`.

    Source: PURE, arXiv 2504.15275, and code of CJReinforce/PURE (its baseline "step").
    """

    card: ClassVar[Card] = Card(
        name="pure_segments",
        title="PURE on steps inside turns",
        source="arXiv 2504.15275; code of CJReinforce/PURE",
        evidence="code",
        granularity="segment",
        methodology="judge",
        level="token",
        needs=frozenset({"segment", "token_reward"}),
        cost="one pass of a process reward model",
        breaks=frozenset({"groups"}),  # whitening
    )

    skip_ends: bool = True  # the last token of a step gets 0

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        pool = self.pool(batch, agents)
        segment = batch.token_key("segment")
        turn = tokens.turn_of(batch.offsets)
        inside = np.flatnonzero(segment >= 0)
        step, count = cells((turn[inside], segment[inside]), len(inside))
        ends = extremes(inside, step, count)[1].astype(np.int64)
        score = sums(batch.token_signal("token_reward")[inside], step, count)
        earned = np.zeros(len(turn))
        earned[ends] = self.steps(score, turn[ends], batch, agents)
        live = segment >= 0
        if self.skip_ends:
            live[ends] = False
        total = returns.totals(batch.reward, agents)
        outcome = tokens.spread(self.outcome(total, batch, pool), batch.offsets)
        process = tokens.scan_tokens_back(earned, 1.0, batch.offsets, agents)
        parts = {"process": np.where(live, process, 0.0), "outcome": np.where(live, outcome, 0.0)}
        advantage = parts["process"] + parts["outcome"]
        if self.whiten:
            white = baselines.whiten(
                advantage, live.astype(np.float64), ddof=self.ddof, epsilon=self.epsilon
            )
            white = np.where(live, white, 0.0)
            parts["whitening"], advantage = white - advantage, white
        stats = baselines.pool_statistics(total, pool)
        return token_credit(batch, advantage, components=parts, stats=stats)
