"""Which models the engine can serve, found out by asking the model itself.

Architectures differ in what they keep between tokens, and in whether they heed given positions.
Rather than a list of names, a short text is run through the model as it comes, and through slots in
ragged pieces; a model whose answers differ is refused before it can give wrong ones.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from marl_llm.errors import ModelError
from marl_llm.serve.attention import NAME
from marl_llm.serve.decoder import Decoder
from marl_llm.serve.kv_store import KVShape
from marl_llm.serve.slot_cache import SlotCache

PROBE_TOKENS = 20  # more than a block


def context_of(model: PreTrainedModel, wanted: int | None) -> int:
    """Tokens that prompt and reply may have: what is wanted, or all that the model takes.

    Raises:
        ModelError: more is wanted than the model takes, or the model does not say, or its position
            frequencies depend on the longest row of a batch.
    """
    stated = model.config.get_text_config().to_dict()
    most = stated.get("max_position_embeddings", stated.get("n_positions"))
    if wanted is not None and wanted < 2:
        raise ModelError(f"context must be at least 2 tokens, got {wanted}")
    if most is None and wanted is None:
        raise ModelError(
            f"{_name(model)} does not say how many tokens it takes; set the engine's context"
        )
    if most is not None and wanted is not None and wanted > most:
        raise ModelError(
            f"context {wanted} is more than the {most} tokens that {_name(model)} takes; "
            f"set it to {most} or less"
        )
    context = wanted if wanted is not None else int(most or 0)
    rope = stated.get("rope_parameters") or {}
    short = rope.get("original_max_position_embeddings") or context
    if rope.get("rope_type") == "longrope" and context > short:
        raise ModelError(
            f"{_name(model)} changes its position frequencies beyond {short} tokens, for all rows "
            f"at once; set the engine's context (now {context}) to at most {short}"
        )
    return context


@torch.inference_mode()
def study(model: PreTrainedModel, context: int) -> tuple[Tensor, KVShape]:
    """Run a short text through the model as it comes.

    Returns:
        (logits [P, V] after each of its tokens, what a token leaves behind in the model's cache).

    Raises:
        ModelError: the cache is not one of keys and values over all earlier tokens, or the logits
            are not finite.
    """
    if model.config.is_encoder_decoder:
        raise ModelError(f"{_name(model)} is an encoder-decoder; use a decoder-only causal model")
    ids = _probe_ids(model)[:, : min(PROBE_TOKENS, context)]
    output = model(input_ids=ids, use_cache=True)
    past = output.get("past_key_values")
    if not isinstance(past, DynamicCache):
        raise ModelError(
            f"{_name(model)} keeps a state of its own kind ({type(past).__name__}) between "
            "tokens; the engine serves models with an attention cache, use one of those"
        )
    shape = _shape(model, past, context)
    logits = output.logits[0].float()
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(f"{_name(model)} gives logits that are not finite; its weights are broken")
    return logits, shape


@torch.inference_mode()
def probe(decoder: Decoder, expected: Tensor) -> None:
    """Check that ragged passes over slots give what the model gives by itself.

    Two rows share the slots; the second is fed in two pieces. Differences are compared with the
    spread of the log-probs: 1e-3 of it in float32, a tenth in half precision.

    Args:
        decoder: of the model.
        expected: from `study`.

    Raises:
        ModelError: they differ, or the model does not let its attention be replaced.
    """
    model = decoder.model
    if model.config._attn_implementation != NAME:
        raise ModelError(
            f"{_name(model)} does not take other attention functions; the engine cannot serve "
            "this architecture"
        )
    ids = _probe_ids(model)[0, : len(expected)].cpu().numpy()
    count, half = len(ids), len(ids) // 2
    cache = SlotCache(decoder.shape)
    cache.store.grow(2, count, 2)
    decoder.feed(cache, 1, np.array([0]), np.array([half]), ids[:half])
    found = decoder.feed(
        cache,
        0,
        np.array([0, half]),
        np.array([1, count - half]),
        np.concatenate([ids[:1], ids[half:]]),
    )
    wanted = expected[[0, -1]].log_softmax(-1)
    tolerance = 1e-3 if decoder.shape.dtype == torch.float32 else 0.1
    spread = float(wanted.std(-1).mean())
    error = float((found.float().log_softmax(-1) - wanted).square().mean().sqrt())
    if not error <= tolerance * spread + 1e-6:
        raise ModelError(
            f"{_name(model)} does not heed given positions or the engine's attention, so rows of "
            "different length cannot share a pass; the engine cannot serve this architecture"
        )


def _shape(model: PreTrainedModel, past: DynamicCache, context: int) -> KVShape:
    shapes = set()
    for layer in past.layers:
        if isinstance(layer, DynamicSlidingWindowLayer):
            if layer.sliding_window < context:
                raise ModelError(
                    f"{_name(model)} attends to the last {layer.sliding_window} tokens only in "
                    f"some layers; set the engine's context (now {context}) to at most that"
                )
        elif type(layer) is not DynamicLayer:
            raise ModelError(
                f"{_name(model)} has a {type(layer).__name__} in its cache; the engine serves "
                "models whose every layer attends to keys and values, use one of those"
            )
        keys, values = layer.keys, layer.values
        assert keys is not None and values is not None
        shapes.add((keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device))
    if len(shapes) != 1:
        raise ModelError(
            f"the layers of {_name(model)} keep keys and values of different shapes or devices; "
            "the engine serves models whose layers are alike, on one device"
        )
    return KVShape(len(past.layers), *shapes.pop())


def _probe_ids(model: PreTrainedModel) -> Tensor:
    """Some ids of the vocabulary, [1, PROBE_TOKENS]; which does not matter."""
    size = int(model.config.get_text_config().vocab_size)
    return (7 * torch.arange(1, PROBE_TOKENS + 1) % size)[None].to(model.device)


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} {model.config.name_or_path!r}"
