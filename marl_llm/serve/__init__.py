"""Engines: token ids in, token ids with log-probs and the version that sampled them out.

This page is the contract. An engine serves the weights of one policy. Callers hand in requests with
`submit` and collect what is finished with `poll`; between the two it decodes all waiting requests
in one batch and fills the place of a finished one at once, so nobody waits for the slowest. A reply
depends on its request (ids, sampling, seed) and the weights, up to rounding, and not on its
neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from marl_llm.errors import DeadlineError
from marl_llm.types import Completion, Request, Weights


class Engine(Protocol):
    """What agents, rollout and evaluation need of a model server."""

    version: int  # of the weights now in use
    context: int  # tokens that prompt and reply together may have

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; ids must be unique among those in flight."""

    def poll(self, timeout: float) -> list[Completion]:
        """Work until at least one request is finished and return all that are.

        Empty when nothing is in flight or `timeout` seconds passed. A request whose deadline passes
        comes back with `Finish.TIME` and what it had sampled; one whose prompt leaves no room comes
        back empty with `Finish.CONTEXT`.
        """

    def score(
        self,
        sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """Log-probs (nats) of each continuation's ids after its prompt, one list per sequence."""

    def load(self, weights: Weights) -> None:
        """Take new weights (checksum verified); later tokens carry the new version."""


def generate(
    engine: Engine, requests: Sequence[Request], timeout: float = 600.0
) -> list[Completion]:
    """Replies to these requests, in their order, on an engine that is otherwise idle.

    Raises:
        DeadlineError: not all were finished within `timeout` seconds.
    """
    engine.submit(requests)
    done: dict[int, Completion] = {}
    end = time.monotonic() + timeout
    while len(done) < len(requests):
        left = end - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                f"{len(requests) - len(done)} of {len(requests)} replies were not finished "
                f"after {timeout:.0f} s; raise the time limit or shorten the replies"
            )
        done.update((completion.id, completion) for completion in engine.poll(left))
    return [done[request.id] for request in requests]
