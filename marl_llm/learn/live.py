"""The turns of a batch that count: checked, weighed, cut into optimizer steps by episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from marl_llm.credit.batch import Credit, TurnBatch, per_token
from marl_llm.errors import EpisodeError, TrainingError
from marl_llm.learn.aggregation import Aggregation, token_weights
from marl_llm.learn.rows import Array, Pair
from marl_llm.types import Turn


@dataclass(frozen=True, slots=True)
class LiveTurns:
    """n turns that have tokens and credit, and their m tokens side by side."""

    pairs: tuple[Pair, ...]  # n
    places: Array  # [n] among the turns of the batch
    name: Callable[[int], str]  # of the turn at a place, for errors
    temperatures: Array  # [n]
    lengths: Array  # [n] tokens, all > 0
    episode: Array  # [n]
    group: Array  # [n] of the episode
    agent: Array  # [n]
    version: Array  # [n] of the weights that sampled
    advantages: Array  # [m]
    weights: Array  # [m] with the denominators of the whole batch
    sampler: Array  # [m] nats
    old: Array | None = None  # [m] nats
    reference: Array | None = None  # [m] nats

    def take(self, turns: Array, scale: float) -> LiveTurns:
        """Some of the turns (ascending indices), their weights times `scale`."""
        if len(turns) == len(self.pairs) and scale == 1:
            return self
        tokens = np.flatnonzero(np.repeat(np.isin(np.arange(len(self.pairs)), turns), self.lengths))
        return LiveTurns(
            pairs=tuple(self.pairs[i] for i in turns),
            places=self.places[turns],
            name=self.name,
            temperatures=self.temperatures[turns],
            lengths=self.lengths[turns],
            episode=self.episode[turns],
            group=self.group[turns],
            agent=self.agent[turns],
            version=self.version[turns],
            advantages=self.advantages[tokens],
            weights=self.weights[tokens] * scale,
            sampler=self.sampler[tokens],
            old=None if self.old is None else self.old[tokens],
            reference=None if self.reference is None else self.reference[tokens],
        )

    def who(self, token: int) -> str:
        """The name of a token's turn."""
        turn = np.searchsorted(np.cumsum(self.lengths), token, side="right")
        return self.name(int(self.places[turn]))


def live_turns(
    turns: Sequence[Turn],
    batch: TurnBatch,
    credit: Credit,
    temperatures: Array,
    aggregation: Aggregation,
) -> LiveTurns:
    """The turns that count, with the weight of each of their tokens.

    Args:
        turns: N, of the batch, in its order.
        batch: their columns.
        credit: of each turn or token; a turn of weight 0 does not count.
        temperatures: [N] of sampling.
        aggregation: which mean the objective takes.

    Raises:
        EpisodeError: turns and columns are not of the same batch.
        TrainingError: an advantage, a credit weight or a sampler's log-prob is not finite.
    """
    check_same(turns, batch, temperatures)
    lengths = batch.lengths
    advantages = per_token(credit, batch)
    turn_of = np.repeat(np.arange(len(batch)), lengths)
    check_finite("credit weight", credit.weight, np.arange(len(batch)), turns, batch)
    check_finite("advantage", advantages, turn_of, turns, batch)
    check_finite("the sampler's log-prob", batch.logprobs, turn_of, turns, batch)
    weights = token_weights(
        aggregation, lengths, credit.weight, batch.episode, batch.agent, batch.role
    )
    counts = (credit.weight != 0) & (lengths > 0)
    live = np.flatnonzero(counts)
    tokens = np.repeat(counts, lengths)
    return LiveTurns(
        pairs=tuple([(turns[i].prompt_ids, turns[i].ids) for i in live.tolist()]),
        places=live,
        name=partial(name_of, turns, batch),
        temperatures=temperatures[live],
        lengths=lengths[live],
        episode=batch.episode[live],
        group=batch.group[live],
        agent=batch.agent[live],
        version=batch.version[live],
        advantages=advantages[tokens],
        weights=weights[tokens],
        sampler=batch.logprobs[tokens],
    )


def name_of(turns: Sequence[Turn], batch: TurnBatch, turn: int) -> str:
    """How an error names a turn."""
    return (
        f"turn {batch.turn[turn]} of episode {batch.episode[turn]} "
        f"({turns[turn].observation.agent})"
    )


def check_same(turns: Sequence[Turn], batch: TurnBatch, temperatures: Array) -> None:
    """Refuse turns, columns and temperatures that do not belong together."""
    if len(turns) != len(batch) or temperatures.shape != (len(batch),):
        raise EpisodeError(
            f"{len(turns)} turns and temperatures of shape {temperatures.shape} for a batch of "
            f"{len(batch)} turns; all three must be of the same turns"
        )
    sampled = np.array([len(turn.ids) for turn in turns], np.int64)
    off = np.flatnonzero(sampled != batch.lengths)
    if len(off):
        i = off[0]
        raise EpisodeError(
            f"{name_of(turns, batch, i)} has {sampled[i]} sampled ids, its columns have "
            f"{batch.lengths[i]}; the turns must stand in the order of the batch"
        )


def check_finite(
    what: str, values: Array, turn_of: Array, turns: Sequence[Turn], batch: TurnBatch
) -> None:
    """Raise for the turn of the first value that is not finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        turn = int(turn_of[bad[0]])
        raise TrainingError(
            f"{name_of(turns, batch, turn)}: {what} is {values[bad[0]]}, which must be finite; the "
            "weights were not touched"
        )


def by_episode(episode: Array, count: int, rng: np.random.Generator) -> list[Array]:
    """Turns in at most `count` parts of about as many whole episodes each, drawn at random.

    Args:
        episode: [n] int.
        count: parts wanted; fewer come out when there are fewer episodes.
        rng: of the draw.

    Returns:
        Ascending indices of turns, one array per part.
    """
    episodes, which = np.unique(episode, return_inverse=True)
    count = min(count, len(episodes))
    part = np.empty(len(episodes), np.int64)
    part[rng.permutation(len(episodes))] = np.arange(len(episodes)) % count
    return [np.flatnonzero(part[which] == number) for number in range(count)]
