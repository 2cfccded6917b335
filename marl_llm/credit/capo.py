"""CAPO: steps that several critiques call wrong are charged, whatever the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns, tokens
from marl_llm.credit.baselines import Pool, Unit
from marl_llm.credit.batch import Credit, TurnBatch, ledger, token_credit, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import token_label
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, sums

Vote = Literal["intersection", "majority", "union"]
Tie = Literal["clean", "wrong"]


def verdict(share: Array, vote: Vote, tie: Tie = "clean") -> Array:
    """Which tokens lie in a wrong step, by a vote of critiques, [M] bool.

    Args:
        share: of the critiques, those that call the token's step wrong, [M] in [0, 1].
        vote: "intersection" takes all of them, "majority" more than half, "union" one.
        tie: what exactly half of them mean to a majority.
    """
    if vote == "intersection":
        return share >= 1.0
    if vote == "union":
        return share > 0.0
    return share >= 0.5 if tie == "wrong" else share > 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted(FromOutcome):
    """Settings of the vote, and what a right answer and a wrong step are worth."""

    outcome_weight: float = 2.0  # C, of a right answer
    process_penalty: float = 1.0  # P, of a wrong step
    right_above: float = 0.0  # the answer is right where the return is above this
    vote: Vote = "intersection"
    tie: Tie = "clean"  # of a majority

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        name = self.card.name
        checks.within(f"{name}.outcome_weight", self.outcome_weight, 0.0)
        checks.within(f"{name}.process_penalty", self.process_penalty, 0.0)
        checks.within(f"{name}.right_above", self.right_above, -np.inf)
        checks.one_of(f"{name}.vote", self.vote, ("intersection", "majority", "union"))
        checks.one_of(f"{name}.tie", self.tie, ("clean", "wrong"))

    def wrong(self, batch: TurnBatch) -> Array:
        """Which tokens lie in a wrong step, [M] bool."""
        return verdict(token_label(batch, "wrong_share", 0.0, 1.0), self.vote, self.tie)


@dataclass(frozen=True, slots=True, kw_only=True)
class CAPO(Voted):
    """GRPO on a reward that knows whether all steps were right.

        r = C · [answer right] - P · [some step wrong],   A = (r - mean_cell r) / (std_cell r + ε)

    so that with C = 2 and P = 1 a clean right answer is worth 2, a right one with a wrong step 1,
    a clean wrong one 0, and the rest -1. A step is wrong by a vote of critiques, which do not see
    the answer. Needs the signal "wrong_share" [M]; the answer is right where the whole return of
    the agent in its episode is above `right_above`. One number per agent: the steps decide how much
    it is, not where it goes. Whether exactly half of the critiques make a majority is not said.

    Source: CAPO, arXiv 2508.02298, and tests of an independent implementation.
    """

    card: ClassVar[Card] = Card(
        name="capo",
        title="CAPO",
        source="arXiv 2508.02298",
        evidence="notes",
        granularity="response",
        methodology="judge",
        needs=frozenset({"wrong_share"}),
        cost="4 judge calls",
        breaks=frozenset({"shift"}),  # right answers are told from the raw return
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        right = returns.totals(batch.reward, agents) > self.right_above
        faults = tokens.sum_turns(self.wrong(batch), batch.offsets)
        faulty = sums(faults, agents.of, agents.count)[agents.of] > 0
        worth = self.outcome_weight * right - self.process_penalty * faulty
        # As if it were paid at the end.
        advantage, stats = self.outcome(np.where(agents.after == 0, worth, 0.0), batch, agents)
        # The same without the critiques' part of the worth.
        alone, _ = self.outcome(
            np.where(agents.after == 0, self.outcome_weight * right, 0.0), batch, agents
        )
        return turn_credit(
            batch,
            advantage,
            components={"outcome": alone, "critique": advantage - alone},
            stats=stats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CAPOTokensReading(Voted):
    """CAPO with the charge on the tokens of the wrong steps: our reading.

        r_t = C · [answer right] - P · [t in a wrong step]
        A_t = (r_t - mean_cell r) / (std_cell r + ε)

    The mean and the standard deviation are over all sampled tokens of a cell, so that long replies
    weigh more in them. An agent alone in its cell is still compared with itself, step by step.
    Needs the signal "wrong_share" [M].

    Source: our reading of CAPO, arXiv 2508.02298; how token rewards are normalised is not given in
    what we read.
    """

    card: ClassVar[Card] = Card(
        name="capo_tokens_reading",
        title="CAPO on tokens",
        source="our reading of arXiv 2508.02298",
        evidence="reading",
        granularity="token",
        methodology="judge",
        level="token",
        needs=frozenset({"wrong_share"}),
        cost="4 judge calls",
        breaks=frozenset({"shift"}),
    )

    unit: Unit = "token"
    ddof: int  # of the standard deviation; 1 = divide the squares by n - 1

    def __post_init__(self) -> None:
        Voted.__post_init__(self)
        checks.one_of("capo_tokens_reading.unit", self.unit, ("token",))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        right = returns.totals(batch.reward, agents) > self.right_above
        reward = self.outcome_weight * tokens.spread(right, batch.offsets)
        reward = reward - self.process_penalty * self.wrong(batch)
        turns = self.pool(batch, agents)
        everyone = np.ones(len(reward))
        pool = Pool(tokens.spread(turns.cell, batch.offsets), everyone, turns.count)
        advantage = baselines.settle(
            baselines.standardise(reward, pool, ddof=self.ddof, epsilon=self.epsilon),
            raw=reward / (1.0 + self.epsilon),
            few=baselines.alone(pool),
            rule=self.singleton,
            sampled=everyone > 0,
        )
        return token_credit(
            batch,
            advantage,
            components=ledger(reward, baselines.centre(reward, pool), advantage),
            stats=baselines.pool_statistics(reward, pool),
        )
