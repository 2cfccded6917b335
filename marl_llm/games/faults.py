"""Faults of tools, drawn by seed: what a real search or page server does now and then.

Two kinds are kept apart. An *infra* fault (the tool timed out, its reply cannot be read) is no
agent's doing: it voids the episode, which says so and ends at once, and another attempt at the same
episode draws other faults. A *content* fault (nothing, half, or wrong things came back) is part of
the task: the tool returns it, and whoever reads must cope.

`delegation.Delegation` draws them for every game with calls and handles the infra faults; a game
that has tools reads `Use.fault` for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from marl_llm.errors import GameError
from marl_llm.seeds import derive, generator

NOTHING = "(nothing came back)"
Content = TypeVar("Content", str, tuple[Any, ...])


class Kind(StrEnum):
    """What goes wrong with the use of a tool."""

    TIMEOUT = "timeout"
    MALFORMED = "malformed"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    WRONG = "wrong"


INFRA = {
    Kind.TIMEOUT: "timed out",
    Kind.MALFORMED: "gave a reply that cannot be read",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one use of a tool, and a seed for what there is to draw about it."""

    kind: Kind
    seed: int


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault happens, per use of a tool; none of them by default."""

    timeout: float = 0.0
    malformed: float = 0.0
    empty: float = 0.0
    truncated: float = 0.0
    wrong: float = 0.0

    def __post_init__(self) -> None:
        for kind, rate in self.rates():
            if not 0 <= rate <= 1:
                raise GameError(f"faults.{kind} is a probability, got {rate}")
        if (total := sum(rate for _, rate in self.rates())) > 1 + 1e-9:
            raise GameError(f"at most one fault happens at a time, but the rates sum to {total}")

    def rates(self) -> tuple[tuple[Kind, float], ...]:
        """Kind and probability, in a fixed order."""
        return (
            (Kind.TIMEOUT, self.timeout),
            (Kind.MALFORMED, self.malformed),
            (Kind.EMPTY, self.empty),
            (Kind.TRUNCATED, self.truncated),
            (Kind.WRONG, self.wrong),
        )

    def draw(self, seed: int, attempt: int, path: tuple[int, ...], turn: int) -> Fault | None:
        """The fault of one use of a tool, which hangs on nothing but these.

        Args:
            seed: of the episode.
            attempt: at the episode, from 0.
            path: of the call whose agent uses the tool.
            turn: of that call.
        """
        if not any(rate for _, rate in self.rates()):
            return None
        where = (seed, "fault", attempt, "/".join(map(str, path)), turn)
        chance = generator(*where).random()
        for kind, rate in self.rates():
            if chance < rate:
                return Fault(kind, derive(*where, kind.value))
            chance -= rate
        return None


def spoiled(content: Content, fault: Fault | None) -> Content:
    """A tool's text, or lines, after an empty or truncated fault; others leave it as it is."""
    if fault is None or fault.kind not in (Kind.EMPTY, Kind.TRUNCATED):
        return content
    share = 0.0 if fault.kind is Kind.EMPTY else generator(fault.seed).uniform(0.1, 0.6)
    return content[: int(share * len(content))]
