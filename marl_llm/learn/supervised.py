"""Supervised training on demonstrations: the cold start that teaches a model the format.

The same rows and log-probs as in reinforcement. Of a minibatch, equal demonstrations are computed
once and weigh as often as they occur, so many demonstrations cost what the distinct ones do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from marl_llm.errors import ConfigError, TrainingError
from marl_llm.learn.logprobs import score
from marl_llm.learn.optimizer import adamw, check_rates, check_schedule, learning_rate
from marl_llm.learn.rows import Array, Pair, Rows, pack
from marl_llm.seeds import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How demonstrations are fitted. The schedule counts optimizer steps and ends with the last."""

    steps: int = 300
    batch: int = 128  # demonstrations per step
    lr: float = 3e-3
    schedule: str = "cosine"  # constant, linear or cosine
    warmup: int = 10  # steps of the rise
    lr_floor: float = 0.1  # lowest rate, as a fraction of lr
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    micro_tokens: int = 8192  # padded tokens that pass through the model at once

    def __post_init__(self) -> None:
        # A trial of a few steps may end before its warm-up does.
        check_schedule(self.schedule, self.warmup, max(self.steps, self.warmup + 1), self.lr_floor)
        if min(self.steps, self.batch, self.micro_tokens) < 1:
            raise ConfigError(
                "steps, batch and micro_tokens must be at least 1, got "
                f"{self.steps}, {self.batch}, {self.micro_tokens}"
            )
        check_rates(self.lr, self.weight_decay, self.max_grad_norm)


def fit(model: nn.Module, pairs: Sequence[Pair], settings: FitSettings, seed: int) -> list[float]:
    """Fit a model, in place, to replies given their prompts.

    Args:
        model: a Hugging Face causal LM in float32; left in eval mode.
        pairs: demonstrations as (prompt ids, reply ids); only reply tokens are learnt.
        settings: how.
        seed: fixes the order of the demonstrations.

    Returns:
        Per step, the mean negative log-likelihood of a reply token, nats, before the step.

    Raises:
        ConfigError: there is no demonstration with a reply.
        TrainingError: a loss is not finite; the step that met it is not taken.
    """
    pairs = [pair for pair in pairs if pair[1]]
    if not pairs:
        raise ConfigError("no demonstration has a reply; supervised training needs at least one")
    model.eval()
    optimizer = adamw(model, settings.betas, settings.weight_decay)
    trained = [p for p in model.parameters() if p.requires_grad]
    losses = []
    for step, index in zip(
        range(settings.steps), batches(len(pairs), settings.batch, seed), strict=False
    ):
        rate = learning_rate(
            settings.lr, settings.schedule, settings.warmup, settings.steps, settings.lr_floor, step
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        losses.append(likelihood(model, pack([pairs[i] for i in index]), settings.micro_tokens))
        norm = float(nn.utils.clip_grad_norm_(trained, settings.max_grad_norm, foreach=True))
        if not np.isfinite(losses[-1] + norm):
            raise TrainingError(
                f"step {step} of supervised training has loss {losses[-1]} and gradient norm "
                f"{norm}, which must be finite; lower its learning rate"
            )
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return losses


def likelihood(model: nn.Module, rows: Rows, budget: int) -> float:
    """Mean negative log-likelihood of all reply tokens, nats; its gradient is added.

    Args:
        model: a causal LM.
        rows: of the demonstrations.
        budget: padded tokens per micro-batch.
    """
    device = next(model.parameters()).device
    total = 0.0
    for host in rows.microbatches(budget):
        batch = host.to(device)
        counts = torch.bincount(batch.slot, minlength=len(batch.targets))
        loss = -(score(model, batch).logprobs * counts).sum() / len(rows.slot)
        loss.backward()
        total += loss.item()
    return total


def batches(count: int, size: int, seed: int) -> Iterator[Array]:
    """Endless minibatches of indices 0 .. count-1: random orders of all, laid end to end.

    Args:
        count: how many there are.
        size: per minibatch.
        seed: of the orders.
    """
    waiting = np.empty(0, np.int64)
    passes = 0
    while True:
        while len(waiting) < size:
            order = generator(seed, "demonstrations", passes).permutation(count)
            waiting = np.concatenate([waiting, order])
            passes += 1
        yield waiting[:size]
        waiting = waiting[size:]
