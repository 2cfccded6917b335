"""The slots as the cache that a Hugging Face model writes to.

Before each pass a layout says in which slot, and where in it, each fed token goes. A layer then
writes its new keys and values there and gives back all slots as they are, without a copy. Rows have
their own lengths: beyond a row's length lie leftovers of other rows, finite, and hidden by the
layout's masks.
"""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from marl_llm.serve.kv_store import KVShape, KVStore
from marl_llm.serve.ragged import Layout


class SlotCache(Cache):
    """A store of slots behind the interface of `transformers.Cache`."""

    def __init__(self, shape: KVShape) -> None:
        super().__init__(layers=[_SlotLayer(self, layer) for layer in range(shape.layers)])
        self.store = KVStore(shape)
        self.layout: Layout | None = None  # of the pass that is under way


class _SlotLayer(CacheLayerMixin):
    """One layer's view of the slots."""

    def __init__(self, cache: SlotCache, layer: int) -> None:
        super().__init__()
        self._cache, self._layer = cache, layer
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values, [1, heads, T, dim], and return all slots."""
        store, layout = self._cache.store, self._cache.layout
        assert layout is not None
        keys, values = store.keys[self._layer], store.values[self._layer]
        for states, slots in ((key_states, keys), (value_states, values)):
            dim = states.shape[-1]
            new = states[0].transpose(0, 1).reshape(-1, dim)
            slots.view(-1, dim).index_copy_(0, layout.index, new)
        return keys, values

    def get_seq_length(self) -> int:
        """0: a model that is given positions and a mask does not ask."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys and offset of a mask, which nobody reads."""
        return query_length, 0

    def get_max_length(self) -> int:
        """-1: slots grow."""
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the store exists from the start."""
