"""What a policy takes: parameters, bytes of memory, tokens of context; known without its weights.

A model's size comes from its config, laid out without memory, or from what the experiment declares
when the config is not on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

from marl_llm.learn.learner import LearnerSettings
from marl_llm.serve.models import DTYPES
from marl_llm.serve.sources import EngineSettings, ModelSource, PretrainedModel, TinyModel

MASTER = 4  # bytes of a trained parameter, its gradient and each of AdamW's two moments: float32
ADAPTERS = 0.01  # of the parameters; rank 16 on all linear layers of a 4B model is 0.8 %


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How large a model is."""

    parameters: int
    cache_values: int | None  # numbers that one token leaves in the cache; None = unknown
    context: int | None  # tokens that it takes; None = unknown
    source: str  # where these come from


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one policy, in bytes; activations of a pass come on top."""

    weights: int  # in the learner
    gradients: int
    optimizer: int
    reference: int
    served: int  # the engine's copy of the weights
    cache: int | None  # keys and values of a full batch of requests, and of remembered prefixes

    @property
    def certain(self) -> int:
        """What is taken from the first update on, whatever is sampled."""
        return self.weights + self.gradients + self.optimizer + self.reference + self.served

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "reference": self.reference,
            "engine": self.served,
        }
        return " + ".join(f"{name} {in_words(n)}" for name, n in parts.items() if n)


def size_of(source: ModelSource) -> ModelSize | None:
    """A model's size, None if nothing is known of it here."""
    if isinstance(source, TinyModel):
        return _from_config(
            Qwen3Config(
                vocab_size=source.vocabulary,
                hidden_size=source.width,
                num_hidden_layers=source.layers,
                num_attention_heads=source.heads,
                num_key_value_heads=source.kv_heads,
                head_dim=source.width // source.heads,
                intermediate_size=source.mlp,
                max_position_embeddings=source.context,
                tie_word_embeddings=True,
            ),
            "its settings",
        )
    if not isinstance(source, PretrainedModel):
        return None
    try:
        config = AutoConfig.from_pretrained(source.name, local_files_only=True)
        return _from_config(config, "its config.json")
    except (OSError, ValueError, KeyError):  # not on this machine, or of an unknown architecture
        if source.parameters is None:
            return None
        return ModelSize(
            int(source.parameters), source.cache_values, source.context, "the experiment"
        )


def footprint(
    size: ModelSize, learner: LearnerSettings, engine: EngineSettings, tokens: int
) -> Footprint:
    """Memory of a policy whose learner and engine share a device.

    With P parameters, float32 in the learner: weights, gradients and reference 4P each, AdamW 8P;
    with LoRA gradients and moments are the adapters' only and there is no second model. The engine
    adds P numbers of its dtype and the cache, 2 · layers · key heads · head size per token.

    Args:
        size: of the model.
        learner: how it is trained.
        engine: how it is served.
        tokens: that one request takes at most, prompt and reply.
    """
    trained = size.parameters if learner.lora is None else int(ADAPTERS * size.parameters)
    number = DTYPES[engine.dtype].itemsize
    cache = None
    if size.cache_values is not None:
        cache = size.cache_values * number * (engine.max_batch * tokens + engine.prefix_tokens)
    return Footprint(
        weights=MASTER * size.parameters,
        gradients=MASTER * trained,
        optimizer=2 * MASTER * trained,
        reference=MASTER * size.parameters
        if learner.needs_reference and learner.lora is None
        else 0,
        served=number * size.parameters,
        cache=cache,
    )


def in_words(count: int) -> str:
    """Bytes for a person: 80.4 GB, 1.3 MB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def _from_config(config: PreTrainedConfig, source: str) -> ModelSize:
    """Count what transformers would build, on a device that holds no numbers."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config().to_dict()
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads")
    width = text.get("head_dim")
    if width is None and text.get("hidden_size") and text.get("num_attention_heads"):
        width = text["hidden_size"] // text["num_attention_heads"]
    layers = text.get("num_hidden_layers")
    cache = 2 * layers * heads * width if layers and heads and width else None
    return ModelSize(
        parameters=sum(p.numel() for p in model.parameters()),
        cache_values=cache,
        context=text.get("max_position_embeddings"),
        source=source,
    )
