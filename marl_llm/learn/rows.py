"""From turns to training rows: each sequence of tokens is computed once, and never twice.

A **row** is a maximal token sequence. A turn is the pair (prompt ids, reply ids); it lives inside
any row that starts with prompt + reply, because a causal model's log-probs at a position depend on
nothing to its right. So the turns of one dialogue merge into the row of its last turn, and equal
turns of different episodes share one row: 600 turns of Kuhn poker are some 40 rows.

A **slot** is a place whose log-prob is wanted: (row, position, temperature). Several sampled tokens
may share a slot. Only slots ever reach the model's output layer.

    [M] sampled tokens, flat in turn order   ──slot──▶   [S] slots   ──row, position──▶   [R] rows

Rows are padded on the right, and only inside a micro-batch. No attention mask is needed: a real
position never looks to its right, and what the padding computes is never read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from marl_llm.errors import EpisodeError

Array = np.ndarray
Pair = tuple[tuple[int, ...], tuple[int, ...]]  # prompt ids, reply ids

ID = np.dtype(np.int32)  # how token ids are held in rows and keys


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Rows that pass through the model together, and the slots and tokens that live in them."""

    input_ids: torch.Tensor  # [B, T] int64, right-padded
    positions: torch.Tensor  # [s] int64: index into the flattened [B * T] of what predicts a slot
    targets: torch.Tensor  # [s] int64: the id whose log-prob is wanted
    temperatures: torch.Tensor | None  # [s] float32; None = all are 1
    slot: torch.Tensor  # [m] int64: which of the s slots each token reads
    tokens: torch.Tensor  # [m] int64: index of each token among the batch's M, ascending
    lengths: torch.Tensor  # [n] int64: tokens per turn; the turns stand side by side in `tokens`

    def to(self, device: torch.device) -> Microbatch:
        """The same on another device."""
        return Microbatch(
            self.input_ids.to(device),
            self.positions.to(device),
            self.targets.to(device),
            None if self.temperatures is None else self.temperatures.to(device),
            self.slot.to(device),
            self.tokens.to(device),
            self.lengths.to(device),
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a batch, and where its sampled tokens are predicted."""

    ids: tuple[Array, ...]  # R rows of token ids, int32
    lengths: Array  # [N] int: sampled tokens per turn
    slot: Array  # [M] int: the slot of each sampled token
    slot_row: Array  # [S] int, ascending
    slot_position: Array  # [S] int: the position whose output predicts the token after it
    slot_target: Array  # [S] int: that token
    slot_temperature: Array  # [S] float32

    def microbatches(self, budget: int) -> list[Microbatch]:
        """Rows of similar length in groups whose padded size is at most `budget` tokens.

        A row longer than the budget goes alone: it cannot be cut, since its tokens see each other.
        A turn lies in one row, so none is split.
        """
        sizes = np.fromiter((len(row) - 1 for row in self.ids), np.int64, len(self.ids))
        groups = group_by_length(sizes, budget)
        group_of_row = np.empty(len(sizes), np.int64)
        place_of_row = np.empty(len(sizes), np.int64)
        for number, members in enumerate(groups):
            group_of_row[members] = number
            place_of_row[members] = np.arange(len(members))

        count = len(groups)
        slots_of = split_by(group_of_row[self.slot_row], count)
        tokens_of = split_by(group_of_row[self.slot_row[self.slot]], count)
        local_slot = np.empty(len(self.slot_row), np.int64)
        turn_of_token = np.repeat(np.arange(len(self.lengths)), self.lengths)
        plain = bool(np.all(self.slot_temperature == 1.0))

        out = []
        for members, slots, tokens in zip(groups, slots_of, tokens_of, strict=True):
            width = int(sizes[members].max())
            padded = np.zeros((len(members), width), np.int64)
            for place, row in enumerate(members):
                padded[place, : sizes[row]] = self.ids[row][:-1]
            local_slot[slots] = np.arange(len(slots))
            turns = turn_of_token[tokens]
            starts = np.flatnonzero(np.diff(turns, prepend=-1))
            out.append(
                Microbatch(
                    input_ids=torch.from_numpy(padded),
                    positions=torch.from_numpy(
                        place_of_row[self.slot_row[slots]] * width + self.slot_position[slots]
                    ),
                    targets=torch.from_numpy(self.slot_target[slots]),
                    temperatures=None if plain else torch.from_numpy(self.slot_temperature[slots]),
                    slot=torch.from_numpy(local_slot[self.slot[tokens]]),
                    tokens=torch.from_numpy(tokens),
                    lengths=torch.from_numpy(np.diff(starts, append=len(tokens))),
                )
            )
        return out


def pack(pairs: Sequence[Pair], temperatures: Array | None = None) -> Rows:
    """Lay turns out as rows.

    Args:
        pairs: N turns as (prompt ids, reply ids). An empty reply has no tokens and needs no row.
        temperatures: [N] sampling temperatures; 0 (greedy) is scored at 1. None = all 1.

    Raises:
        EpisodeError: a turn has a reply but an empty prompt, so nothing predicts its first token.
    """
    # What is asked of a pair is asked once: most turns of a small game are copies of others.
    distinct = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    which = np.array([distinct[pair] for pair in pairs], np.int64)
    replies = np.array([len(reply) for _, reply in distinct], np.int64)
    prompts = np.array([len(prompt) for prompt, _ in distinct], np.int64)
    lengths, starts = replies[which], prompts[which]
    headless = np.flatnonzero((starts == 0) & (lengths > 0))
    if len(headless):
        raise EpisodeError(
            f"turn {headless[0]} of the batch has a reply but an empty prompt, so nothing predicts "
            "its first token; prompts must hold at least one token"
        )
    keys = [key(*pair) if pair[1] else b"" for pair in distinct]
    rows, row_of_key = maximal(text for text in keys if text)
    row_of_pair = np.array([row_of_key.get(text, 0) for text in keys], np.int64)
    row_of_turn = row_of_pair[which]
    ids = tuple(np.frombuffer(row, ID) for row in rows)

    # Predicting position of token j of a turn: start + j - 1.
    first = np.cumsum(lengths) - lengths
    position = np.arange(lengths.sum()) + np.repeat(starts - 1 - first, lengths)
    begin = np.cumsum([0, *(len(row) for row in ids)])
    place = np.repeat(begin[row_of_turn], lengths) + position  # with all rows laid end to end

    scale = np.ones(len(pairs)) if temperatures is None else np.asarray(temperatures)
    scale = np.where(scale == 0, 1.0, scale).astype(np.float32)
    kinds, kind = np.unique(scale, return_inverse=True)
    slots, slot = np.unique(place * len(kinds) + np.repeat(kind, lengths), return_inverse=True)
    slot_place = slots // max(len(kinds), 1)
    slot_row = np.searchsorted(begin, slot_place, side="right") - 1
    everything = np.concatenate(ids) if ids else np.empty(0, ID)
    return Rows(
        ids=ids,
        lengths=lengths,
        slot=slot,
        slot_row=slot_row,
        slot_position=slot_place - begin[slot_row],
        slot_target=everything[slot_place + 1].astype(np.int64),
        slot_temperature=kinds[slots % max(len(kinds), 1)],
    )


def key(prompt: tuple[int, ...], reply: tuple[int, ...]) -> bytes:
    """A sequence of ids as bytes: these hash and compare at the speed of memcmp."""
    return struct.pack(f"{len(prompt) + len(reply)}i", *prompt, *reply)


def maximal(keys: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """The keys that no other key starts with, and for every key the index of one that does.

    In sorted order all keys that start with `a` follow `a` directly, so it is enough to look at the
    next one.
    """
    rows: list[bytes] = []
    row_of: dict[bytes, int] = {}
    following = b""
    for text in sorted(set(keys), reverse=True):
        if not following.startswith(text):
            rows.append(text)
        row_of[text] = len(rows) - 1
        following = text
    return rows, row_of


def group_by_length(sizes: Array, budget: int) -> list[Array]:
    """Indices in groups of similar size: count of a group × its largest size ≤ budget.

    Args:
        sizes: [R] tokens per row.
        budget: padded tokens per group; a row above it goes alone.
    """
    order = np.argsort(-sizes, kind="stable")  # longest first: memory peaks early, not late
    groups = []
    start = 0
    while start < len(order):
        count = max(1, budget // max(int(sizes[order[start]]), 1))
        groups.append(order[start : start + count])
        start += count
    return groups


def split_by(labels: Array, count: int) -> list[Array]:
    """Ascending indices of each label 0 .. count-1."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels, minlength=count))[:-1]) if count else []
