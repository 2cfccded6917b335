"""The requests that are being decoded, one per slot: numbers as columns, the rest as records.

Rows 0 .. n-1 are active and lie in slots 0 .. n-1, without holes, so that a pass feeds plain slices
and costs what its active rows cost. A finished row's place is taken by one from the end. What every
step touches is in columns, so that a step does no work in Python per row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from marl_llm.serve.kv_store import BLOCK
from marl_llm.serve.prefix_cache import Ids
from marl_llm.serve.stop_strings import StopScan
from marl_llm.types import Completion, Finish, Request

COLUMNS = np.dtype(
    [
        ("length", np.int64),  # tokens whose keys and values are in the slot
        ("token", np.int64),  # the one to be fed next
        ("count", np.int64),  # tokens sampled so far
        ("limit", np.int64),  # tokens that may be sampled
        ("seed", np.int64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("deadline", np.float64),
        ("watch", np.int64),  # which of the engine's stop tables it is looked up in, -1 = none
    ]
)


@dataclass(slots=True)
class Row:
    """What a row is besides its numbers."""

    request: Request
    limit: int  # tokens that may be sampled: max_tokens, or what the context leaves
    version: int  # of the weights when it came in
    watch: int = -1  # see `COLUMNS`
    scan: StopScan | None = None  # once its text had to be read
    changes: list[tuple[int, int]] = field(default_factory=list)  # (tokens before, new version)

    def full(self) -> Finish:
        """Why a row ends that has sampled all it may."""
        return Finish.LENGTH if self.limit == self.request.sampling.max_tokens else Finish.CONTEXT

    def completion(self, ids: list[int], logprobs: list[float], finish: Finish) -> Completion:
        """What goes back to the caller."""
        starts = [(0, self.version), *self.changes]
        ends = [start for start, _ in self.changes] + [len(ids)]
        spans = tuple(
            (version, start, end)
            for (start, version), end in zip(starts, ends, strict=True)
            if end > start
        )
        return Completion(self.request.id, tuple(ids), tuple(logprobs), spans, finish)


class Rows:
    """All active rows."""

    def __init__(self, capacity: int) -> None:
        self.records: list[Row] = []
        self._columns = np.zeros(capacity, COLUMNS)
        self._ids = np.zeros((capacity, 0), np.int64)
        self._logprobs = np.zeros((capacity, 0), np.float32)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def columns(self) -> np.ndarray:
        """Columns of the active rows (a view)."""
        return self._columns[: len(self.records)]

    def add(self, row: Row, length: int) -> None:
        """Take the next slot, which holds `length` tokens of the prompt."""
        request, sampling, place = row.request, row.request.sampling, len(self.records)
        deadline = math.inf if request.deadline is None else request.deadline
        self._columns[place] = (
            length, request.prompt_ids[-1], 0, row.limit, _int64(request.seed),
            sampling.temperature, sampling.top_k, sampling.top_p, deadline, row.watch,
        )  # fmt: skip
        if row.limit > self._ids.shape[1]:
            more = ((0, 0), (0, row.limit - self._ids.shape[1]))
            self._ids, self._logprobs = np.pad(self._ids, more), np.pad(self._logprobs, more)
        self.records.append(row)

    def append(self, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        """Add a sampled token to every row."""
        columns, every = self.columns, np.arange(len(self.records))
        self._ids[every, columns["count"]] = tokens
        self._logprobs[every, columns["count"]] = logprobs
        columns["token"] = tokens
        columns["count"] += 1

    def read_on(self, place: int, scan: StopScan) -> bool:
        """Have a row's search take the tokens it has not seen; True once it found a stop string."""
        new = self._ids[place, scan.taken : self._columns["count"][place]].tolist()
        return any(scan.found(token) for token in new)

    def completion(self, place: int, finish: Finish) -> Completion:
        """What goes back to the caller of a row."""
        count = int(self._columns["count"][place])
        return self.records[place].completion(
            self._ids[place, :count].tolist(), self._logprobs[place, :count].tolist(), finish
        )

    def reusable(self, place: int) -> Ids:
        """Tokens of a row's slot that the next turn of its dialogue can start from.

        Full blocks only, since that turn will not end where this reply does. Empty when the reply
        fills no block that its prompt did not, or when the weights changed on the way: then keys
        and values are of no single version.
        """
        row, prompt = self.records[place], self.records[place].request.prompt_ids
        full = BLOCK * (int(self._columns["length"][place]) // BLOCK)
        if row.changes or full < len(prompt):
            return ()
        return (*prompt, *self._ids[place, : full - len(prompt)].tolist())

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
            sources, targets = map(list, zip(*moves, strict=True))
            for table in (self._columns, self._ids, self._logprobs):
                table[targets] = table[sources]
        del self.records[left:]
        return moves


def _int64(seed: int) -> int:
    """Any integer as the signed one of equal lowest 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63
