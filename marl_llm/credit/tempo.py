"""TEMPO: GRPO, and at each token where the replies of a group part ways, what the turn changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns, tries
from marl_llm.credit.batch import Credit, TurnBatch, token_credit, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array
from marl_llm.credit.tokens import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPrefixes(Grouped):
    """Settings of the rules on prefix trees. Not a rule itself."""

    scale: bool = True  # divide by the cell's standard deviation, as GRPO does
    ddof: int = 1  # of that standard deviation
    epsilon: float = 1e-6  # added to it, in units of reward
    credit_end: bool = False  # is stopping where others go on a branch, too?

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        name = self.card.name
        checks.one_of(f"{name}.unit", self.unit, ("agent",))  # what a tree counts once
        checks.one_of(f"{name}.ddof", self.ddof, (0, 1))
        checks.within(f"{name}.epsilon", self.epsilon, 0.0)

    def base(self, total: Array, pool: baselines.Pool, batch: TurnBatch) -> tuple[Array, Array]:
        """What every step of an agent gets, and the factor on what it changed, each [N]."""
        if not self.scale:
            whole = self.settle(baselines.centre(total, pool), total, pool, batch)
            return whole, np.ones(len(total))
        deviation = baselines.std(total, pool, self.ddof)[pool.cell]
        factor = np.divide(
            1.0, deviation + self.epsilon, out=np.zeros(len(total)), where=deviation > 0
        )
        whole = self.standardise(total, pool, batch, ddof=self.ddof, epsilon=self.epsilon)
        return whole, factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo(OnPrefixes):
    """Tree-estimated mean prefix values: GRPO with a branch-gated temporal difference.

        A_t = (R - mean_cell R + V(y_≤t) - V(y_<t)) / (std_cell R + ε)
        V(prefix) = mean of R over the agents of the cell whose tokens begin with it

    Needs the signal "token_id" [M]. R is the return of the agent in its episode. Where the replies
    do not branch, the difference is exactly 0 and A is GRPO's. If no reply begins with another one,
    the differences of an agent add up to R - mean. As in the code, where one does, the token that
    goes on is a branch and the end of the shorter one is nobody's; with `credit_end` the last token
    has it, and they add up again. A reply that samples its end of text needs neither.

    An agent of several turns is one sequence, in which what it sees before each turn (its
    information state) is a symbol without credit: prefixes are shared only as long as both do and
    see the same.

    Replies part ways early, so most differences lie in their first tokens: watch "shared_share".

    Source: Tran et al., Exploiting tree structure, arXiv 2509.18314, and its code
    (fatebreaker/tempo), which knows one turn.
    """

    card: ClassVar[Card] = Card(
        name="tempo",
        title="TEMPO",
        source="arXiv 2509.18314",
        evidence="code",
        granularity="token",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"token_id"}),
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        tokens = batch.token_key("token_id")
        steps = tries.trie_steps(total, pool.cell, batch.state_key, tokens, batch.offsets, agents)
        change = steps.symbol.copy()
        if self.credit_end:
            change[batch.offsets[1:][batch.lengths > 0] - 1] += steps.end[batch.lengths > 0]
        whole, factor = self.base(total, pool, batch)
        parts = {
            "episode": spread(whole, batch.offsets),
            "branch": spread(factor, batch.offsets) * change,
        }
        return token_credit(
            batch,
            parts["episode"] + parts["branch"],
            components=parts,
            stats={**baselines.pool_statistics(total, pool), **shared(steps.sharing)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TempoTurnsReading(OnPrefixes):
    """TEMPO with turns in the place of tokens: equal states and actions are one prefix.

        A_k = (R - mean_cell R + V(behind turn k) - V(in front of it)) / (std_cell R + ε)

    V is the mean of R over the agents of the cell that saw and did the same up to there: a turn in
    front of which histories are equal is compared by its action. Histories, not states: two ways
    to one state are two prefixes. What an agent gets to see is no step.

    Source: our reading of TEMPO, arXiv 2509.18314, whose steps are tokens.
    """

    card: ClassVar[Card] = Card(
        name="tempo_turns_reading",
        title="TEMPO over turns",
        source="our reading of arXiv 2509.18314",
        evidence="reading",
        granularity="turn",
        methodology="temporal difference",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        sampled = batch.lengths > 0
        one_each = np.concatenate(([0], np.cumsum(sampled)))
        steps = tries.trie_steps(
            total, pool.cell, batch.state_key, batch.action_key[sampled], one_each, agents
        )
        change = steps.end if self.credit_end else np.zeros(len(batch))
        change[sampled] += steps.symbol
        whole, factor = self.base(total, pool, batch)
        parts = {"episode": whole, "branch": factor * change}
        return turn_credit(
            batch,
            parts["episode"] + parts["branch"],
            components=parts,
            stats={**baselines.pool_statistics(total, pool), **shared(steps.sharing)},
        )


def shared(sharing: Array) -> dict[str, float]:
    """Share of the steps whose prefix somebody else has, too."""
    return {"shared_share": float(np.mean(sharing > 1)) if len(sharing) else 0.0}
