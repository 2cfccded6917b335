"""The store: where records wait for their learner and weights for their engines.

Rollout puts a policy's episodes under that policy's topic; its learner claims whole groups of those
that are fresh enough, and acknowledges them once they are learned from. Other work waits in the
same way, such as plans for a rollout worker, in topics of its own. The store never looks inside a
record and knows no game and no torch.

- **Twice is once.** A record is of a play, (episode, call path), at some attempt. The first good
  attempt counts; what comes of that play later changes nothing. A void record says that an attempt
  failed and for what reason; it holds no play, and the next attempt takes its place.
- **A claim is a lease.** What is not acknowledged in time can be claimed again, under another id.
- **Bounded.** A topic without room refuses; whoever puts may ask for its `room` and wait.
- **Nothing is lost, nothing unaccounted.** A call that returned has happened, whatever happens to
  the process. `counts` says of every record that ever came what became of it.
- **Old is gone.** What is older than a learner wants is dropped, refused if it comes again, and
  counted; so keys need not be remembered for ever.

`SqliteStore` (`sqlite.py`) is a plain class, of a file or in memory; `cluster/` wraps the same
class in an actor. Read `records.py` for the nouns, then `arrivals.py` and `grouping.py` for the
rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from marl_llm.store.records import (
    Claim,
    Consumer,
    Counts,
    Key,
    Missing,
    Record,
    Rule,
    staleness,
)
from marl_llm.store.schema import discard
from marl_llm.store.sqlite import CAPACITY, RETRIES, SqliteStore
from marl_llm.types import Weights

__all__ = [
    "CAPACITY",
    "FILE",
    "RETRIES",
    "Claim",
    "Consumer",
    "Counts",
    "Key",
    "Missing",
    "Record",
    "Rule",
    "SqliteStore",
    "Store",
    "discard",
    "staleness",
]

FILE = "store.sqlite"  # in a run folder, and in each of its checkpoints


class Store(Protocol):
    """What rollout, learners and engines need of a store."""

    def put(self, topic: str, records: Sequence[Record]) -> int:
        """Keep records; how many were new.

        What came before, at this or another attempt, changes nothing and is counted (`doubled`); so
        is what is older than the topic's learner last asked for, or comes into a group that was
        claimed (`dropped`). Records of one episode come together, and whole groups if they can.

        Raises:
            FullError: there is no room for the groups that these records begin; none was kept.
            EpisodeError: ids of episodes or groups are not unique; none was kept.
        """

    def room(self, topic: str) -> int:
        """How many records of new groups the topic would take now."""

    def claim(
        self, topic: str, groups: int, oldest: int, lease: float, rule: Rule = "wait"
    ) -> Claim | None:
        """Lease the complete groups of the lowest numbers, None while there are fewer than so many.

        A run numbers its groups in the order of its updates, so an early one is never left behind
        because a late one came first.

        Groups with a record of an earlier version than `oldest` are dropped and counted
        (`dropped`). Void episodes are excused according to `rule`, as long as two good ones are
        left in their group:

            wait     no; all episodes must be there
            refill   once all their attempts have failed; until then they are `missing`
            partial  yes

        What was excused is given up when the group is acknowledged, and named in the claim. A group
        with fewer good ones, for which nothing more is waited for, is given up as a whole.

        Args:
            topic: of which policy, or other work.
            groups: how many.
            oldest: version.
            lease: seconds until others may claim them.
            rule: when a group is complete.
        """

    def acknowledge(self, topic: str, claim: int) -> None:
        """Forget what the records of a claim hold, for they are done with; keys are remembered.

        Raises:
            EpisodeError: the claim is unknown, or its lease ran out and others took the records.
        """

    def settle(self, topic: str, claim: int, puts: Mapping[str, Sequence[Record]]) -> int:
        """Acknowledge a claim and put what came of it, by topic: both or, if it raises, neither.

        Returns:
            How many records were new.
        """

    def missing(self, topic: str) -> Sequence[Missing]:
        """The void episodes of groups that nobody has claimed, which should be played again."""

    def counts(self, topic: str) -> Counts:
        """What became of everything that was put into a topic."""

    def publish(self, weights: Weights) -> None:
        """Make weights the latest of their policy.

        Raises:
            EpisodeError: an older version than the latest one.
        """

    def latest(self, policy: str) -> Weights | None:
        """The latest weights of a policy; None before the first, or when they are lost.

        Weights in a file are lost with it, weights in memory with the store's process.
        """

    def served(self, consumer: str, policy: str, version: int) -> None:
        """Note that a consumer works with this version of a policy's weights now."""

    def consumers(self) -> Sequence[Consumer]:
        """Who works with which version, and how far behind the latest it is."""

    def save(self, path: Path) -> None:
        """Write a file of the store as it is, for a checkpoint; there must be none yet.

        Leases and weights are left out: who had them will be gone.
        """

    def restore(self, path: Path) -> None:
        """Become what `save` wrote; what came after that, and is here, is forgotten.

        Raises:
            CheckpointError: the file is not there, or is no store of this program.
        """
