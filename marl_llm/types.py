"""The nouns: one type per arrow of the data's way.

    game ─Observation─▶ role ─Request─▶ engine ─Completion─▶ role ─Move─▶ game
                          └─ Turn ─▶ Episode ─▶ store ─▶ credit ─▶ learner ─Weights─▶ engine

All are frozen dataclasses with slots: picklable, no behaviour beyond validation. Role, agent,
group, policy and version are fields, never parts of a string.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from marl_llm.errors import ConfigError, EpisodeError


class Outcome(StrEnum):
    """How an episode ended for one agent. The first three are the game's, the rest a fault's."""

    WIN = "win"
    LOSS = "loss"
    DRAW = "draw"
    FORMAT = "format"  # the reply held no readable action
    ILLEGAL = "illegal"  # the action is not allowed by the rules here
    LENGTH = "length"  # the reply hit its token limit
    TIME = "time"  # the reply came after its deadline
    CONTEXT = "context"  # the prompt left no room for a reply
    OTHER_FORFEIT = "other_forfeit"  # another agent forfeited and that ended the game
    TRUNCATED = "truncated"  # the turn limit was reached
    ABSENT = "absent"  # the agent was never called


FORFEITS = frozenset(
    {Outcome.FORMAT, Outcome.ILLEGAL, Outcome.LENGTH, Outcome.TIME, Outcome.CONTEXT}
)


class Finish(StrEnum):
    """Why an engine stopped sampling."""

    STOP = "stop"  # a stop token or stop sequence, or end of text
    LENGTH = "length"  # max_tokens
    CONTEXT = "context"  # the model's context is full (also when the prompt alone does not fit)
    TIME = "time"  # the request's deadline passed


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the roster: an agent joined, left or was replaced."""

    kind: str  # "joined" | "left" | "replaced"
    agent: str
    turn: int  # index of the turn before which it happened


@dataclass(frozen=True, slots=True)
class Observation:
    """What one agent may know at its turn, as text."""

    agent: str  # unique in the episode, e.g. "player_0"
    role: str  # who it plays as, e.g. "player"
    text: str  # the whole of what the agent knows: enough without any memory
    brief: str  # the same facts in a few words, for a short restatement before an answer
    legal: tuple[str, ...] | None  # actions that will be accepted; None = not listed
    key: str  # equal keys = equal information states of this agent
    parent: int | None = None  # index of the turn that called this agent
    events: tuple[Event, ...] = ()  # since this agent's last turn


@dataclass(frozen=True, slots=True)
class Move:
    """What a role made of a reply: an action, or the fault that stands in its place."""

    action: str | None
    fault: Outcome | None = None

    def __post_init__(self) -> None:
        if (self.action is None) == (self.fault is None):
            raise EpisodeError(
                f"a move is an action or a fault, got {self.action!r}, {self.fault!r}"
            )
        if self.fault is not None and self.fault not in FORFEITS:
            raise EpisodeError(f"a move's fault is one of {sorted(FORFEITS)}, got {self.fault!r}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an engine samples one reply."""

    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    max_tokens: int = 64
    stop: tuple[str, ...] = ()  # text that ends a reply and stays part of it

    def __post_init__(self) -> None:
        if self.temperature < 0 or not math.isfinite(self.temperature):
            raise ConfigError(f"temperature must be finite and >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ConfigError(f"top_k must be >= 0 (0 = off), got {self.top_k}")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if "" in self.stop:
            raise ConfigError("a stop text is empty, which every reply contains; leave it out")


@dataclass(frozen=True, slots=True)
class Request:
    """One reply wanted from an engine: token ids in."""

    id: int  # unique among the requests in flight of one caller
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int  # fixes the draws of this reply, whatever else is in the batch
    deadline: float | None = None  # seconds on time.monotonic() of the caller's machine


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply: token ids out, the stop token included when it was sampled."""

    id: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # nats, at the sampling temperature, one per id
    versions: tuple[tuple[int, int, int], ...]  # (version, start, end) spans over ids
    finish: Finish

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise EpisodeError(f"{len(self.ids)} ids but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of one agent, and everything that reached it before its next one."""

    observation: Observation
    policy: str | None  # whose weights; None = a scripted player, who has no tokens
    player: str  # the name of who sat here, e.g. "self", "random", "snapshot_20"
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # sampler's, nats, after temperature
    versions: tuple[tuple[int, int, int], ...]
    reply: str  # the sampled ids as text
    action: str | None
    fault: Outcome | None
    finish: Finish | None
    reward: float  # strategic: all that reached this agent after this turn and before its next
    shaping: float  # format and length, kept apart, capped so that it never flips an outcome
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One game from start to end, turns in playing order, all agents interleaved."""

    id: int
    attempt: int
    game: str
    group: int  # same group = same start, comparable
    seed: int
    turns: tuple[Turn, ...]
    seats: Mapping[str, str]  # agent -> player name
    returns: Mapping[str, float]  # agent -> strategic return, turns or not
    outcomes: Mapping[str, Outcome]
    terminated: bool  # False = cut short by the turn limit
    events: tuple[Event, ...] = ()
    seconds: float = 0.0
    void: str | None = None  # why a failure of the machinery made it worthless; then it is no play


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a policy's weights and where they lie."""

    policy: str
    version: int  # updates so far; 0 = the start
    checksum: str
    path: str | None = None  # a safetensors file, or
    tensors: Mapping[str, Any] | None = field(default=None, repr=False)  # the tensors themselves

    def __post_init__(self) -> None:
        if (self.path is None) == (self.tensors is None):
            raise EpisodeError("weights lie in a file or in memory: give path or tensors")
