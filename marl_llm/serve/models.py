"""Models by name or path, with a sentence for everything that can go wrong.

`load_model` gives a model and its tokenizer; `end_ids` says which tokens end a reply.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from marl_llm.errors import ModelError, nearest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>")


def load_model(
    name_or_path: str, *, dtype: str = "float32", device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model and its tokenizer, ready to serve.

    Args:
        name_or_path: a folder with a Hugging Face model, or a name on the hub such as
            "Qwen/Qwen3-0.6B".
        dtype: float32, bfloat16 or float16.
        device: cpu, cuda or cuda:N.

    Raises:
        ModelError: no such folder or name, not a causal model, weights missing in the files, no
            network, no such device, a dtype that the device does not do, or no memory.
    """
    number_type, place = dtype_of(dtype, device), device_of(device)
    folder = model_folder(name_or_path)
    source = name_or_path if folder is None else str(folder)
    local = folder is not None or not _on_hub(name_or_path)
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_explain(name_or_path, local, error)) from error
    model = _weights(name_or_path, source, config, number_type, local)
    size = int(config.get_text_config().vocab_size)
    if len(tokenizer) > size:
        raise ModelError(
            f"the tokenizer of {name_or_path!r} has {len(tokenizer)} tokens but the model only "
            f"{size}; they do not belong together"
        )
    try:
        nn.Module.to(model, place)
        return model.eval(), tokenizer
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{name_or_path!r} in {dtype} does not fit into the memory of {device}; use "
            "dtype=bfloat16, a smaller model or a larger device"
        ) from error


def model_folder(name_or_path: str) -> Path | None:
    """The model's folder, looked at but not loaded, or None if this is a name on the hub.

    Raises:
        ModelError: a path that leads nowhere, or to a folder that holds no model.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{name_or_path} is not a model folder: it has no config.json; give the "
                "folder that save_pretrained wrote"
            )
        if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
            raise ModelError(
                f"{name_or_path} holds a config.json but no weights (*.safetensors); give the "
                "folder that save_pretrained wrote"
            )
        return path
    if name_or_path.startswith(("/", ".", "~")) or name_or_path.count("/") > 1:
        raise ModelError(
            f"there is no model at {name_or_path}; is the path right? Give the folder that "
            "save_pretrained wrote, or a name on the hub such as Qwen/Qwen3-0.6B"
        )
    return None


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens that end a reply: the tokenizer's, the model's, and the usual ends of a turn.

    Raises:
        ModelError: there is none, so that every reply would run to its limit.
    """
    vocabulary = tokenizer.get_added_vocab()
    found = {vocabulary[text] for text in END_OF_TURN if text in vocabulary}
    found |= {int(token) for token in (tokenizer.eos_token_id,) if token is not None}
    generation = model.generation_config
    stated = None if generation is None else generation.eos_token_id
    found |= set(stated if isinstance(stated, list) else [] if stated is None else [stated])
    if not found:
        raise ModelError(
            f"no token ends a reply of {model.config.name_or_path!r}; set the tokenizer's eos_token"
        )
    return frozenset(found)


def dtype_of(dtype: str, device: str) -> torch.dtype:
    """The dtype of this name, if the device computes in it."""
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; {nearest(dtype, DTYPES)}")
    if dtype == "float16" and device == "cpu":
        raise ModelError("float16 overflows and is slow on a CPU; use dtype=bfloat16 or float32")
    return DTYPES[dtype]


def device_of(device: str) -> torch.device:
    """The device of this name, if the machine has it."""
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"unknown device {device!r}; use cpu, cuda or cuda:N") from error
    if place.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is not supported; use cpu, cuda or cuda:N")
    if place.type == "cuda":
        count = torch.cuda.device_count()
        if (place.index or 0) >= count:
            raise ModelError(
                f"device {device!r} is wanted but torch {torch.__version__} sees {count} GPUs; use "
                "device=cpu, or install a torch for your driver"
            )
    return place


def _on_hub(name: str) -> bool:
    """Whether the hub answers for this name; if not, files fetched before may still do.

    Asked first, because transformers would retry each of a dozen files for most of a minute.
    """
    try:
        HfApi().model_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"there is no model {name!r}, neither a folder nor on the Hugging Face hub; check the "
            "spelling, and log in if it is private"
        ) from error
    except Exception:  # of the HTTP library, whichever it is
        return False
    return True


def _weights(
    name: str, source: str, config: PreTrainedConfig, dtype: torch.dtype, local: bool
) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
            local_files_only=local,
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(_explain(name, local, error)) from error
    model, report = loaded
    # transformers would fill these with random numbers and only warn
    missing = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if missing:
        raise ModelError(
            f"the files of {name!r} lack {len(missing)} of the model's weights, {missing[0]} "
            "first; the download or the checkpoint is incomplete"
        )
    return model


def _explain(name: str, local: bool, error: Exception) -> str:
    """One sentence for what transformers says in many."""
    text = " ".join(str(error).split())
    if "Unrecognized configuration class" in text:
        return f"{name!r} is not a causal language model; use a decoder-only text model"
    if "scaled_dot_product_attention" in text:
        return f"{name!r} has no sdpa attention in transformers; use another architecture"
    if Path(name).expanduser().exists():
        return (
            f"the model at {name} cannot be loaded ({text[:200]}); if a file was cut short or "
            "altered, copy or save the model again"
        )
    if local:
        return (
            f"model {name!r} was not fetched before and the Hugging Face hub does not answer; "
            "check the network, or give the path of a folder that holds the model"
        )
    return f"model {name!r} cannot be fetched from the Hugging Face hub ({text[:200]}); try again"
