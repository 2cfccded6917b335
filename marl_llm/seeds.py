"""Every random number of a run hangs on one seed through named paths.

`derive(seed, "episode", 17, "turn", 3)` is the same on every machine and in every process, and does
not depend on the order in which things happen. Nothing in the package reads a global generator.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

Path = tuple[int | str, ...]

# The words of bit generators, by bytes.
_LITTLE: dict[int, np.dtype[Any]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def derive(*path: int | str) -> int:
    """A seed in [0, 2**63) for this path; different paths give independent seeds.

    Args:
        path: the run's seed first, then what the draw is for.
    """
    return int.from_bytes(hashlib.blake2b(_text(path), digest_size=8).digest(), "big") >> 1


def generator(*path: int | str) -> np.random.Generator:
    """A NumPy generator of its own for this path."""
    words: Any = _Words(path)  # NumPy's stubs know SeedSequence only, not its interface
    return np.random.Generator(np.random.PCG64(words))


def _text(path: Path) -> bytes:
    # Written out for speed: a rollout asks for thousands of seeds, most of whose parts are these.
    parts = [
        f"str:{part}"
        if type(part) is str
        else f"int:{part}"
        if type(part) is int
        else f"{type(part).__name__}:{part}"
        for part in path
    ]
    return "\x1f".join(parts).encode()


class _Words(ISpawnableSeedSequence):
    """The state of a bit generator straight from the path: NumPy's own mixing takes longer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._children = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """So many words."""
        kind = _LITTLE[np.dtype(dtype).itemsize]
        digest = hashlib.shake_128(_text(self._path)).digest(n_words * kind.itemsize)
        return np.frombuffer(digest, kind).astype(dtype, copy=False)

    def spawn(self, n_children: int) -> list[_Words]:
        """Seed sequences of paths below this one, each time others."""
        first = self._children
        self._children += n_children
        return [_Words((*self._path, "spawn", first + i)) for i in range(n_children)]
