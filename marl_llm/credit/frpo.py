"""FRPO: a token answers for how far the tokens after it drift from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.shaped import Response, Shaped, shaped_credit
from marl_llm.credit.tokens import sum_ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class FRPO(Shaped):
    """GRPO minus the KL to the reference that is still to come.

        A_t = A - β · Σ_{j≥t} (log π(y_j) - log π_ref(y_j))

    A = (R - mean_cell R) / (std_cell R + ε) comes first: the KL is charged after the reward was
    normalised, and a KL inside the reward before that is another objective. π is the sampler's.
    The sum runs to the end of the agent's episode, since its later turns are drift as well. No
    other KL term is needed in the loss. Needs the signal "reference_logprob" [M].

    Equal rewards do not give 0 here: the KL is charged all the same.

    Source: arXiv 2601.10201; β is not given there.
    """

    card: ClassVar[Card] = Card(
        name="frpo",
        title="FRPO",
        source="arXiv 2601.10201",
        evidence="paper",
        granularity="token",
        methodology="monte carlo",
        level="token",
        needs=frozenset({"reference_logprob"}),
        cost="one pass of the reference",
        breaks=frozenset({"zero"}),
    )

    beta: float  # per nat, in units of A
    response: Response = "agent"  # "turn": only the rest of the turn is charged
    ddof: int = 0  # 1 = divide the squares by n - 1
    # Added to the standard deviation, in units of reward. None in the paper, where returns that
    # differ by rounding alone would be whole standard deviations apart.
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        Shaped.__post_init__(self)
        checks.within("frpo.beta", self.beta, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        base, stats = self.base(batch, agents)
        responses = self.responses(batch, agents)
        drift = responses.lay(batch.logprobs - batch.token_signal("reference_logprob"))
        advantage = responses.put_back(sum_ahead(drift, responses.offsets))
        advantage *= -self.beta
        advantage += base
        return shaped_credit(batch, base, advantage, stats)
