"""Keys and values of token sequences seen before, so that a shared beginning is computed once.

A sequence is a path in a tree: blocks of 16 tokens, and a shorter one at its end. A block is known
by its parent block and its own tokens, compared as they are, so nothing rests on a hash. Whoever
shares the rules of a game shares their blocks; whoever asks the same again finds the whole; the
next turn of a dialogue finds all full blocks of the turns before. The least recently used blocks
make room.

What is kept depends on the weights: `clear` it when they change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marl_llm.serve.kv_store import BLOCK, KVShape, KVStore, blocks_of

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    serial: int  # never used twice, so a child of a dropped block can never be reached again
    unit: int  # where its keys and values lie in the pool


@dataclass(frozen=True, slots=True)
class Known:
    """The longest beginning of a sequence that is in the cache."""

    tokens: int
    units: tuple[int, ...]  # of the pool, one per block
    parent: int  # serial of the last full block, 0 = the root


NOTHING = Known(0, (), 0)


class PrefixCache:
    """A bounded pool of blocks and the tree over them."""

    def __init__(self, shape: KVShape, tokens: int) -> None:
        """An empty cache.

        Args:
            shape: of the model.
            tokens: how many may be kept; 0 = none.
        """
        self.capacity = tokens // BLOCK  # blocks
        self._pool = KVStore(shape)
        self._nodes: OrderedDict[tuple[int, Ids], _Node] = OrderedDict()  # oldest use first
        self._free: list[int] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def clear(self) -> None:
        """Forget all sequences."""
        self._nodes.clear()
        self._free = list(range(self._pool.units))

    def find(self, ids: Ids) -> Known:
        """What is known of a sequence: full blocks from its start, and its last, shorter block."""
        if not self._nodes:
            return NOTHING
        path, parent = self._path(ids)
        tokens = min(BLOCK * len(path), len(ids))
        self._touch([key for key, _ in path])
        return Known(tokens, tuple(node.unit for _, node in path), parent)

    def restore(self, known: Sequence[Known], store: KVStore, first: int) -> None:
        """Copy what is known of sequences into consecutive units of a store, from `first` on."""
        theirs = [(unit, 0) for one in known for unit in one.units]
        mine = [
            (first + row, block) for row, one in enumerate(known) for block in range(len(one.units))
        ]
        store.copy(self._pool, _pairs(theirs), _pairs(mine))

    def keep(self, sequences: Sequence[Ids], store: KVStore, units: Sequence[int]) -> None:
        """Remember sequences whose keys and values lie in these units of a store."""
        theirs: list[tuple[int, int]] = []
        mine: list[tuple[int, int]] = []
        touched = 0
        for ids, unit in zip(sequences, units, strict=True):
            touched += blocks_of(len(ids))
            # Blocks taken in this call must not be given away again in it, before they are written.
            if touched > self.capacity:
                break
            path, parent = self._path(ids)
            keys = [key for key, _ in path]
            self._touch(keys)  # or a block could be dropped to make room for its own child
            for start in range(BLOCK * len(path), len(ids), BLOCK):
                keys.append((parent, ids[start : start + BLOCK]))
                node = self._insert(keys[-1])
                theirs.append((unit, start // BLOCK))
                mine.append((node.unit, 0))
                parent = node.serial
            self._touch(keys)
        self._pool.copy(store, _pairs(theirs), _pairs(mine))

    def _path(self, ids: Ids) -> tuple[list[tuple[tuple[int, Ids], _Node]], int]:
        """Known blocks from the start, and the serial of the last full one."""
        path, parent = [], 0
        for start in range(0, len(ids), BLOCK):
            key = (parent, ids[start : start + BLOCK])
            node = self._nodes.get(key)
            if node is None:
                break
            path.append((key, node))
            if len(key[1]) == BLOCK:
                parent = node.serial
        return path, parent

    def _touch(self, path: list[tuple[int, Ids]]) -> None:
        """Mark as just used, deepest first: a child must not outlive its parent."""
        for key in reversed(path):
            self._nodes.move_to_end(key)

    def _insert(self, key: tuple[int, Ids]) -> _Node:
        if not self._free and len(self._nodes) < self.capacity:
            units = self._pool.units
            self._pool.grow(max(64, units + 1), BLOCK, self.capacity)
            self._free = list(range(units, self._pool.units))
        if self._free and len(self._nodes) < self.capacity:
            unit = self._free.pop()
        else:
            unit = self._nodes.popitem(last=False)[1].unit
        self._serial += 1
        self._nodes[key] = node = _Node(self._serial, unit)
        return node


def _pairs(places: list[tuple[int, int]]) -> np.ndarray:
    return np.array(places, dtype=np.int64).reshape(-1, 2)
