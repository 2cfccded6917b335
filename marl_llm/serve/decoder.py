"""A model and how it is fed: tokens of many rows in one pass, each row in its slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from marl_llm.serve.attention import NAME
from marl_llm.serve.kv_store import KVShape, blocks_of
from marl_llm.serve.prefix_cache import Ids, PrefixCache
from marl_llm.serve.ragged import lay_out
from marl_llm.serve.slot_cache import SlotCache

PASS_TOKENS = {"cpu": 2048, "cuda": 8192}  # fed in one pass: on a CPU, what its caches hold


class Decoder:
    """A causal language model over slots."""

    def __init__(
        self,
        model: PreTrainedModel,
        shape: KVShape,
        prefix_tokens: int,
        pass_tokens: int | None = None,
    ) -> None:
        """Take a model, and give it the attention of ragged passes.

        Args:
            model: in evaluation mode.
            shape: what a token leaves in its cache.
            prefix_tokens: bound of the prefix cache, 0 = off.
            pass_tokens: fed in one pass, None = what suits the device.
        """
        self.model, self.shape = model, shape
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self.prefixes = PrefixCache(shape, prefix_tokens)
        self.pass_tokens = pass_tokens or PASS_TOKENS[shape.device.type]
        model.set_attn_implementation(NAME)
        # One of four dimensions is taken as it is, and our attention does not read it.
        self._no_mask = torch.zeros((1, 1, 1, 1), dtype=shape.dtype, device=shape.device)

    def feed(
        self,
        cache: SlotCache,
        first: int,
        lengths: np.ndarray,
        fed: np.ndarray,
        tokens: np.ndarray,
        keep: Tensor | None = None,
    ) -> Tensor:
        """Feed tokens to R consecutive slots in one pass.

        Args:
            cache: the slots, with room for the tokens.
            first: the first slot.
            lengths: [R] int: tokens that each slot holds.
            fed: [R] int, ascending: tokens for each.
            tokens: [T] int64: those of all rows, end to end.
            keep: [K] which of the T tokens' logits are wanted; None = the last one's of each row.

        Returns:
            Logits of what comes after: [K, V], or [R, V].
        """
        layout = lay_out(cache.store, first, lengths, fed)
        cache.layout = layout
        device = self.shape.device
        return self.model(
            input_ids=torch.from_numpy(tokens).to(device)[None],
            position_ids=layout.positions[None],
            attention_mask=self._no_mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=layout.last if keep is None else keep.to(device),
            layout=layout,
        ).logits[0]

    def shorten(self, cache: SlotCache, slot: int, length: int, ids: Ids, until: int) -> int:
        """Feed a row, alone, until what is left fits into one pass; return its new length.

        Args:
            cache: the slots.
            slot: of the row.
            length: tokens that it holds.
            ids: all that it is to hold.
            until: do not go beyond so many tokens.
        """
        while len(ids) - length > self.pass_tokens and length < until:
            piece = np.array(ids[length : min(length + self.pass_tokens, until)])
            self.feed(cache, slot, np.array([length]), np.array([len(piece)]), piece)
            length += len(piece)
        return length


def move(cache: SlotCache, moves: Sequence[tuple[int, int, int]]) -> None:
    """Copy slots: (from, to, tokens) each, no slot in both roles."""
    spans = [(source, target, blocks_of(tokens)) for source, target, tokens in moves]
    theirs = [(source, block) for source, _, count in spans for block in range(count)]
    mine = [(target, block) for _, target, count in spans for block in range(count)]
    cache.store.copy(
        cache.store,
        np.array(theirs, np.int64).reshape(-1, 2),
        np.array(mine, np.int64).reshape(-1, 2),
    )
