"""A pass over rows of different lengths without padding: all tokens in a line, and who sees whom.

Linear layers see the fed tokens of all rows end to end, [1, T]. Only attention needs to know the
rows: a `Layout` says in which slot and where each token's keys and values go, and how neighbouring
rows are grouped for it. Rows that are fed one token are one group, as they come; of the others,
those of similar length are padded to the longest of their group, inside attention alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marl_llm.serve.kv_store import BLOCK, KVStore, blocks_of

FREE = 1 << 16  # scores of a group below which padding costs less than another group


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive rows that attend together."""

    slots: slice
    tokens: slice  # of the line
    rows: int
    fed: int  # tokens per row, padded
    seen: int  # tokens of each slot that may be seen, a multiple of 16
    mask: Tensor  # [rows, fed, seen]: 0 where a token may look, else the dtype's least number
    take: Tensor | None  # [rows * fed] which token of the group stands where; None = all as is
    back: Tensor | None  # [tokens] where the group's tokens stand among rows * fed


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a pass belong."""

    positions: Tensor  # [T] int64, in its row
    index: Tensor  # [T * heads] int64, into a store seen as [units * heads * length]
    groups: tuple[Group, ...]
    last: Tensor  # [R] int64: each row's last token in the line


def lay_out(store: KVStore, first: int, lengths: np.ndarray, fed: np.ndarray) -> Layout:
    """The layout of a pass over R consecutive slots.

    Args:
        store: of the slots, with room for what is fed.
        first: the first slot.
        lengths: [R] int: tokens that each slot holds already.
        fed: [R] int: tokens to be fed to each, at least 1, ascending.
    """
    rows, heads = len(lengths), store.shape.heads
    ends = np.cumsum(fed)
    starts = ends - fed
    row = np.repeat(np.arange(rows), fed)
    positions = np.arange(ends[-1]) + (lengths - starts)[row]
    unit = ((first + row) * heads)[:, None] + np.arange(heads)
    index = unit * store.length + positions[:, None]
    device = store.shape.device
    return Layout(
        positions=torch.from_numpy(positions).to(device),
        index=torch.from_numpy(index.reshape(-1)).to(device),
        groups=tuple(
            _group(store, first, begin, end, lengths[begin:end], fed[begin:end], starts)
            for begin, end in _cuts(fed, lengths + fed)
        ),
        last=torch.from_numpy(ends - 1).to(device),
    )


def _cuts(fed: np.ndarray, seen: np.ndarray) -> list[tuple[int, int]]:
    """Where to cut rows into groups: at most half of a group's scores may be padding."""
    singles = int(np.count_nonzero(fed == 1))
    cuts = [(0, singles)] if singles else []
    begin, real, width = singles, 0, 0
    for i, (count, reach) in enumerate(
        zip(fed[singles:].tolist(), seen[singles:].tolist(), strict=True), singles
    ):
        area = (i + 1 - begin) * count * max(width, reach)
        if i > begin and area > FREE and area > 2 * (real + count * reach):
            cuts.append((begin, i))
            begin, real, width = i, 0, 0
        real, width = real + count * reach, max(width, reach)
    return [*cuts, (begin, len(fed))] if begin < len(fed) else cuts


def _group(
    store: KVStore,
    first: int,
    begin: int,
    end: int,
    lengths: np.ndarray,
    fed: np.ndarray,
    starts: np.ndarray,
) -> Group:
    device, dtype = store.shape.device, store.shape.dtype
    width, seen = int(fed[-1]), BLOCK * blocks_of(int((lengths + fed).max()))
    place = np.arange(width)
    take = back = None
    if fed[0] != width:
        # padding repeats a row's last token
        at = (starts[begin:end] - starts[begin])[:, None] + np.minimum(place, fed[:, None] - 1)
        take = torch.from_numpy(at.reshape(-1)).to(device)
        back = torch.from_numpy(np.flatnonzero(place < fed[:, None])).to(device)
    positions = torch.from_numpy(lengths[:, None] + place).to(device)
    hidden = torch.arange(seen, device=device) > positions[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return Group(
        slots=slice(first + begin, first + end),
        tokens=slice(int(starts[begin]), int(starts[begin] + fed.sum())),
        rows=end - begin,
        fed=width,
        seen=seen,
        mask=mask.masked_fill_(hidden, torch.finfo(dtype).min),
        take=take,
        back=back,
    )
