"""Losses that must see all tokens of a batch before any of its gradient.

A loss that compares whole trajectories with each other, or a token with all others, cannot be taken
micro-batch by micro-batch: the others are not there. It takes two passes. The first is without
gradient, over the whole batch and with the policy as it stands; from what it saw, the loss computes
one coefficient per token, which stands in place of the advantage. The second is the usual one, and
any split into micro-batches or minibatches gives the same gradient.

    first pass ─▶ Seen ─▶ coefficients ─▶ live.advantages ─▶ terms, micro-batch by micro-batch

Such a loss costs one more forward pass per optimizer step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from marl_llm.errors import ConfigError
from marl_llm.learn.aggregation import MODES, Aggregation
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.logprobs import hidden_all, score_all
from marl_llm.learn.losses import PolicyLoss
from marl_llm.learn.rows import Array, pack


@dataclass(frozen=True, slots=True)
class Seen:
    """What the first pass saw of the m tokens."""

    logprobs: Array  # [m] nats, the policy as it stands
    old: Array  # [m] nats, what the ratio is measured from
    features: Tensor | None = None  # [m, H] the hidden states that predict the tokens


class TwoPassLoss(ABC):
    """A `PolicyLoss` whose terms hang on the whole batch."""

    __slots__ = ()

    reads_reference: ClassVar[bool] = False  # `live.reference` is there, whatever kl says
    reads_features: ClassVar[bool] = False  # `seen.features` is there
    off_policy: ClassVar[bool] = False  # whoever sampled: older tokens need no correction
    modes: ClassVar[tuple[str, ...]] = MODES  # of the aggregations that it is meant for

    @abstractmethod
    def coefficients(self, live: LiveTurns, seen: Seen) -> Array:
        """What stands in place of the advantages in the terms of this step, [m].

        Args:
            live: n turns with their m tokens.
            seen: what the first pass saw of them.
        """

    def check(self, aggregation: Aggregation) -> None:
        """Refuse a mean that would count length, which the loss counts itself.

        Raises:
            ConfigError: this one would.
        """
        if aggregation.mode not in self.modes:
            raise ConfigError(
                f"{type(self).__name__} counts length itself, and aggregation.mode "
                f"{aggregation.mode!r} would count it again; set it to {' or '.join(self.modes)} "
                "(constant takes aggregation.length: 1)"
            )


def prepare(
    model: nn.Module, loss: PolicyLoss, live: LiveTurns, version: int, budget: int
) -> LiveTurns:
    """The turns as the terms of a loss want them: most losses take them as they are.

    Args:
        model: a causal LM.
        loss: any.
        live: n turns.
        version: of the model.
        budget: padded tokens that pass through the model at once.
    """
    if not isinstance(loss, TwoPassLoss):
        return live
    rows = pack(live.pairs, live.temperatures)
    features = None
    if loss.reads_features:
        logprobs, features = hidden_all(model, rows, budget)
    else:
        logprobs = score_all(model, rows, budget)
    before = logprobs if live.old is None else live.old
    fresh = np.repeat(live.version == version, live.lengths)
    seen = Seen(logprobs, np.where(fresh, before, live.sampler), features)
    return replace(live, advantages=loss.coefficients(live, seen))
