"""Who is next: token sequences that wait for a slot, and which of them to take into the next pass.

A sequence whose next unknown tokens are just being computed by another one waits for the next pass,
once, and then finds them in the prefix cache. So equal prompts, and the rules of a game that many
prompts begin with, are computed once also when they all come together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from marl_llm.serve.decoder import Decoder
from marl_llm.serve.kv_store import BLOCK
from marl_llm.serve.prefix_cache import NOTHING, Ids, Known, PrefixCache
from marl_llm.serve.slot_cache import SlotCache

T = TypeVar("T")


@dataclass(slots=True)
class Arrival(Generic[T]):
    """A sequence on its way into a slot."""

    item: T  # whatever it is for
    ids: Ids  # all that is to be fed
    shared: int  # so many of its ids, from the start, may come from the prefix cache and go there
    known: Known = NOTHING
    waited: bool = False

    @property
    def rest(self) -> int:
        """Tokens still to be computed, when nothing but the known ones are in the slot."""
        return len(self.ids) - self.known.tokens


def pick(
    queue: deque[Arrival[T]], prefixes: PrefixCache, rows: int, tokens: int
) -> list[Arrival[T]]:
    """Take arrivals from the front of a queue, ascending by what is left to compute.

    Args:
        queue: those taken leave it, the others keep their order.
        prefixes: where their known beginnings are looked up.
        rows: at most so many.
        tokens: at most so many to compute, except that one arrival is always taken.
    """
    chosen: list[Arrival[T]] = []
    later: list[Arrival[T]] = []
    computed: set[tuple[int, Ids]] = set()
    while queue and len(chosen) < rows and len(later) < rows:
        arrival = queue[0]
        arrival.known = known = prefixes.find(arrival.ids[: arrival.shared])
        block = arrival.ids[known.tokens : min(known.tokens + BLOCK, arrival.shared)]
        if block and (known.parent, block) in computed and not arrival.waited:
            arrival.waited = True
            later.append(queue.popleft())
            continue
        if chosen and arrival.rest > tokens:
            break
        chosen.append(queue.popleft())
        tokens -= arrival.rest
        if prefixes.capacity:
            computed.add((known.parent, block))
    queue.extendleft(reversed(later))
    return sorted(chosen, key=lambda arrival: arrival.rest)


def seat(
    decoder: Decoder, cache: SlotCache, first: int, arrivals: list[Arrival[T]], most: int
) -> np.ndarray:
    """Give arrivals consecutive slots and put there what is known of them.

    What is too long for one pass is computed here up to its last pass.

    Args:
        decoder: of the pass to come.
        cache: the slots.
        first: the first slot.
        arrivals: as `pick` gave them.
        most: slots never to exceed by growing ahead of need.

    Returns:
        [N] int64: tokens that each slot holds now.
    """
    longest = max(len(arrival.ids) for arrival in arrivals)
    cache.store.grow(first + len(arrivals), longest, most)
    decoder.prefixes.restore([arrival.known for arrival in arrivals], cache.store, first)
    return np.array(
        [
            decoder.shorten(cache, slot, arrival.known.tokens, arrival.ids, arrival.shared)
            for slot, arrival in enumerate(arrivals, first)
        ]
    )


def remember(
    prefixes: PrefixCache, cache: SlotCache, first: int, arrivals: list[Arrival[T]]
) -> None:
    """Keep what was computed for arrivals, after their pass."""
    new = [
        (arrival.ids[: arrival.shared], slot)
        for slot, arrival in enumerate(arrivals, first)
        if arrival.known.tokens < arrival.shared
    ]
    prefixes.keep([ids for ids, _ in new], cache.store, [slot for _, slot in new])
