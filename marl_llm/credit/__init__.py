"""Credit: turns in, advantages out. Pure functions on arrays.

- `batch.TurnBatch` holds N turns as columns and their sampled tokens as flat columns.
- An **estimator** is a frozen dataclass of settings, one file each, with

      estimate(batch, *, rng=None, resample=None) -> Credit

  It declares `needs` (optional columns it reads), `level` ("turn" or "token"), `source` (the paper
  or "our reading") and `evidence` ("paper", "code", "notes", "reading"). Its settings are validated
  by `checks.py`. It gathers, calls formulas (`returns.py`, `baselines.py`), scatters, and mutates
  nothing. One that must remember (an exponential average) is a `Remembering` estimator: it takes
  its state and returns the new one.
- Statistics always say what is counted once (`unit`) and over which keys (`by`).

To add one: a file here, a YAML in `configs/credit/` that names it under ``_target_``; the contract
tests find it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from marl_llm.credit.batch import Credit, TurnBatch

State = Mapping[str, Any]  # JSON-like, so that a checkpoint can hold it
Resampler = Callable[..., Any]  # plays on from a turn's snapshot; not used by the first members


class Estimator(Protocol):
    """One rule that says how much each turn (or token) contributed."""

    needs: ClassVar[frozenset[str]]
    level: ClassVar[Literal["turn", "token"]]
    source: ClassVar[str]
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]]

    def estimate(
        self,
        batch: TurnBatch,
        *,
        rng: np.random.Generator | None = None,
        resample: Resampler | None = None,
    ) -> Credit:
        """Credit for every turn of the batch."""


@runtime_checkable
class Remembering(Protocol):
    """An estimator with a memory: `estimate` uses a state, `Credit.state` is the next one."""

    remembers: ClassVar[Literal[True]]

    def estimate(
        self,
        batch: TurnBatch,
        *,
        rng: np.random.Generator | None = None,
        resample: Resampler | None = None,
        state: State | None = None,
    ) -> Credit:
        """Credit for every turn; the new state is in `Credit.state`."""
