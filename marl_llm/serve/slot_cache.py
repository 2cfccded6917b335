"""The slots as the cache that a Hugging Face model writes to.

Before each forward pass a *window* says which consecutive slots are fed and where in them each fed
token goes. A layer then writes its new keys and values there and gives back those slots, up to the
longest row, without a copy. Rows have their own lengths: what lies beyond a row's length is
leftovers of other rows, finite, and hidden by the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from marl_llm.serve.kv_store import BLOCK, KVShape, KVStore


@dataclass(frozen=True, slots=True)
class Window:
    """Slots `first : first + rows`, seen up to `length`; `index` is where new tokens go."""

    first: int
    rows: int
    length: int
    index: Tensor  # [rows * heads * fed] int64, into [units * heads * length of the store]


class SlotCache(Cache):
    """A store of slots behind the interface of `transformers.Cache`."""

    def __init__(self, shape: KVShape) -> None:
        super().__init__(layers=[_SlotLayer(self, layer) for layer in range(shape.layers)])
        self.store = KVStore(shape)
        self.window = Window(0, 0, BLOCK, torch.empty(0, dtype=torch.int64))

    def open(self, first: int, positions: np.ndarray) -> int:
        """Point the window at slots and positions; the store must have room.

        Args:
            first: the first slot.
            positions: [rows, fed] int: where each fed token stands in its row.

        Returns:
            How many tokens of each slot the model will see: a multiple of 16.
        """
        store = self.store
        last = store.length - 1
        # Padding may point beyond the store. Its junk then goes to the last place, which is free:
        # a row that is being filled has at least one token more to come.
        places = np.minimum(positions, last)
        length = BLOCK * (int(places.max()) // BLOCK + 1)
        rows, heads = len(positions), store.shape.heads
        unit = np.arange(first, first + rows)[:, None] * heads + np.arange(heads)
        index = unit[:, :, None] * store.length + places[:, None]
        self.window = Window(
            first, rows, length, torch.from_numpy(index.reshape(-1)).to(store.shape.device)
        )
        return length


class _SlotLayer(CacheLayerMixin):
    """One layer's view of the slots."""

    def __init__(self, cache: SlotCache, layer: int) -> None:
        super().__init__()
        self._cache, self._layer = cache, layer
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values, [rows, heads, fed, dim], and return all that may be seen."""
        store, window = self._cache.store, self._cache.window
        keys, values = store.keys[self._layer], store.values[self._layer]
        for states, all_of in ((key_states, keys), (value_states, values)):
            dim = states.shape[-1]
            all_of.view(-1, dim).index_copy_(0, window.index, states.reshape(-1, dim))
        rows = slice(window.first, window.first + window.rows)
        return keys[rows, :, : window.length], values[rows, :, : window.length]

    def get_seq_length(self) -> int:
        """Tokens that may be seen; models that are given positions and a mask do not ask."""
        return self._cache.window.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset) of a mask."""
        return self._cache.window.length, 0

    def get_max_length(self) -> int:
        """-1: slots grow."""
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the store exists from the start."""
