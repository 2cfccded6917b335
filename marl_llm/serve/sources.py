"""Where a policy's first weights come from: built on the spot, or by name or path.

Either way they end as an ordinary Hugging Face model folder inside the run, from which every engine
and learner of the run, in whatever process, is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marl_llm.errors import ConfigError
from marl_llm.serve.models import dtype_of, end_ids, load_model
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]


class ModelSource(Protocol):
    """Makes the weights that a policy starts with."""

    needs_corpus: bool  # is the tokenizer made from the run's own texts?

    def make(self, corpus: Iterable[str], seed: int) -> Loaded:
        """Model and tokenizer."""

    def describe(self) -> str:
        """In a few words, without loading anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A small Qwen3 with its own vocabulary, made on the spot."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 192
    context: int = 256  # tokens
    vocabulary: int = 512  # tokens at most
    tags: tuple[str, ...] = ()  # texts that are one token each, besides the think and answer tags

    needs_corpus = True

    def __post_init__(self) -> None:
        for name, size in (
            ("layers", self.layers),
            ("width", self.width),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("mlp", self.mlp),
            ("context", self.context),
            ("vocabulary", self.vocabulary),
        ):
            if size < 1:
                raise ConfigError(f"{name} of a tiny model must be at least 1, got {size}")

    def make(self, corpus: Iterable[str], seed: int) -> Loaded:
        """A fresh model; equal texts and seeds give equal weights."""
        tokenizer = build_tokenizer(corpus, self.vocabulary, self.tags)
        model = build_model(
            tokenizer,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            mlp=self.mlp,
            context=self.context,
            seed=seed,
        )
        return model, tokenizer

    def describe(self) -> str:
        """In a few words."""
        return f"tiny Qwen3, {self.layers} layers of {self.width}, made on the spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedModel:
    """Any Hugging Face causal language model, by name or local path."""

    name: str
    dtype: str = "float32"
    # For a plan (dry_run) where the model's config.json is not at hand; else the config counts.
    parameters: float | None = None
    cache_values: int | None = None  # per token: 2 · layers · key heads · head size
    context: int | None = None  # tokens

    needs_corpus = False

    def make(self, corpus: Iterable[str], seed: int) -> Loaded:
        """The published weights, on the CPU."""
        return load_model(self.name, dtype=self.dtype)

    def describe(self) -> str:
        """In a few words."""
        return f"{self.name} in {self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How a policy is served by transformers."""

    device: str = "cpu"
    dtype: str = "float32"
    max_batch: int = 256  # requests decoded at once
    context: int | None = None  # tokens, None = all that the model takes
    prefix_tokens: int = 65_536  # remembered keys and values, 0 = none

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ConfigError(f"engine.max_batch must be at least 1, got {self.max_batch}")
        dtype_of(self.dtype, self.device)

    def serve(self, folder: Path | str, version: int = 0) -> TransformersEngine:
        """An engine over a model folder, or over a model by its name."""
        model, tokenizer = load_model(str(folder), dtype=self.dtype, device=self.device)
        return TransformersEngine(
            model,
            end_ids=end_ids(model, tokenizer),
            tokenizer=tokenizer,
            max_batch=self.max_batch,
            context=self.context,
            prefix_tokens=self.prefix_tokens,
            version=version,
        )
