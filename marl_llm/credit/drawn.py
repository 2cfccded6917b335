"""Signals at random, and replays without games: for tests, and to time estimators on.

They mean nothing, but each is in the range that its meaning allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.given import Resampler
from marl_llm.credit.segments import Array, sums
from marl_llm.credit.signals import KNOWN
from marl_llm.credit.tokens import places

Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Rows:
    """The turns that signals are drawn for."""

    episode: Array  # [N] int, from 0 on
    agent: Array  # [N] int
    lengths: Array  # [N] int: sampled tokens


Draw = Callable[[Generator, int, Rows], Array]  # how many: one per turn, or one per sampled token


def _chance(rng: Generator, size: int, rows: Rows) -> Array:
    return rng.uniform(0.05, 0.95, size)


def _share(rng: Generator, size: int, rows: Rows) -> Array:
    return rng.uniform(size=size)


def _flag(rng: Generator, size: int, rows: Rows) -> Array:
    return rng.integers(0, 2, size).astype(np.float64)


def _count(rng: Generator, size: int, rows: Rows) -> Array:
    return rng.integers(0, 4, size).astype(np.float64)


def _nats(rng: Generator, size: int, rows: Rows) -> Array:
    return rng.exponential(size=size)


def _logprob(rng: Generator, size: int, rows: Rows) -> Array:
    return -rng.exponential(size=size)


def _number(rng: Generator, size: int, rows: Rows) -> Array:
    return rng.normal(size=size)


def _pairs(rng: Generator, size: int, rows: Rows) -> Array:
    """Two tokens make a segment."""
    return places(np.append(0, np.cumsum(rows.lengths))) // 2


DRAWS: dict[str, Draw] = {  # those that are not any number
    "span": lambda rng, size, rows: 1.0 + _count(rng, size, rows),
    "switch": _flag,
    "switch_probability": _chance,
    # -- tokens -----------------------------------------------------------------------------------
    "token_id": lambda rng, size, rows: rng.integers(0, 50, size),
    "segment": _pairs,
    "block": lambda rng, size, rows: rng.integers(-1, 3, size),
    "wrong_share": lambda rng, size, rows: rng.integers(0, 5, size) / 4,
    "commitment": lambda rng, size, rows: rng.integers(-1, 2, size).astype(np.float64),
    "reference_logprob": _logprob,
    "old_logprob": _logprob,
    "new_logprob": _logprob,
    "negative_logprob": _logprob,
    "teacher_logprob": _logprob,
    "entropy": _nats,
    "certainty": _nats,
    "collision": _share,
    # -- probes of the answer ---------------------------------------------------------------------
    "gold_before": _logprob,
    "gold_after": _logprob,
    "answer_before": _chance,
    "answer_after": _chance,
    "answer_share": _chance,
    "hindsight_logprob": _logprob,
    "evidence_unit": lambda rng, size, rows: (rows.episode + np.arange(size)) % 5 - 1,
    # -- judges -----------------------------------------------------------------------------------
    "judge_good": _flag,
    "judge_role": _count,
    "judge_credit": lambda rng, size, rows: rng.uniform(0, 0.9, size),
    "prm_error": _chance,
    "success_before": _chance,
    "success_after": _chance,
    "cited": _flag,
    "rubric_pass": _count,
    "rubric_fail": _count,
    "rubric_item": lambda rng, size, rows: rng.integers(-1, 3, size).astype(np.float64),
    "rubric_verdict": _flag,
    "informative_outcome": _share,
    "informative_shaping": _share,
    "support_out": _count,
    "support_in": _count,
    "contradicted": _count,
    "faulty": _flag,
    # -- progress models --------------------------------------------------------------------------
    "grounded": _flag,
    # -- trees ------------------------------------------------------------------------------------
    "node": lambda rng, size, rows: np.arange(size),
    "tree": lambda rng, size, rows: rows.episode % 2,
    "suffix_of": lambda rng, size, rows: np.full(size, -1),
    "replayed": _flag,
    # -- states -----------------------------------------------------------------------------------
    "belief_key": lambda rng, size, rows: rng.integers(0, 4, size) + 10 * rows.agent,
    # -- teams ------------------------------------------------------------------------------------
    "caller": lambda rng, size, rows: np.full(size, -1),
    "call_share": lambda rng, size, rows: 1.0 / (1 + rows.agent),
    "return_without": lambda rng, size, rows: rng.normal(size=size)[rows.episode % size],
    "design": lambda rng, size, rows: rows.episode // 2,
    "event": lambda rng, size, rows: rows.episode % 2,
    "event_exogenous": lambda rng, size, rows: np.ones(size),
    "ratio_before": lambda rng, size, rows: np.exp(0.1 * rng.normal(size=size)),
}
LEFT_OUT = "unscored"  # it says that the batch is not whole


def draw_signals(
    rng: Generator,
    episode: Array,
    agent: Array,
    lengths: Array,
    names: Iterable[str] | None = None,
) -> dict[str, Array]:
    """Signals of some turns, each in the range that its meaning allows.

    Args:
        rng: of the draws.
        episode: numbered from 0 on, [N] int.
        agent: [N] int.
        lengths: sampled tokens of each turn, [N] int.
        names: which; all but "unscored" if not said.
    """
    rows = Rows(episode, agent, lengths)
    chosen = [name for name in KNOWN if name != LEFT_OUT] if names is None else names
    size = {"turn": len(episode), "key": len(episode), "token": int(np.sum(lengths))}
    return {name: DRAWS.get(name, _number)(rng, size[KNOWN[name].over], rows) for name in chosen}


def replays(batch: TurnBatch) -> Resampler:
    """A resampler without games: the agent's return, and by place some of what it got early.

    A constant paid with the last turn moves every continuation by the same, as it should.
    """
    agents = batch.agents()
    total, early = (
        sums(reward, agents.of, agents.count)[agents.of]
        for reward in (batch.reward, np.where(agents.after > 0, batch.reward, 0.0))
    )

    def resample(rows: Array, count: int, *, after: bool = False) -> Array:
        place = batch.agent_turn[rows] + after
        ended = after & (agents.after[rows] == 0)
        factor = 0.1 * place[:, None] + 0.05 * np.arange(count) - 0.5
        return total[rows, None] + early[rows, None] * np.where(ended[:, None], 0.0, factor)

    return resample
