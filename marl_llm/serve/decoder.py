"""A model and how it is fed: fill slots with prompts, then one token per row and step.

A prompt of n tokens fills its slot with n - 1; the last one is fed by the first decoding step,
which gives the first logits. So filling never touches the output layer, a prompt that is known
needs no pass at all, and every sampled token comes from the same kind of pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from marl_llm.serve.attention import NAME as GROUPED
from marl_llm.serve.kv_store import BLOCK, KVShape, blocks_of
from marl_llm.serve.prefix_cache import Ids, Known, PrefixCache
from marl_llm.serve.slot_cache import SlotCache

FILL_TOKENS = 8192  # padded tokens of one filling pass
SMALL_PASS = 512  # padded tokens below which a pass costs its overhead, so padding is free


class Decoder:
    """A causal language model over slots."""

    def __init__(
        self, model: PreTrainedModel, shape: KVShape, context: int, prefix_tokens: int
    ) -> None:
        """Take a model that `servable.inspect` has accepted, and its attention.

        Args:
            model: in evaluation mode; its attention function is replaced by a faster equal one.
            shape: what a token leaves in its cache.
            context: the most tokens of prompt and reply.
            prefix_tokens: bound of the prefix cache, 0 = off.
        """
        self.model, self.shape, self.context = model, shape, context
        self.prefixes = PrefixCache(shape, prefix_tokens)
        if model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(GROUPED)
        self._blank = torch.finfo(shape.dtype).min

    def step(self, cache: SlotCache, tokens: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Feed one token to each of the first N slots.

        Args:
            cache: its first N slots hold `lengths` tokens each.
            tokens: [N] int64.
            lengths: [N] int64.

        Returns:
            Logits [N, V] of what comes next.
        """
        inputs = self._inputs(cache, 0, tokens[:, None], lengths)
        return self.model(**inputs, past_key_values=cache, use_cache=True).logits[:, -1]

    def extend(
        self, cache: SlotCache, first: int, tokens: np.ndarray, lengths: np.ndarray
    ) -> Tensor:
        """Feed several tokens to each of consecutive slots and return logits [N, fed, V]."""
        inputs = self._inputs(cache, first, tokens, lengths)
        return self.model(**inputs, past_key_values=cache, use_cache=True).logits

    def place(
        self, cache: SlotCache, first: int, sequences: Sequence[Ids], most: int
    ) -> np.ndarray:
        """Fill slots from `first` on with sequences, each distinct one computed at most once.

        Args:
            cache: of which at least the slots before `first` are in use.
            first: the first free slot.
            sequences: N of them; an empty one needs nothing.
            most: slots never to exceed by growing ahead of need.

        Returns:
            [N] the slot of each sequence: a permutation of first .. first + N - 1.
        """
        longest = max(map(len, sequences), default=0)
        # one place more than the longest: padding needs a free last place
        cache.store.grow(first + len(sequences), longest + 1, most)
        takers: dict[Ids, list[int]] = {}
        for number, ids in enumerate(sequences):
            takers.setdefault(ids, []).append(number)
        order = self._fill(cache, first, list(takers))
        slots = np.empty(len(sequences), np.int64)
        copies: list[tuple[int, int, int]] = []
        free = first + len(order)
        for slot, ids in enumerate(order, first):
            slots[takers[ids][0]] = slot
            for number in takers[ids][1:]:
                slots[number] = free
                copies.append((slot, free, blocks_of(len(ids))))
                free += 1
        clone(cache, copies)
        return slots

    def _fill(self, cache: SlotCache, first: int, sequences: list[Ids]) -> list[Ids]:
        """Fill consecutive slots with distinct sequences, in an order of its own, returned.

        Of several sequences that go on with the same unknown block, one is computed before the
        others, which then share it: the rules of a game are computed once also when they are new.
        """
        ahead: dict[tuple[int, Ids], list[Ids]] = {}
        for ids in sequences:
            known = self.prefixes.find(ids)
            block = ids[known.tokens : known.tokens + BLOCK]
            ahead.setdefault((known.parent, block), []).append(ids)
        leaders = [
            group[0]
            for (_, block), group in ahead.items()
            if len(group) > 1 and len(block) == BLOCK
        ]
        if not leaders or not self.prefixes.capacity:
            return self._compute(cache, first, sequences)
        order = self._compute(cache, first, leaders)
        done = set(leaders)
        rest = [ids for ids in sequences if ids not in done]
        return order + self._compute(cache, first + len(order), rest)

    def _compute(self, cache: SlotCache, first: int, sequences: list[Ids]) -> list[Ids]:
        """Fill slots with what the prefix cache knows, and the model's passes over the rest."""
        found = sorted(
            ((self.prefixes.find(ids), ids) for ids in sequences),
            key=lambda pair: len(pair[1]) - pair[0].tokens,
        )
        order = [ids for _, ids in found]
        self.prefixes.restore([known for known, _ in found], cache.store, first)
        for start, stop in _passes(found):
            self._pass(cache, first + start, found[start:stop])
        fresh = [slot for slot, (known, ids) in enumerate(found) if known.tokens < len(ids)]
        self.prefixes.keep([order[i] for i in fresh], cache.store, [first + i for i in fresh])
        return order

    def _pass(self, cache: SlotCache, first: int, found: Sequence[tuple[Known, Ids]]) -> None:
        """One pass over the unknown ends of sequences, in pieces if it is a single long one."""
        starts = np.array([known.tokens for known, _ in found])
        width = max(len(ids) - known.tokens for known, ids in found)
        tokens = np.zeros((len(found), width), np.int64)
        for row, (known, ids) in enumerate(found):
            tokens[row, : len(ids) - known.tokens] = ids[known.tokens :]
        for begin in range(0, width, FILL_TOKENS):
            piece = tokens[:, begin : begin + FILL_TOKENS]
            inputs = self._inputs(cache, first, piece, starts + begin)
            self.model.base_model(**inputs, past_key_values=cache, use_cache=True)

    def _inputs(
        self, cache: SlotCache, first: int, tokens: np.ndarray, lengths: np.ndarray
    ) -> dict[str, Tensor]:
        """Ids, positions and mask of a pass, with the cache's window opened for it."""
        device = self.shape.device
        positions = lengths[:, None] + np.arange(tokens.shape[1])
        seen = cache.open(first, positions)
        # what padding computes is never read, but its position must exist
        at = torch.from_numpy(np.minimum(positions, self.context - 1)).to(device)
        hidden = torch.arange(seen, device=device) > at[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.shape.dtype, device=device)
        return {
            "input_ids": torch.from_numpy(np.ascontiguousarray(tokens)).to(device),
            "position_ids": at,
            "attention_mask": mask.masked_fill_(hidden, self._blank)[:, None],
        }


def clone(cache: SlotCache, copies: Sequence[tuple[int, int, int]]) -> None:
    """Copy slots: (from, to, blocks) each, `to` distinct."""
    theirs = [(source, block) for source, _, count in copies for block in range(count)]
    mine = [(target, block) for _, target, count in copies for block in range(count)]
    cache.store.copy(
        cache.store,
        np.array(theirs, np.int64).reshape(-1, 2),
        np.array(mine, np.int64).reshape(-1, 2),
    )


def _passes(found: Sequence[tuple[Known, Ids]]) -> Iterator[tuple[int, int]]:
    """Cut sequences, ascending by what is left to compute, into passes of little padding."""
    left = [len(ids) - known.tokens for known, ids in found]
    start = next((i for i, rest in enumerate(left) if rest), len(left))
    real = 0
    for i in range(start, len(left)):
        padded = left[i] * (i + 1 - start)
        wasteful = padded > SMALL_PASS and 4 * (real + left[i]) < 3 * padded
        if i > start and (padded > FILL_TOKENS or wasteful):
            yield start, i
            start, real = i, 0
        real += left[i]
    if start < len(left):
        yield start, len(left)
