"""Episodes as bytes and back, exactly: MessagePack, typed, and nothing is ever unpickled.

What comes back is equal to what went in: floats to the last bit, tuples as tuples. NumPy's scalars,
which games may give as rewards, come back as Python's.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import msgspec

from marl_llm.errors import EpisodeError
from marl_llm.types import Episode


def encode(episode: Episode) -> bytes:
    """An episode as bytes.

    Raises:
        EpisodeError: a field holds what its type does not allow.
    """
    return _ENCODER.encode(episode)


def decode(body: bytes) -> Episode:
    """What `encode` was given.

    Raises:
        EpisodeError: these are not the bytes of an episode.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:  # also what is well-formed, but no episode
        raise EpisodeError(f"{len(body)} bytes of the store are no episode: {error}") from error


def _plain(value: Any) -> int | float:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise EpisodeError(
        f"an episode holds {value!r}, a {type(value).__name__}, which cannot be kept"
    )


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER = msgspec.msgpack.Decoder(Episode)
