"""Every random number of a run hangs on one seed through named paths.

`derive(seed, "episode", 17, "turn", 3)` is the same on every machine and in every process, and does
not depend on the order in which things happen. Nothing in the package reads a global generator.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(*path: int | str) -> int:
    """A seed in [0, 2**63) for this path; different paths give independent seeds.

    Args:
        path: the run's seed first, then what the draw is for.
    """
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in path])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*path: int | str) -> np.random.Generator:
    """A NumPy generator of its own for this path."""
    return np.random.Generator(np.random.PCG64(derive(*path)))
