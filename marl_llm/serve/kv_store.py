"""Where keys and values lie: units of many tokens, cut into blocks of 16, copied block by block.

Two stores exist: the slots, one unit per row that is being decoded, and the pool of the prefix
cache, one unit per block. Copying blocks is all that ever happens between and within them: a known
beginning enters a slot, a new one enters the pool, a row moves into a hole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 16  # tokens; the lengths of all units are multiples


def blocks_of(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // BLOCK)


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token leaves behind in a model."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


class KVStore:
    """Keys and values, [layers, units, heads, length, dim] each.

    All memory is finite from the start: attention multiplies what it masks by 0, and 0 × NaN = NaN.
    """

    def __init__(self, shape: KVShape, units: int = 0, length: int = BLOCK) -> None:
        self.shape = shape
        self.keys = self._zeros(units, length, shape.key_dim)
        self.values = self._zeros(units, length, shape.value_dim)

    @property
    def units(self) -> int:
        """How many sequences (or blocks, in a pool) there is room for."""
        return self.keys.shape[1]

    @property
    def length(self) -> int:
        """Tokens per unit."""
        return self.keys.shape[3]

    def grow(self, units: int, length: int, most: int) -> None:
        """Make room for at least this, and ahead of need; contents are kept.

        Args:
            units: wanted at least.
            length: tokens per unit wanted at least.
            most: units never to exceed ahead of need.
        """
        if units <= self.units and length <= self.length:
            return
        if units > self.units:
            units = max(units, min(2 * self.units, most))
        if length > self.length:
            length = BLOCK * blocks_of(max(length, self.length * 3 // 2))
        units, length = max(units, self.units), max(length, self.length)
        self.keys = self._grown(self.keys, units, length)
        self.values = self._grown(self.values, units, length)

    def copy(self, other: KVStore, theirs: np.ndarray, mine: np.ndarray) -> None:
        """Copy blocks of a store (or of this one) into blocks of this one.

        Args:
            other: read from; of the same shape per token.
            theirs: [P, 2] int: unit and block in the unit.
            mine: [P, 2] int, distinct rows.
        """
        if not len(theirs):
            return
        source, target = other._addresses(theirs), self._addresses(mine)
        for read, write, dim in (
            (other.keys, self.keys, self.shape.key_dim),
            (other.values, self.values, self.shape.value_dim),
        ):
            taken = read.view(-1, BLOCK * dim).index_select(0, source)
            write.view(-1, BLOCK * dim).index_copy_(0, target, taken)

    def _addresses(self, blocks: np.ndarray) -> Tensor:
        """Rows of the store seen as [layers * units * heads * blocks, 16 * dim], flat."""
        shape = self.shape
        layer = np.arange(shape.layers)[:, None, None]
        head = np.arange(shape.heads)
        unit, block = blocks[:, 0, None], blocks[:, 1, None]
        per_unit = self.length // BLOCK
        rows = ((layer * self.units + unit) * shape.heads + head) * per_unit + block
        return torch.from_numpy(rows.reshape(-1)).to(shape.device)

    def _grown(self, old: Tensor, units: int, length: int) -> Tensor:
        new = self._zeros(units, length, old.shape[-1])
        new[:, : old.shape[1], :, : old.shape[3]] = old
        return new

    def _zeros(self, units: int, length: int, dim: int) -> Tensor:
        shape = self.shape
        return torch.zeros(
            (shape.layers, units, shape.heads, length, dim), dtype=shape.dtype, device=shape.device
        )
