"""Log-probs of sampled tokens under a causal language model, at the sampling temperature.

The output layer only sees the hidden states that predict a slot: with a vocabulary of 150,000 the
logits of whole rows would be the largest tensor of the run. A hook on the model's own output layer
does this, so that what a model does after it (soft caps, scales) still happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from marl_llm.learn.rows import Array, Microbatch, Rows


@dataclass(frozen=True, slots=True)
class Scored:
    """What one pass says of a micro-batch's slots."""

    logprobs: Tensor  # [s] float32, nats, with gradient where the caller has it on
    entropy: Tensor  # [s] float32, nats, without gradient


def score(model: nn.Module, batch: Microbatch) -> Scored:
    """Log-prob of the target, given everything before it, at every slot.

        log π = log softmax(logits / T)[target],   H = -Σ_v π(v) log π(v),   in float32

    Args:
        model: a Hugging Face causal LM; the caller sets train or eval mode and gradient.
        batch: a micro-batch on the model's device.
    """
    with only_positions(model, batch.positions):
        logits = model(input_ids=batch.input_ids, use_cache=False).logits[0].float()
    if batch.temperatures is not None:
        logits = logits / batch.temperatures[:, None]
    everything = torch.log_softmax(logits, dim=-1)
    logprobs = everything.gather(1, batch.targets[:, None]).squeeze(1)
    with torch.no_grad():
        # A barred id has log π = -inf, and 0 × -inf is not 0.
        return Scored(logprobs, -(everything.exp() * everything.clamp_min(-100.0)).sum(-1))


def score_all(model: nn.Module, rows: Rows, budget: int) -> Array:
    """Log-probs of all M sampled tokens, [M] float32 nats, without gradient."""
    out = np.empty(len(rows.slot), np.float32)
    device = next(model.parameters()).device
    with torch.no_grad():
        for batch in rows.microbatches(budget):
            scored = score(model, batch.to(device)).logprobs.cpu().numpy()
            out[batch.tokens.numpy()] = scored[batch.slot.numpy()]
    return out


@contextmanager
def only_positions(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """While open, the model's output layer sees only these positions: logits are [1, s, V].

    Args:
        model: a Hugging Face causal LM.
        positions: [s] indices into the flattened [B * T].
    """

    def gather(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].flatten(0, 1).index_select(0, positions)[None],)

    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]  # every causal LM has
    hook = head.register_forward_pre_hook(gather)
    try:
        yield
    finally:
        hook.remove()
