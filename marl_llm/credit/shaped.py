"""Token shaping: an advantage of the whole response, made unlike from token to token.

The methods of this family begin alike, with GRPO's advantage of the agent at every token. They
differ in what they multiply it by, or add to it. A shape runs over a **response**, and does not see
past its ends: one turn, or all turns of an agent in an episode laid end to end, other agents' words
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl_llm.credit import checks, tokens
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, Chains

Response = Literal["turn", "agent"]


@dataclass(frozen=True, slots=True)
class Responses:
    """Where the tokens of responses lie if these are laid end to end."""

    offsets: Array  # [R+1] int: tokens of response j lie at offsets[j]:offsets[j+1]
    order: Array | None  # [M] int: the token that lies at each place; None = as in the batch

    def lay(self, x: Array) -> Array:
        """A token column, response after response, [M]."""
        return x if self.order is None else x[self.order]

    def put_back(self, y: Array) -> Array:
        """A column that lies so, as a token column of the batch, [M]."""
        if self.order is None:
            return y
        out = np.empty_like(y)
        out[self.order] = y
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped(FromOutcome):
    """Settings of the advantage that is shaped, which is GRPO's, and of what a response is."""

    response: Response = "turn"  # or "agent": all its turns of the episode, end to end

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.one_of(f"{self.card.name}.response", self.response, ("turn", "agent"))

    def base(self, batch: TurnBatch, agents: Chains) -> tuple[Array, dict[str, float]]:
        """The advantage to shape at every token, [M]; and counts of its cells."""
        advantage, stats = self.outcome(batch.reward, batch, agents)
        return tokens.spread(advantage, batch.offsets), stats

    def responses(self, batch: TurnBatch, agents: Chains) -> Responses:
        """The sampled tokens, response after response, each in the order of sampling."""
        if self.response == "turn":
            return Responses(batch.offsets, None)
        lengths = batch.lengths[agents.order]
        order = tokens.spans(batch.offsets[:-1][agents.order], lengths)
        turns = np.cumsum(np.bincount(agents.of, minlength=agents.count))
        ends = np.append(0, np.cumsum(lengths))
        return Responses(ends[np.append(0, turns)], order)


def shaped_credit(
    batch: TurnBatch, base: Array, advantage: Array, stats: Mapping[str, float]
) -> Credit:
    """Credit whose parts are the response's advantage and what the shape added.

    Args:
        batch: N turns, M sampled tokens.
        base: the advantage before, [M].
        advantage: after, [M].
        stats: counts to report.
    """
    parts = {"response": base, "shape": advantage - base}
    return token_credit(batch, advantage, components=parts, stats=stats)
