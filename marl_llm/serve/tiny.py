"""The tiny model: a real architecture made on the spot, small enough to learn in minutes on a CPU.

A Qwen3 of about 0.1 million parameters, with a byte-level vocabulary learned from the game's own
texts and a ChatML template. It knows nothing until a cold start has taught it the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from marl_llm.errors import ModelError

START, END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
SPEAKERS = ("system", "user", "assistant")
# Merges stay inside a word: letters with at most one digit behind them, so that a board's cell
# ("b2") can be one token; else a single digit, a run of signs, or white space.
WORD = r" ?\p{L}+\p{N}?| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
LEAST_VOCABULARY = 256 + 3 + len(TAGS)  # bytes, ChatML's tokens, tags

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(
    corpus: Iterable[str], vocab_size: int = 512, tags: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of these texts: equal texts give an equal tokenizer.

    ChatML's three tokens are special; the think and answer tags are one token each but plain text,
    so that they appear when a reply is decoded. Any other text can be written
    too, byte by byte.

    Args:
        corpus: what the model will read and write. ChatML's tokens and the tags need not be in it.
        vocab_size: tokens at most; fewer when the texts have no more pairs to merge.
        tags: texts besides the think and answer tags that are one token each.

    Raises:
        ModelError: the vocabulary is smaller than the bytes and the tags.
    """
    plain = (*TAGS, *dict.fromkeys(tag for tag in tags if tag not in TAGS))
    least = LEAST_VOCABULARY + len(plain) - len(TAGS)
    if vocab_size < least:
        raise ModelError(f"a byte-level vocabulary needs at least {least} tokens, got {vocab_size}")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    added = [AddedToken(text, special=True, normalized=False) for text in (TEXT_END, START, END)]
    added += [AddedToken(text, special=False, normalized=False) for text in plain]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Sorted: ties between merges must not hang on the order of the texts.
    inner.train_from_iterator(sorted(_pieces(corpus, plain)), trainer=trainer)
    inner.add_tokens(added)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=TEXT_END,
        additional_special_tokens=[START],
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    mlp: int = 192,
    context: int = 512,
    seed: int,
) -> Qwen3ForCausalLM:
    """A fresh Qwen3 for this tokenizer; equal arguments give equal weights, global seeds untouched.

    Args:
        tokenizer: from `build_tokenizer`.
        layers: of the transformer.
        width: of the hidden states; embeddings are tied.
        heads: of the queries; each has width / heads dimensions.
        kv_heads: of keys and values, shared by heads / kv_heads query heads.
        mlp: width inside the feed-forward layers.
        context: tokens of prompt and reply together.
        seed: of the initial weights.

    Raises:
        ModelError: the numbers do not fit together.
    """
    if width % heads or (width // heads) % 2 or heads % kv_heads:
        raise ModelError(
            f"width ({width}) must be an even multiple of heads ({heads}), and heads a multiple of "
            f"kv_heads ({kv_heads})"
        )
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width // heads,
        intermediate_size=mlp,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=width**-0.5,  # the usual 0.02 is for wide models; here it learns slowly
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).eval()


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Write both as an ordinary Hugging Face model folder, which `models.load_model` reads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _pieces(corpus: Iterable[str], tags: Sequence[str]) -> Iterable[str]:
    """The texts between control tokens and tags, which must not be learned as letters.

    The template names a speaker before each of them, so those names are part of the language.
    """
    for text in corpus:
        yield from SPEAKERS
        pieces = [text]
        for token in (TEXT_END, START, END, *tags):
            pieces = [part for piece in pieces for part in piece.split(token)]
        yield from (piece for piece in pieces if piece)
