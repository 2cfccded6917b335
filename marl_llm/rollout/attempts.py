"""Attempts: what a failure of the machinery made worthless is played again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from marl_llm.rollout.plans import Plan
from marl_llm.types import Episode


def attempted(
    play: Callable[[Sequence[Plan]], list[Episode]], plans: Sequence[Plan], retries: int
) -> list[Episode]:
    """Play plans, and those again, as later attempts, whose episodes came back void.

    Args:
        play: plays plans, in their order.
        plans: what to play; `id`s are distinct.
        retries: attempts after the first.

    Returns:
        The last attempt at each, in the order of the plans; void where all of them failed.
    """
    episodes = play(plans)
    for _ in range(retries):
        failed = {episode.id: episode for episode in episodes if episode.void is not None}
        if not failed:
            break
        again = [
            replace(plan, attempt=failed[plan.id].attempt + 1)
            for plan in plans
            if plan.id in failed
        ]
        played = {episode.id: episode for episode in play(again)}
        episodes = [played.get(episode.id, episode) for episode in episodes]
    return episodes
