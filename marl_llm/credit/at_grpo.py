"""AT-GRPO: each turn against the same turn of the same agent in the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import paid_on_tokens
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.outcome import FromOutcome

Of = Literal["reward", "to_go"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ATGRPO(FromOutcome):
    """Agent- and turn-wise group-relative policy optimisation.

        A_k = (x_k - mean_{q,a,k} x) / (std_{q,a,k} x + ε)

    x [N] is the reward of the turn, as shipped, with those of turns without tokens right behind it;
    with `of: to_go` it is the return from the turn on. A cell holds the k-th turns of one agent a
    at one start q. The method samples several replies at each
    turn and goes on from one of them, so that a cell's turns follow the same words; between
    episodes that have parted it compares unlike states. A turn that no other episode of the group
    reached gets exactly 0.

    Source: Stronger-MAS, arXiv 2510.11062, and pettingllms-ai/PettingLLMs.
    """

    card: ClassVar[Card] = Card(
        name="at_grpo",
        title="AT-GRPO",
        source="arXiv 2510.11062",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"shift"}),
    )

    by: tuple[str, ...] = ("group", "agent", "agent_turn")
    of: Of = "reward"  # of the turn; "to_go" = all from the turn on

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.one_of("at_grpo.of", self.of, ("reward", "to_go"))

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        if self.of == "to_go":
            x = returns.to_go(batch.reward, agents)
        else:
            x = paid_on_tokens(batch.reward, batch.lengths > 0, agents)
        pool = self.pool(batch, agents)
        advantage = self.settle(
            baselines.standardise(x, pool, ddof=self.ddof, epsilon=self.epsilon),
            x / (1.0 + self.epsilon),
            pool,
            batch,
        )
        return turn_credit(
            batch,
            advantage,
            components=ledger(x, baselines.centre(x, pool), advantage),
            stats=baselines.pool_statistics(x, pool),
        )
