"""Credit: turns in, advantages out. Pure functions on arrays.

- `batch.TurnBatch` holds N turns as columns and their sampled tokens as flat columns;
  `columns.from_episodes` makes it of what was played.
- An **estimator** is a frozen dataclass of settings, one file each, with one method,

      estimate(batch, given=NOTHING) -> Credit

  and a `card` that says what it is, what it reads and what it promises (`card.py`). It gathers,
  calls formulas (`returns.py`, `baselines.py`, `tokens.py`, `trees.py`), scatters, and mutates
  nothing. `given` holds a generator, a resampler and the estimator's own memory (`given.py`).
- What it reads beside rewards are **signals** (`signals.py`); none of them is made here.
- Statistics always say what is counted once (`unit`) and over which keys (`by`).

`assign` is how everybody calls an estimator. To add one: a file here, a YAML in `configs/credit/`
that names it under ``_target_``; the contract tests find it there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol

import numpy as np

from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given, Resampler
from marl_llm.credit.segments import Array, sums
from marl_llm.credit.signals import lacking
from marl_llm.errors import EpisodeError


class Estimator(Protocol):
    """One rule that says how much each turn (or token) contributed."""

    card: ClassVar[Card]

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch, or for every sampled token."""


def assign(estimator: Estimator, batch: TurnBatch, given: Given = NOTHING) -> Credit:
    """Ask an estimator for the credit of a batch.

    An agent with a turn whose reward is not known (signal "unscored") has no return: its turns of
    that episode are left out of all statistics, get weight 0, and are counted.

    Args:
        estimator: the rule.
        batch: N turns.
        given: what the rule may use beside them.

    Raises:
        EpisodeError: a signal is missing that the rule needs.
    """
    for need in sorted(estimator.card.needs):
        if need not in batch.signals:
            raise EpisodeError(
                f"{estimator.card.name} needs the signal {need!r}, which the batch does not have: "
                f"{lacking(need)}"
            )
    if "unscored" not in batch.signals:
        return estimator.estimate(batch, given)
    agents = batch.agents()
    unknown = sums(batch.signal("unscored"), agents.of, agents.count)[agents.of] > 0
    rows = np.flatnonzero(~unknown)
    if given.resample is not None:
        given = replace(given, resample=_among(rows, given.resample))
    credit = estimator.estimate(batch.take(rows), given)
    return _spread(credit, rows, batch)


def _among(rows: Array, resample: Resampler) -> Resampler:
    """The resampler of a batch's chosen rows, which are numbered anew."""
    kept = rows

    def chosen(rows: Array, count: int, *, after: bool = False) -> Array:
        return resample(kept[rows], count, after=after)

    return chosen


def _spread(credit: Credit, rows: Array, batch: TurnBatch) -> Credit:
    """Credit of chosen rows as credit of the whole batch: nothing elsewhere."""
    lengths = batch.lengths
    chosen = np.zeros(len(batch), dtype=bool)
    chosen[rows] = True
    kept = chosen if credit.level == "turn" else np.repeat(chosen, lengths)

    def over(values: Array, where: Array) -> Array:
        out = np.zeros(len(where))
        out[where] = values
        return out

    return replace(
        credit,
        advantage=over(credit.advantage, kept),
        weight=over(credit.weight, chosen),
        targets=None if credit.targets is None else over(credit.targets, kept),
        components={name: over(part, kept) for name, part in credit.components.items()},
        stats={**credit.stats, "unscored_turns": float(np.sum(~chosen & (lengths > 0)))},
    )
