"""Attention over a `ragged.Layout`, registered with transformers under `NAME`.

The keys and values of each row lie in its slot and are read there. Query heads that share keys are
folded into the rows of one product with them, so that keys and values are never repeated. Without a
layout (training, or a plain call of the model) transformers' own function does the work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from marl_llm.errors import ModelError
from marl_llm.serve.ragged import Layout

NAME = "marl_llm_ragged"
FOREIGN = ("softcap", "s_aux", "position_bias")  # attention of other kinds, asked for by these
SMALL = 1 << 22  # scores for which two plain products beat the fused kernel on a CPU


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,  # the interface's: what other attention functions need
) -> tuple[Tensor, None]:
    """softmax(scaling · q kᵀ) v, each row over its own slot.

    Args:
        module: the attention layer.
        query: [1, H, T, D], the tokens of all rows in a line.
        key: [units, G, L, D]: all slots of the layer; H is a multiple of G.
        value: [units, G, L, E].
        attention_mask: not used with a layout.
        dropout: not used with a layout.
        scaling: default D^-0.5.
        layout: of the rows; None = an ordinary call.
        kwargs: handed on in an ordinary call.

    Returns:
        ([1, T, H, E], None).
    """
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    for name in FOREIGN:
        if kwargs.get(name) is not None:
            raise ModelError(
                f"{type(module).__name__} uses {name} in its attention, which the engine does not "
                "compute; use another architecture"
            )
    heads, dim = query.shape[1], query.shape[3]
    line = query[0].transpose(0, 1) * (dim**-0.5 if scaling is None else scaling)  # [T, H, D]
    outs = []
    for group in layout.groups:
        tokens = line[group.tokens]
        if group.take is not None:
            tokens = tokens.index_select(0, group.take)
        out = attend(
            tokens.view(group.rows, group.fed, heads, dim),
            key[group.slots, :, : group.seen],
            value[group.slots, :, : group.seen],
            group.mask,
        ).flatten(0, 1)
        outs.append(out if group.back is None else out.index_select(0, group.back))
    return (outs[0] if len(outs) == 1 else torch.cat(outs))[None], None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ + mask) v for rows of equal size.

    Args:
        query: [B, Q, H, D], scaled.
        key: [B, G, L, D].
        value: [B, G, L, E].
        mask: [B, Q, L].

    Returns:
        [B, Q, H, E].
    """
    rows, fed, heads, dim = query.shape
    groups, seen = key.shape[1], key.shape[2]
    shared = heads // groups
    # [B, G, shared * Q, D]: the heads that share keys become rows of one product
    folded = query.view(rows, fed, groups, shared, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(rows, groups, shared * fed, dim)
    if query.device.type == "cpu" and folded[..., 0].numel() * seen <= SMALL:
        scores = torch.bmm(folded.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)).float()
        scores.view(rows, groups, shared, fed, seen).add_(mask[:, None, None])
        out = torch.bmm(scores.softmax(-1).to(value.dtype), value.flatten(0, 1))
    else:
        out = F.scaled_dot_product_attention(
            folded, key, value, attn_mask=mask[:, None].repeat(1, 1, shared, 1), scale=1.0
        )
    out = out.view(rows, groups, shared, fed, value.shape[-1]).permute(0, 3, 1, 2, 4)
    return out.reshape(rows, fed, heads, value.shape[-1])


ALL_ATTENTION_FUNCTIONS.register(NAME, ragged_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
