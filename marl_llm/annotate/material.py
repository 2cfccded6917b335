"""What an annotator works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marl_llm.agents import Player
from marl_llm.agents.chat import Chat
from marl_llm.annotate.replays import Play, Replays
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array
from marl_llm.games.text_game import TextGame
from marl_llm.rollout.play import ModelSeat
from marl_llm.serve import Engine
from marl_llm.types import Episode, Turn

Ids = tuple[int, ...]
Pair = tuple[Ids, Ids]  # prompt ids, reply ids


class OfStatistics:
    """Marks an annotator that reads of the other policies' turns only what thin records hold.

    It neither tells games again nor plays on: what others said is not there.
    """

    __slots__ = ()


class Scorer(Protocol):
    """The part of an engine that reads; see `serve.Engine`."""

    context: int

    def score(self, sequences: Sequence[Pair], temperature: float = 1.0) -> list[list[float]]:
        """Log-probs (nats) of each reply's ids after its prompt, one list per sequence."""


class Probe(Protocol):
    """The learner's own model, as it is before the update."""

    def token_statistics(self, pairs: Sequence[Pair], temperatures: Array) -> Mapping[str, Array]:
        """What the policy says of each sampled token, [M] each, by the names of signals."""

    def reference_logprobs(self, pairs: Sequence[Pair], temperatures: Array) -> Array:
        """Log-probs of all sampled tokens under the policy that training started from, [M] nats."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A model that can be asked, otherwise idle."""

    engine: Engine
    chat: Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What is at hand in every update of a policy, beside its learner."""

    games: Mapping[str, Callable[[], TextGame]]
    seats: Mapping[str, ModelSeat | Player]  # who can sit down, by name
    scorer: Scorer  # the policy, with the weights that played the episodes
    judge: Voice
    play: Play


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The episodes of one update and what may be asked about them."""

    policy: str
    episodes: tuple[Episode, ...]
    turns: tuple[Turn, ...]  # N, the policy's own
    batch: TurnBatch  # their columns, in the same order
    temperatures: Array  # [N] of sampling
    probe: Probe
    reach: Reach
    replays: Replays  # play on from the turns
    rng: np.random.Generator
