"""Which models the engine can serve, found out by asking the model itself.

Architectures differ in what they keep between tokens and in whether they heed given positions and
masks. Rather than a list of names, a short text is run through the model as it comes, and through
the slots in two pieces; a model whose answers differ is refused before it can give wrong ones.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from marl_llm.errors import ModelError
from marl_llm.serve.decoder import Decoder
from marl_llm.serve.kv_store import KVShape
from marl_llm.serve.slot_cache import SlotCache

PROBE_TOKENS = 20  # more than a block


def context_of(model: PreTrainedModel, wanted: int | None) -> int:
    """Tokens that prompt and reply may have: what is wanted, or all that the model takes.

    Raises:
        ModelError: more is wanted than the model takes, or the model does not say.
    """
    config = model.config.get_text_config()
    most = config.to_dict().get("max_position_embeddings")
    if most is None and wanted is None:
        raise ModelError(
            f"{_name(model)} does not say how many tokens it takes; set the engine's context"
        )
    if wanted is not None and wanted < 2:
        raise ModelError(f"context must be at least 2 tokens, got {wanted}")
    if most is not None and wanted is not None and wanted > most:
        raise ModelError(
            f"context {wanted} is more than the {most} tokens that {_name(model)} takes; "
            f"set it to {most} or less"
        )
    return int(wanted if wanted is not None else most)


@torch.inference_mode()
def shape_of(model: PreTrainedModel, context: int) -> KVShape:
    """What a token leaves behind in this model's cache.

    Raises:
        ModelError: the cache is not one of keys and values over all earlier tokens.
    """
    if model.config.is_encoder_decoder:
        raise ModelError(f"{_name(model)} is an encoder-decoder; use a decoder-only causal model")
    past = model(input_ids=_probe_ids(model)[:, :2], use_cache=True).get("past_key_values")
    if not isinstance(past, DynamicCache):
        raise ModelError(
            f"{_name(model)} keeps a state of its own kind ({type(past).__name__}) between "
            "tokens; the engine serves models with an attention cache, use one of those"
        )
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
    shapes = {(tuple(layer.keys.shape), tuple(layer.values.shape)) for layer in past.layers}
    if len(shapes) != 1:
        raise ModelError(
            f"the layers of {_name(model)} keep keys and values of {len(shapes)} different "
            "shapes; the engine serves models whose layers are alike"
        )
    keys, values = past.layers[0].keys, past.layers[0].values
    return KVShape(
        len(past.layers), keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device
    )


@torch.inference_mode()
def probe(decoder: Decoder) -> None:
    """Check that decoding through slots gives what the model gives.

    Two rows of different lengths share the slots. Differences are compared with the spread of the
    log-probs: 1e-3 of it in float32, a tenth in half precision.

    Raises:
        ModelError: they differ, or the model's own logits are not finite.
    """
    model = decoder.model
    whole = _probe_ids(model)[:, : min(PROBE_TOKENS, decoder.context)]
    short = whole.shape[1] // 2
    expected = torch.stack(
        [
            model(input_ids=whole[:, :length], use_cache=False).logits[0, -1].float()
            for length in (short, whole.shape[1])
        ]
    ).log_softmax(-1)
    if not bool(torch.isfinite(expected).all()):
        raise ModelError(f"{_name(model)} gives logits that are not finite; its weights are broken")
    found = _through_slots(decoder, whole[0].tolist(), short).float().log_softmax(-1)
    tolerance = 1e-3 if decoder.shape.dtype == torch.float32 else 0.1
    spread = float(expected.std(-1).mean())
    if float((found - expected).square().mean().sqrt()) > tolerance * spread + 1e-6:
        raise ModelError(
            f"{_name(model)} does not heed given positions and masks, so rows of different "
            "length cannot share a batch; the engine cannot serve this architecture"
        )


def _through_slots(decoder: Decoder, ids: list[int], short: int) -> Tensor:
    """Logits [2, V] after the first `short` ids and after all, both rows fed together."""
    cache = SlotCache(decoder.shape)
    rows = [tuple(ids[:short]), tuple(ids)]
    slots = decoder.place(cache, 0, [row[:-1] for row in rows], 2)
    order = np.argsort(slots)
    tokens = np.array([rows[i][-1] for i in order])
    lengths = np.array([len(rows[i]) - 1 for i in order])
    logits = decoder.step(cache, tokens, lengths)
    decoder.prefixes.clear()
    return logits[torch.from_numpy(slots).to(logits.device)]


def _probe_ids(model: PreTrainedModel) -> Tensor:
    """Some ids of the vocabulary, [1, PROBE_TOKENS]; which does not matter."""
    size = model.get_input_embeddings().weight.shape[0]
    ids = 7 * torch.arange(1, PROBE_TOKENS + 1) % size
    return ids[None].to(model.device)


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} {model.config.name_or_path!r}"
