"""What an estimator may use beside the batch: chance, replays, and its own memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError

State = Mapping[str, Any]  # JSON-like, so that a checkpoint can hold it


class Resampler(Protocol):
    """Plays on from a stored turn, with the policies as they are."""

    def __call__(self, rows: Array, count: int, *, after: bool = False) -> Array:
        """Returns of continuations.

        Args:
            rows: turns of the batch, [R] int.
            count: continuations of each, K.
            after: start behind the turn, its action being as it was; otherwise in front of it, the
                action being drawn anew.

        Returns:
            What the row's agent got in its whole episode, rewards before the restart included,
            [R, K] float64. Behind an agent's last turn it is what it got.
        """


@dataclass(frozen=True, slots=True)
class Given:
    """What an estimator may use. One that does not say so in its card gets by without."""

    rng: np.random.Generator | None = None
    resample: Resampler | None = None
    state: State | None = None  # what a remembering estimator returned last time

    def draws(self, name: str) -> np.random.Generator:
        """The generator.

        Args:
            name: who asks.

        Raises:
            ConfigError: there is none.
        """
        if self.rng is None:
            raise ConfigError(f"{name} draws at random; give it a generator")
        return self.rng

    def resampler(self, name: str) -> Resampler:
        """The resampler.

        Args:
            name: who asks.

        Raises:
            ConfigError: there is none.
        """
        if self.resample is None:
            raise ConfigError(
                f"{name} plays on from stored turns and needs a resampler; it works where games "
                "can be restored, see docs/credit.md"
            )
        return self.resample


NOTHING = Given()
