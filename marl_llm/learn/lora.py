"""LoRA adapters through peft: only they are trained, and what is published is merged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from marl_llm.errors import ConfigError
from marl_llm.weights import named_weights

ADAPTER = "default"
PREFIX = "base_model.model."  # what peft puts before a model's own names


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: W + (alpha / rank) B A, with A [rank, in], B [out, rank], B = 0 at first.

    Source: Hu et al. 2021, arXiv 2106.09685. No dropout: it would move the ratio off 1.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"  # or the last parts of module names

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ConfigError(
                f"lora.rank must be >= 1 and alpha > 0, got {self.rank}, {self.alpha}"
            )


def attach(model: nn.Module, lora: Lora, seed: int) -> PeftModel:
    """Put fresh adapters into a model, in place, and freeze the rest.

    Args:
        model: a Hugging Face causal LM.
        lora: settings.
        seed: fixes the adapters' first values.
    """
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft accepts fractions
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():  # peft draws from the global generator
        torch.manual_seed(seed)
        return get_peft_model(model, config)  # type: ignore[arg-type]


@torch.no_grad()
def merged(model: PeftModel) -> dict[str, Tensor]:
    """Weights of the plain model that acts like base and adapters together, under its own names.

    Computed beside the model: merging in place and back would leave rounding in the base weights.
    """
    deltas = {
        f"{name}.base_layer.weight": module.get_delta_weight(ADAPTER)  # type: ignore[attr-defined]
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    out = {}
    for name, tensor in named_weights(model).items():
        if ".lora_" in name:
            continue
        own = name.removeprefix(PREFIX).replace(".base_layer.", ".")
        out[own] = (tensor + deltas[name]).to(tensor.dtype) if name in deltas else tensor
    return out
