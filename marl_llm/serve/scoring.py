"""Log-probs of given continuations, through slots and prefix cache like those of decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from marl_llm.errors import TrainingError
from marl_llm.serve.admission import Arrival, pick, remember, seat
from marl_llm.serve.decoder import Decoder
from marl_llm.serve.prefix_cache import Ids
from marl_llm.serve.slot_cache import SlotCache

Pair = tuple[Ids, Ids]  # prompt, continuation

SLOT_TOKENS = 65_536  # of all slots of one pass
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
    found: dict[Pair, list[float]] = {pair: [] for pair in sequences}
    queue = deque(
        Arrival(pair, pair[0] + pair[1][:-1], len(pair[0]) - 1) for pair in found if pair[1]
    )
    if queue:
        widest = max(len(arrival.item[1]) for arrival in queue)
        longest = max(len(arrival.ids) for arrival in queue)
        most = max(1, min(most, SLOT_TOKENS // longest, LOGITS // (decoder.vocabulary * widest)))
    cache = SlotCache(decoder.shape)
    while queue:
        arrivals = pick(queue, decoder.prefixes, most, decoder.pass_tokens)
        found.update(_pass(decoder, cache, arrivals, temperature or 1.0))
    for number, pair in enumerate(sequences):
        if not np.isfinite(found[pair]).all():
            raise TrainingError(
                f"the log-probs of sequence {number} are not finite; the weights have diverged, go "
                "back to an earlier checkpoint and lower the learning rate"
            )
    return [list(found[pair]) for pair in sequences]


def _pass(
    decoder: Decoder, cache: SlotCache, arrivals: list[Arrival[Pair]], temperature: float
) -> dict[Pair, list[float]]:
    lengths = seat(decoder, cache, 0, arrivals, len(arrivals))
    fed = np.array([len(arrival.ids) for arrival in arrivals]) - lengths
    tokens = np.concatenate(
        [arrival.ids[length:] for arrival, length in zip(arrivals, lengths, strict=True)]
    )
    # the last tokens of each row predict its continuation
    counts = np.array([len(arrival.item[1]) for arrival in arrivals])
    keep = np.concatenate(
        [np.arange(end - count, end) for end, count in zip(np.cumsum(fed), counts, strict=True)]
    )
    logits = decoder.feed(cache, 0, lengths, fed, tokens, torch.from_numpy(keep))
    remember(decoder.prefixes, cache, 0, arrivals)
    ids = torch.tensor([i for arrival in arrivals for i in arrival.item[1]], device=logits.device)
    nats = _chosen(logits, ids, temperature).cpu().numpy()
    return {
        arrival.item: part.tolist()
        for arrival, part in zip(arrivals, np.split(nats, np.cumsum(counts)[:-1]), strict=True)
    }


def _chosen(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probs of the ids [K] under softmax(logits / T), logits [K, V]; float32."""
    scaled = logits.float() / temperature
    return scaled.gather(-1, ids[:, None])[:, 0] - scaled.logsumexp(-1)
