"""Log-probs of given continuations, through slots and prefix cache like those of decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from marl_llm.errors import TrainingError
from marl_llm.serve.decoder import Decoder
from marl_llm.serve.prefix_cache import Ids
from marl_llm.serve.slot_cache import SlotCache

Pair = tuple[Ids, Ids]  # prompt, continuation

SLOT_TOKENS = 65_536  # tokens of all slots of one pass
LOGITS = 2**25  # numbers in the logits of one pass: 128 MB


def score(
    decoder: Decoder, sequences: Sequence[Pair], temperature: float, most: int
) -> list[list[float]]:
    """Log-probs of each continuation's ids after its prompt: log softmax(logits / T).

    Args:
        decoder: the model.
        sequences: prompts of at least one token; equal pairs are computed once.
        temperature: T; 0 is taken as 1.
        most: sequences in one pass.

    Raises:
        TrainingError: a log-prob is not finite.
    """
    known: dict[Pair, list[float]] = {pair: [] for pair in sequences}
    cache = SlotCache(decoder.shape)
    todo = sorted((pair for pair in known if pair[1]), key=lambda pair: (len(pair[0]), pair))
    for chunk in _chunks(todo, most, decoder.model.get_input_embeddings().weight.shape[0]):
        known.update(zip(chunk, _score(decoder, cache, chunk, temperature or 1.0), strict=True))
    for number, pair in enumerate(sequences):
        if not np.isfinite(known[pair]).all():
            raise TrainingError(
                f"the log-probs of sequence {number} are not finite; the weights have diverged, go "
                "back to an earlier checkpoint and lower the learning rate"
            )
    return [list(known[pair]) for pair in sequences]


def _chunks(pairs: Sequence[Pair], most: int, vocabulary: int) -> Iterator[list[Pair]]:
    """Consecutive pairs that pass through the model together."""
    chunk: list[Pair] = []
    length = fed = 0
    for pair in pairs:
        length = max(length, len(pair[0]) + len(pair[1]))
        fed = max(fed, len(pair[1]))
        rows = len(chunk) + 1
        if chunk and (
            rows > most or rows * length > SLOT_TOKENS or rows * fed * vocabulary > LOGITS
        ):
            yield chunk
            chunk, length, fed = [], len(pair[0]) + len(pair[1]), len(pair[1])
        chunk.append(pair)
    if chunk:
        yield chunk


def _score(
    decoder: Decoder, cache: SlotCache, pairs: Sequence[Pair], temperature: float
) -> list[list[float]]:
    """One pass: prompts but their last token into slots, then that one and the continuation."""
    slots = decoder.place(cache, 0, [prompt[:-1] for prompt, _ in pairs], len(pairs))
    width = max(len(ids) for _, ids in pairs)
    tokens = np.zeros((len(pairs), width + 1), np.int64)
    lengths = np.empty(len(pairs), np.int64)
    for slot, (prompt, ids) in zip(slots.tolist(), pairs, strict=True):
        tokens[slot, : len(ids) + 1] = (prompt[-1], *ids)
        lengths[slot] = len(prompt) - 1
    cache.store.grow(len(pairs), int(lengths.max()) + width + 1, len(pairs))
    logits = decoder.extend(cache, 0, tokens[:, :-1], lengths)
    nats = _chosen(logits, torch.from_numpy(tokens[:, 1:]).to(logits.device), temperature)
    table = nats.cpu().tolist()
    return [table[slot][: len(ids)] for slot, (_, ids) in zip(slots.tolist(), pairs, strict=True)]


def _chosen(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probs of the ids [B, K] under softmax(logits / T), logits [B, K, V]; float32."""
    scaled = logits.float() / temperature
    return scaled.gather(-1, ids[:, :, None])[:, :, 0] - scaled.logsumexp(-1)
