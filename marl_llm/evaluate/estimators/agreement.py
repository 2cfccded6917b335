"""Estimators against each other, on turns whose true credit nobody knows.

    correlation  Spearman's, of the credit that two of them give to the same turns
    sign         of the turns to which both give some, the share with the same sign
    zeros        share of turns without credit
    length       Spearman's, of the credit and the number of tokens that the turn has
    shares       which part of Σ|A| falls on each agent

A turn's credit is the mean over its tokens, times its weight. Agreement is no proof: two rules may
share a fault. What it shows is which rules would train alike here, and which would not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from marl_llm.credit import Estimator, assign
from marl_llm.credit.batch import Credit, TurnBatch, per_token
from marl_llm.credit.given import Given
from marl_llm.credit.segments import Array, sums
from marl_llm.credit.signals import KNOWN
from marl_llm.credit.survey import REPLAYS, annotators
from marl_llm.credit.tokens import mean_turns
from marl_llm.errors import MarlError
from marl_llm.seeds import generator

DIGITS = 9  # of the largest |A|: what differs behind them is rounding


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an estimator says nothing of a batch."""

    why: str  # as one clause
    signals: tuple[str, ...] = ()  # that are missing
    who: tuple[str, ...] = ()  # would have to attach them


def ask(
    estimators: Mapping[str, Estimator], batch: TurnBatch, seed: int = 0
) -> tuple[dict[str, Credit], dict[str, Refusal]]:
    """What each estimator says of a batch, or why it says nothing.

    Args:
        estimators: by name. One that remembers starts without a memory.
        batch: N turns.
        seed: of those that draw.
    """
    said: dict[str, Credit] = {}
    refused: dict[str, Refusal] = {}
    for name, estimator in estimators.items():
        card = estimator.card
        missing = tuple(need for need in KNOWN if need in card.needs - set(batch.signals))
        if missing or card.resamples:
            needs = ", ".join(missing + (REPLAYS,) * card.resamples)
            refused[name] = Refusal(f"needs {needs}", missing, tuple(annotators(card)))
            continue
        try:
            said[name] = assign(estimator, batch, Given(generator(seed, "credit", name)))
        except MarlError as error:
            refused[name] = Refusal(str(error))
    return said, refused


def silence(credit: Credit) -> str | None:
    """Why credit is 0 everywhere, as one clause; None where it is not."""
    if np.any(credit.advantage):
        return None
    groups, alone = (credit.stats.get(name, 0.0) for name in ("groups", "singletons"))
    if groups and groups == alone:
        return "groups of one: nobody to compare with"
    return "what it compares is equal"


def of_turns(credit: Credit, batch: TurnBatch) -> Array:
    """Credit of turns, [N] float64: the mean over the turn's tokens, times its weight."""
    return credit.weight * mean_turns(per_token(credit, batch), batch.offsets)


def agreement(said: Mapping[str, Array], batch: TurnBatch) -> dict[str, Any]:
    """How alike some estimators are.

    Args:
        said: credit of turns by name, [N] each.
        batch: the turns; those in which nothing was sampled are left out.

    Returns:
        JSON: "names", "turns", "correlation" and "sign" as rows of a matrix, "zeros", "length" and
        "shares" as one entry per name; None where there is nothing to measure.
    """
    names = list(said)
    sampled = batch.lengths > 0
    credit = np.stack([rounded(said[name][sampled]) for name in names])
    who, agents = _agents(batch)
    lengths = batch.lengths[sampled].astype(np.float64)
    with_length = correlations(np.concatenate((credit, lengths[None])))
    return {
        "names": names,
        "turns": int(sampled.sum()),
        "correlation": _plain(with_length[:-1, :-1]),
        "sign": _plain(same_signs(credit)),
        "zeros": _plain(np.mean(credit == 0, axis=1)),
        "length": _plain(with_length[:-1, -1]),
        "agents": agents,
        "shares": _plain(shares(credit, who[sampled], len(agents))),
    }


def rounded(x: Array) -> Array:
    """Credit without what is mere rounding, so that equal numbers tie."""
    largest = np.abs(x).max(initial=0.0)
    return np.round(x / largest, DIGITS) * largest if largest > 0 else np.zeros(len(x))


def correlations(x: Array) -> Array:
    """Spearman's rank correlation of all pairs of rows, [K, K]; ties share their mean rank.

    Args:
        x: [K, N].

    Returns:
        NaN where a row is constant.
    """
    ranks = rankdata(x, axis=1)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    size = np.sqrt((centred**2).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(centred @ centred.T / np.outer(size, size), -1.0, 1.0)


def same_signs(x: Array) -> Array:
    """Share of columns with the same sign, of those where neither row is 0, [K, K].

    Args:
        x: [K, N].

    Returns:
        NaN where there is no such column.
    """
    sign = np.sign(x)
    both = np.abs(sign) @ np.abs(sign).T
    with np.errstate(invalid="ignore"):
        return (sign @ sign.T + both) / (2 * both)


def shares(x: Array, who: Array, count: int) -> Array:
    """The part of Σ|x| that falls on each agent, [K, count].

    Args:
        x: [K, N].
        who: [N] int.
        count: agents.

    Returns:
        NaN where a row is 0.
    """
    parts = np.stack([sums(np.abs(row), who, count) for row in x])
    with np.errstate(invalid="ignore"):
        return parts / parts.sum(axis=1, keepdims=True)


def _agents(batch: TurnBatch) -> tuple[Array, list[str]]:
    """Who moved, [N] int, and their names; by role where there are several roles."""
    column = "role" if len(np.unique(batch.role)) > 1 else "agent"
    codes, who = np.unique(batch.column(column), return_inverse=True)
    return who, [batch.name(column, int(code)) for code in codes]


def _plain(x: Array) -> Any:
    """Nested lists, None for what is no number."""
    if x.ndim > 1:
        return [_plain(row) for row in x]
    return [float(value) if np.isfinite(value) else None for value in x]
