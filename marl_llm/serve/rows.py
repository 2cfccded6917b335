"""The requests that are being decoded, one per slot: numbers as columns, the rest as records.

Rows 0 .. n-1 are active and lie in slots 0 .. n-1, without holes, so that a step feeds a plain
slice and costs what its active rows cost. A finished row's place is taken by the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from marl_llm.serve.stop_strings import StopScan
from marl_llm.types import Completion, Finish, Request

COLUMNS = np.dtype(
    [
        ("length", np.int64),  # tokens whose keys and values are in the slot
        ("token", np.int64),  # the one to be fed next
        ("count", np.int64),  # tokens sampled so far
        ("seed", np.int64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("deadline", np.float64),
    ]
)


@dataclass(slots=True)
class Row:
    """One request on its way."""

    request: Request
    limit: int  # tokens that may be sampled: max_tokens, or what the context leaves
    version: int  # of the weights when it came in
    stops: StopScan | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)  # (tokens before, new version)

    def full(self) -> Finish:
        """Why a row ends that has sampled all it may."""
        return Finish.LENGTH if self.limit == self.request.sampling.max_tokens else Finish.CONTEXT

    def completion(self, finish: Finish) -> Completion:
        """What goes back to the caller."""
        starts = [(0, self.version), *self.changes]
        ends = [start for start, _ in self.changes] + [len(self.ids)]
        spans = tuple(
            (version, start, end)
            for (start, version), end in zip(starts, ends, strict=True)
            if end > start
        )
        return Completion(self.request.id, tuple(self.ids), tuple(self.logprobs), spans, finish)


class Rows:
    """All active rows."""

    def __init__(self, capacity: int) -> None:
        self.columns = np.zeros(capacity, COLUMNS)
        self.records: list[Row] = []

    def __len__(self) -> int:
        return len(self.records)

    @property
    def active(self) -> np.ndarray:
        """Columns of the active rows (a view)."""
        return self.columns[: len(self.records)]

    def add(self, row: Row) -> None:
        """Take the next slot, whose keys and values are those of the prompt but its last token."""
        request, sampling = row.request, row.request.sampling
        deadline = math.inf if request.deadline is None else request.deadline
        self.columns[len(self.records)] = (
            len(request.prompt_ids) - 1, request.prompt_ids[-1], 0, _int64(request.seed),
            sampling.temperature, sampling.top_k, sampling.top_p, deadline,
        )  # fmt: skip
        self.records.append(row)

    def remove(self, places: list[int]) -> list[tuple[int, int]]:
        """Take rows out and close the gaps.

        Args:
            places: ascending.

        Returns:
            (from, to) of the rows that moved: no place is in both roles.
        """
        left = len(self.records) - len(places)
        gone = set(places)
        movers = [i for i in range(left, len(self.records)) if i not in gone]
        moves = list(zip(movers, (place for place in places if place < left), strict=True))
        for source, target in moves:
            self.records[target] = self.records[source]
        if moves:
            sources, targets = zip(*moves, strict=True)
            self.columns[list(targets)] = self.columns[list(sources)]
        del self.records[left:]
        return moves


def _int64(seed: int) -> int:
    """Any integer as the signed one of equal lowest 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63
