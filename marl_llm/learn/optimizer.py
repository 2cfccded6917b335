"""AdamW and its learning rate, the same for reinforcement and supervised training."""

from __future__ import annotations

import math

import torch
from torch import nn

from marl_llm.errors import ConfigError, nearest

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate(
    peak: float, schedule: str, warmup: int, total: int, floor: float, done: int
) -> float:
    """The learning rate of step `done` + 1.

        warm-up: peak · (done + 1) / warmup
        after:   peak · (floor + (1 - floor) · f(x)),   x = (done - warmup) / (total - warmup)
        f:       constant 1;   linear 1 - x;   cosine (1 + cos πx) / 2

    Args:
        peak: highest rate.
        schedule: constant, linear or cosine.
        warmup: steps of the rise.
        total: steps after which the rate stays at its floor; not read when constant.
        floor: lowest rate, as a fraction of the peak.
        done: steps taken so far.
    """
    if done < warmup:
        return peak * (done + 1) / warmup
    if schedule == "constant":
        return peak
    x = min((done - warmup) / (total - warmup), 1.0)
    fall = 1 - x if schedule == "linear" else (1 + math.cos(math.pi * x)) / 2
    return peak * (floor + (1 - floor) * fall)


def check_schedule(schedule: str, warmup: int, total: int, floor: float) -> None:
    """Refuse a schedule that `learning_rate` cannot follow."""
    if schedule not in SCHEDULES:
        raise ConfigError(f"schedule {schedule!r} is unknown; {nearest(schedule, SCHEDULES)}")
    if warmup < 0 or not 0 <= floor <= 1:
        raise ConfigError(f"warmup must be >= 0 and the floor in [0, 1], got {warmup} and {floor}")
    if schedule != "constant" and total <= warmup:
        raise ConfigError(
            f"schedule {schedule!r} needs the total number of steps, more than the warm-up of "
            f"{warmup}; got {total}"
        )


def check_rates(lr: float, weight_decay: float, max_grad_norm: float) -> None:
    """Refuse rates that no optimizer step can be made with."""
    if not 0 <= lr <= 1 or not weight_decay >= 0 or not max_grad_norm > 0:
        raise ConfigError(
            "lr must be in [0, 1], weight_decay >= 0 and max_grad_norm > 0, got "
            f"{lr}, {weight_decay}, {max_grad_norm}"
        )


def adamw(model: nn.Module, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; biases and norm weights (one dimension) do not decay.

    The learning rate is set before each step.

    Raises:
        ConfigError: a trainable parameter is below float32, where steps smaller than about 1/256 of
            a weight (bfloat16) are rounded away.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, parameter in trained:
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"parameter {name!r} is {parameter.dtype}, and small updates would be rounded "
                "away; load the model in float32, or train LoRA adapters on it"
            )
    groups = [
        {"params": [p for _, p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for _, p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], betas=betas, foreach=True, fused=False
    )
