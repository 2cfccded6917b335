"""What a learner is at one moment, as named tensors and JSON, in memory or as three files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from marl_llm import weights as files
from marl_llm.errors import CheckpointError

WEIGHTS_FILE = "weights.safetensors"  # what an engine takes
OPTIMIZER_FILE = "optimizer.safetensors"  # what only the learner needs
SCALARS_FILE = "learner.json"


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Everything that a learner must have back to go on bit by bit."""

    weights: Mapping[str, Tensor]  # as an engine takes them: adapters merged
    tensors: Mapping[str, Tensor]  # moments, adapters, reference and its memory
    scalars: Mapping[str, Any]  # JSON


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under ``prefix/name``."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def part(state: LearnerState, prefix: str) -> dict[str, Tensor]:
    """What `prefixed` put into a state.

    Raises:
        CheckpointError: there is nothing of it.
    """
    start = f"{prefix}/"
    found = {
        name.removeprefix(start): tensor
        for name, tensor in state.tensors.items()
        if name.startswith(start)
    }
    if not found:
        raise CheckpointError(
            f"the state of policy {state.scalars['policy']!r} holds no {prefix!r} tensors, which "
            "these settings need; was it saved with other kl or lora settings?"
        )
    return found


def write(state: LearnerState, folder: Path) -> None:
    """Write a state into a folder."""
    files.write(state.weights, folder / WEIGHTS_FILE)
    files.write(state.tensors, folder / OPTIMIZER_FILE)
    (folder / SCALARS_FILE).write_text(json.dumps(dict(state.scalars)))


def read(folder: Path) -> LearnerState:
    """What `write` wrote.

    Raises:
        CheckpointError: a file is missing or cut short.
    """
    try:
        scalars = json.loads((folder / SCALARS_FILE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder / SCALARS_FILE} cannot be read ({error}); use the checkpoint before it"
        ) from error
    return LearnerState(
        weights=files.read(folder / WEIGHTS_FILE),
        tensors=files.read(folder / OPTIMIZER_FILE),
        scalars=scalars,
    )
