"""Weights as named tensors: one spelling of each, a checksum over them, a file that holds them.

Both sides of the wire use this page: the learner names, sums and writes what it publishes, the
engine reads and verifies it. A tensor that a model holds under several names (tied embeddings) is
named once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from marl_llm.errors import CheckpointError, ModelError, nearest
from marl_llm.types import Weights


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a model's weights are: parameters and persistent buffers, tied ones once.

    Returns:
        The model's own tensors (no copies, detached), under the first name of each.
    """
    return {names[0]: tensor.detach() for tensor, names in _tensors(model)}


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names (sorted), dtypes, shapes and bytes, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write(tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Write a safetensors file; a reader never sees half of it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.{os.getpid()}")
    # clones: safetensors refuses tensors that share memory
    save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, half)
    with half.open("rb") as file:
        os.fsync(file.fileno())
    half.replace(target)


def read(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        CheckpointError: there is no such file, or it is cut short.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"no weights at {path}; was the file moved or deleted?")
    try:
        return load_file(path, device="cpu")
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({error}); it was cut short or altered, "
            "use the checkpoint before it"
        ) from error


def verified(weights: Weights) -> Mapping[str, Tensor]:
    """The tensors of a `Weights`, read if they lie in a file, with their checksum verified.

    Raises:
        CheckpointError: the file cannot be read, or the tensors are not those that were summed.
    """
    tensors = weights.tensors if weights.tensors is not None else read(weights.path or "")
    found = checksum(tensors)
    if found != weights.checksum:
        raise CheckpointError(
            f"version {weights.version} of policy {weights.policy!r} at "
            f"{weights.path or 'memory'} has checksum {found[:12]}, expected "
            f"{weights.checksum[:12]}; it was altered on the way, use the version before it"
        )
    return tensors


@torch.no_grad()
def assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a model, in place, cast to the model's dtype. All or nothing.

    Every weight must be given, under any of its names; a tied one under several must agree.

    Raises:
        ModelError: a weight is missing, unknown, of another shape, or given twice and differently.
    """
    known = {name: tensor for tensor, names in _tensors(model) for name in names}
    for name, value in tensors.items():
        if name not in known:
            raise ModelError(f"the model has no weight {name!r}; {nearest(name, known)}")
        if known[name].shape != value.shape:
            raise ModelError(
                f"weight {name!r} has shape {tuple(value.shape)}, the model's has "
                f"{tuple(known[name].shape)}; were the weights made by another model?"
            )
    chosen: list[tuple[Tensor, Tensor]] = []
    for tensor, names in _tensors(model):
        given = [name for name in names if name in tensors]
        if not given:
            raise ModelError(f"the weights lack {names[0]!r}, which the model needs")
        for other in given[1:]:
            if not torch.equal(tensors[given[0]], tensors[other]):
                raise ModelError(
                    f"{given[0]!r} and {other!r} are one tensor in the model but differ in the "
                    "weights; give one of them"
                )
        chosen.append((tensor, tensors[given[0]]))
    for tensor, value in chosen:
        tensor.copy_(value)


def _tensors(model: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Each tensor of the state once, with all its names in the model's order."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return list(found.values())
