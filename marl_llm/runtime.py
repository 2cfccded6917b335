"""`Runtime`: where the parts of a run live, and how the loop hears from them.

What takes long is begun and later heard of, so that games can be played while policies learn. In
one process everything is done when it is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from marl_llm.rollout.plans import Plan
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.trainer import Lesson
from marl_llm.types import Episode


@dataclass(frozen=True, slots=True)
class Collected:
    """The episodes of an update have been played and lie in the store."""

    update: int
    episodes: Sequence[Episode]
    seconds: float
    busy: Mapping[str, float]  # by policy: its server's share of the time spent decoding, 0 to 1


@dataclass(frozen=True, slots=True)
class Learned:
    """A policy has learned from the games of an update."""

    lesson: Lesson


def learning(run: RunSettings, update: int, engines: Mapping[str, Engine]) -> dict[str, int]:
    """The policies that learn from the games of an update, and the versions served now."""
    return {
        policy: engine.version
        for policy, engine in engines.items()
        if run.policies[policy].learns(update)
    }


@dataclass(frozen=True, slots=True)
class Reading:
    """How long each policy's server has decoded by a moment."""

    moment: float  # seconds
    decoded: Mapping[str, float]  # seconds since the server was started, by policy

    def busy(self, later: Reading) -> dict[str, float]:
        """The share of the time until a later reading that each server decoded, 0 to 1.

        One that was started anew meanwhile counts from there.
        """
        span = max(later.moment - self.moment, 1e-9)
        shares = {}
        for policy, seconds in later.decoded.items():
            before = self.decoded[policy]
            shares[policy] = (seconds - before if seconds >= before else seconds) / span
        return shares


class Runtime(Protocol):
    """Where the parts of a run live: `local.LocalRuntime` or `cluster.runtime.RayRuntime`."""

    def serving(self) -> Mapping[str, Engine]:
        """Engines by policy, freshly loaded with the latest weights.

        Loading also makes an engine forget what it computed before, so that what comes next does
        not hang on what came before: a resumed run goes on as if it had never been stopped.
        """

    def collect(self, update: int, plans: Sequence[Plan]) -> None:
        """Begin to play these episodes, for the store of every policy that then learns."""

    def learn(self, policy: str, update: int) -> None:
        """Begin to learn from the games of an update, all played; the weights are published."""

    def wait(self) -> Collected | Learned:
        """The next thing that is done, of all that were begun."""

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""

    def save_store(self, path: Path) -> None:
        """Write a file of the store as it is."""

    def restore_store(self, path: Path) -> None:
        """Go on with what `save_store` wrote; before the policies, whose weights it lacks."""

    def close(self) -> None:
        """End every process that the runtime started."""
