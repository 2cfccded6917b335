"""Episodes as records: what a policy's learner gets of an episode, and under which key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from marl_llm.store.codec import decode, encode
from marl_llm.store.records import Key, Record
from marl_llm.types import Episode, Observation, Turn


class Carrier(Protocol):
    """How episodes lie in the bodies of records."""

    def pack(self, policy: str, episode: Episode) -> bytes:
        """A body for an episode that is put into this policy's topic."""

    def unpack(self, policy: str, body: bytes) -> Episode:
        """The episode of a body that this policy's topic handed out."""


class Written:
    """Bodies hold the episodes: they may go to other processes, and outlive this one."""

    def pack(self, policy: str, episode: Episode) -> bytes:
        """As `Carrier.pack`."""
        return encode(episode)

    def unpack(self, policy: str, body: bytes) -> Episode:
        """As `Carrier.unpack`."""
        return decode(body)


class AtHand:
    """Episodes stay where they are, in this one process; bodies hold their numbers.

    An episode is let go when it is handed out, so a body is good for once.
    """

    def __init__(self) -> None:
        """With no episode."""
        self._kept: dict[tuple[str, bytes], Episode] = {}

    def pack(self, policy: str, episode: Episode) -> bytes:
        """As `Carrier.pack`."""
        body = b"%d.%d" % (episode.id, episode.attempt)
        self._kept[policy, body] = episode
        return body

    def unpack(self, policy: str, body: bytes) -> Episode:
        """As `Carrier.unpack`."""
        return self._kept.pop((policy, body))


def record_of(
    episode: Episode, policy: str, size: int, version: int, whole: bool, carrier: Carrier
) -> Record:
    """An episode as it is put into a policy's topic.

    Args:
        episode: a finished one, or one that an infrastructure failure made void.
        policy: whose learner it is for.
        size: episodes that its group should have.
        version: of the policy's weights, if it sampled nothing here.
        whole: whether the learner needs what the others saw and said.
        carrier: makes the body.
    """
    oldest = versions_of(episode)
    body = b""
    if episode.void is None:
        body = carrier.pack(policy, episode if whole else thin(episode, policy))
    return Record(
        key=Key(episode.id, episode.attempt),
        group=episode.group,
        size=size,
        version=oldest.pop(policy, version),
        body=body,
        partners=oldest,
        void=episode.void,
    )


def episodes_of(records: Iterable[Record], policy: str, carrier: Carrier) -> list[Episode]:
    """The episodes that were put as these records into a policy's topic."""
    return [carrier.unpack(policy, record.body) for record in records]


def versions_of(episode: Episode) -> dict[str, int]:
    """The version of the oldest token that each policy sampled in an episode."""
    oldest: dict[str, int] = {}
    for turn in episode.turns:
        if turn.policy is not None:
            for version, _, _ in turn.versions:
                oldest[turn.policy] = min(oldest.get(turn.policy, version), version)
    return oldest


def thin(episode: Episode, policy: str) -> Episode:
    """The episode as a policy's learner needs it: of the others' turns, only statistics.

    Its own turns stay whole. Those of the others stay in their places, with who took them, for
    whom, called by whom and what came of them, but without any text or token: what other policies
    see and say does not leave them. Of what they knew there is a digest, equal where that was
    equal; who can list all that an agent may know can look it up there.
    """
    if all(turn.policy == policy for turn in episode.turns):
        return episode
    turns = tuple(turn if turn.policy == policy else _statistics(turn) for turn in episode.turns)
    return replace(episode, turns=turns)


def _statistics(turn: Turn) -> Turn:
    seen = turn.observation
    return Turn(
        observation=Observation(
            agent=seen.agent,
            role=seen.role,
            text="",
            brief="",
            legal=None,
            key=hashlib.blake2b(seen.key.encode(), digest_size=8).hexdigest(),
            parent=seen.parent,
            events=seen.events,
        ),
        policy=turn.policy,
        player=turn.player,
        prompt_ids=(),
        ids=(),
        logprobs=(),
        versions=turn.versions,
        reply="",
        action=None,
        fault=turn.fault,
        finish=None,
        reward=turn.reward,
        shaping=turn.shaping,
        parent=turn.parent,
    )
