"""Attention for one new token per row, registered with transformers under `NAME`.

Decoding spends most of a small model's time in attention: transformers' own function first repeats
keys and values for grouped query heads, a copy of everything that can be seen. Here the query heads
of a group become the rows of one small product with their shared keys, read where they lie. With
more than one token per row, or without a mask, transformers' function does the work.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "marl_llm_grouped"


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: object,  # the interface's: what other attention functions need
) -> tuple[Tensor, None]:
    """softmax(scaling · q kᵀ + mask) v, with query heads grouped by the keys they share.

    Args:
        module: the attention layer.
        query: [B, H, Q, D].
        key: [B, G, L, D], H a multiple of G.
        value: [B, G, L, E].
        attention_mask: [B, 1, Q, L], added to the scores.
        dropout: must be 0, as in evaluation mode.
        scaling: default D^-0.5.
        kwargs: handed on.

    Returns:
        ([B, Q, H, E], None).
    """
    rows, heads, fed, dim = query.shape
    groups, length = key.shape[1], key.shape[2]
    plain = attention_mask is not None and attention_mask.dtype == query.dtype and dropout == 0
    if fed != 1 or not plain or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    assert attention_mask is not None
    scaling = dim**-0.5 if scaling is None else scaling
    grouped = query.reshape(rows, groups, heads // groups, dim)
    if query.device.type == "cpu" and query.dtype == torch.float32:
        # two batched products: a fifth of the time of the fused kernel on such thin queries
        mask = attention_mask.expand(rows, groups, 1, length).reshape(-1, 1, length)
        scores = torch.baddbmm(
            mask, grouped.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scaling
        )
        out = torch.bmm(scores.softmax(-1), value.flatten(0, 1))
    else:
        out = F.scaled_dot_product_attention(
            grouped, key, value, attn_mask=attention_mask, scale=scaling
        )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


ALL_ATTENTION_FUNCTIONS.register(NAME, grouped_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
