"""What the store holds and hands out: records under keys, claims on them, counts of their fate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from marl_llm.errors import EpisodeError

Rule = Literal["wait", "refill", "partial"]  # when a group counts as complete, see `Store.claim`

_PATH = re.compile(r"\d+(/\d+)*")


@dataclass(frozen=True, slots=True)
class Key:
    """Which play a record is of. An (episode, path) counts once, whatever its attempts."""

    episode: int
    attempt: int = 0  # of playing the episode
    path: str = ""  # of calls: "" = the whole episode, "0/2" = third call of the first call

    def __post_init__(self) -> None:
        if self.attempt < 0 or (self.path and _PATH.fullmatch(self.path) is None):
            raise EpisodeError(
                f"a key has an attempt from 0 on and a path of call numbers such as '0/2', got "
                f"{self.attempt} and {self.path!r}"
            )


@dataclass(frozen=True, slots=True)
class Record:
    """What waits in a topic: an episode's play as one policy's learner gets it, or other work."""

    key: Key
    group: int  # records of one group are claimed together
    size: int  # episodes that the group should have
    version: int  # of the topic's own policy that sampled it: its oldest token's
    body: bytes  # the store never looks inside
    partners: Mapping[str, int] = field(default_factory=dict)  # versions of the other policies
    void: str | None = None  # why the attempt is worthless; such a record holds no play

    def __post_init__(self) -> None:
        if self.size < 1 or self.version < 0:
            raise EpisodeError(
                f"a record's group has at least one episode and its version is at least 0, got "
                f"{self.size} and {self.version} for episode {self.key.episode}"
            )
        if self.void is not None and self.body:
            raise EpisodeError(
                f"the record of episode {self.key.episode} is void ({self.void}) but holds "
                f"{len(self.body)} bytes; leave its body empty"
            )


@dataclass(frozen=True, slots=True)
class Missing:
    """An episode of a group whose attempts failed so far."""

    group: int
    episode: int
    attempt: int  # number of the next one, which is how many failed
    reason: str  # of the last failure


@dataclass(frozen=True, slots=True)
class Claim:
    """Whole groups, leased until `expires` (seconds on the store's clock)."""

    id: int  # never used twice
    records: tuple[Record, ...]  # in the order in which they came
    expires: float
    lost: tuple[Missing, ...] = ()  # members of these groups that were given up


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of everything that was put into a topic.

    put = waiting + leased + acknowledged + dropped + void + given_up + doubled, at any moment.
    """

    put: int = 0  # records that came, whatever became of them
    waiting: int = 0  # good, nobody has them
    leased: int = 0  # good, somebody has them
    acknowledged: int = 0  # done with
    dropped: int = 0  # too old when their turn came or when they came, or their group had gone
    void: int = 0  # said that an attempt failed
    given_up: int = 0  # void ones of which no further attempt came, good ones left alone by them
    doubled: int = 0  # came when the same play, or another attempt at it, was there already


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who serves which version of a policy's weights."""

    name: str
    policy: str
    version: int
    staleness: int  # updates behind the latest


def staleness(
    records: Iterable[Record], policy: str, versions: Mapping[str, int]
) -> dict[str, int]:
    """How many updates behind the oldest of these records is, for each policy that played in them.

    Args:
        records: of one topic.
        policy: whose topic it is.
        versions: of the policies' latest weights.
    """
    behind: dict[str, int] = {}
    for record in records:
        for name, version in {policy: record.version, **record.partners}.items():
            behind[name] = max(behind.get(name, 0), versions[name] - version)
    return behind
