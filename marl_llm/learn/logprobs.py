"""Log-probs of sampled tokens under a causal language model, at the sampling temperature.

The output layer only sees the hidden states that predict a slot: with a vocabulary of 150,000 the
logits of whole rows would be the largest tensor of the run. A hook on the model's own output layer
does this, so that what a model does after it (soft caps, scales) still happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from marl_llm.learn.rows import Array, Microbatch, Rows

LEAST = -100.0  # nats, in place of the -inf of a barred id: 0 × -inf is not 0
STATISTICS = ("old_logprob", "entropy", "certainty", "logit", "collision")


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
    everything = torch.log_softmax(_cooled(_logits(model, batch), batch), dim=-1)
    logprobs = everything.gather(1, batch.targets[:, None]).squeeze(1)
    with torch.no_grad():
        return Scored(logprobs, -(everything.exp() * everything.clamp_min(LEAST)).sum(-1))


def _logits(model: nn.Module, batch: Microbatch) -> Tensor:
    """The model's own logits at every slot, [s, V] float32."""
    with only_positions(model, batch.positions):
        return model(input_ids=batch.input_ids, use_cache=False).logits[0].float()


def _cooled(logits: Tensor, batch: Microbatch) -> Tensor:
    return logits if batch.temperatures is None else logits / batch.temperatures[:, None]


def score_all(model: nn.Module, rows: Rows, budget: int) -> Array:
    """Log-probs of all M sampled tokens, [M] float32 nats, without gradient."""
    out = np.empty(len(rows.slot), np.float32)
    device = next(model.parameters()).device
    with torch.no_grad():
        for batch in rows.microbatches(budget):
            scored = score(model, batch.to(device)).logprobs.cpu().numpy()
            out[batch.tokens.numpy()] = scored[batch.slot.numpy()]
    return out


def statistics_all(model: nn.Module, rows: Rows, budget: int) -> dict[str, Array]:
    """What the policy says of all M sampled tokens, by name, [M] float64 each, without gradient.

        old_logprob = log π(y)              entropy = -Σ_v π log π       collision = Σ_v π²
        certainty = Σ_v u log(u / π), u uniform                          logit of y, before T

    Nats, at the temperature of sampling. The log-prob of a barred id counts as `LEAST`.
    """
    device = next(model.parameters()).device
    columns = {name: np.empty(len(rows.slot)) for name in STATISTICS}
    with torch.no_grad():
        for host in rows.microbatches(budget):
            batch = host.to(device)
            logits, target = _logits(model, batch), batch.targets[:, None]
            nats = torch.log_softmax(_cooled(logits, batch), dim=-1)
            chances, bounded = nats.exp(), nats.clamp_min(LEAST)
            found = (
                nats.gather(1, target)[:, 0],
                -(chances * bounded).sum(-1),
                -bounded.mean(-1) - math.log(nats.shape[1]),
                logits.gather(1, target)[:, 0],
                chances.square().sum(-1),
            )
            for column, values in zip(columns.values(), found, strict=True):
                column[host.tokens.numpy()] = values.cpu().numpy()[host.slot.numpy()]
    return columns


def hidden_all(model: nn.Module, rows: Rows, budget: int) -> tuple[Array, Tensor]:
    """Log-probs of all M sampled tokens and what the output layer saw for them, without gradient.

    Returns:
        [M] float32 nats, as from `score_all`; and [M, H] float32 on the model's device.
    """
    logprobs = np.empty(len(rows.slot), np.float32)
    device = next(model.parameters()).device
    hidden: Tensor | None = None
    seen: list[Tensor] = []
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]  # every causal LM has
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with torch.no_grad():
            for host in rows.microbatches(budget):
                batch = host.to(device)
                scored = score(model, batch).logprobs.cpu().numpy()
                logprobs[host.tokens.numpy()] = scored[host.slot.numpy()]
                states = seen.pop().flatten(0, 1).index_select(0, batch.positions).float()
                if hidden is None:
                    hidden = states.new_empty(len(logprobs), states.shape[1])
                hidden[batch.tokens] = states.index_select(0, batch.slot)
    finally:
        hook.remove()
    return logprobs, torch.empty(0, 0, device=device) if hidden is None else hidden


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
