"""Greedy return: what an agent gets where all models say the likeliest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.credit.segments import Array
from marl_llm.rollout.play import ModelSeat


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyReturn:
    """The agent's return in one more episode of its group, with every model at temperature 0.

    Scripted players play as they always do, and draw.

    Source: the baseline of ReMax, arXiv 2310.10505.
    """

    signals: ClassVar[tuple[str, ...]] = ("greedy_return",)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        batch, replays = material.batch, material.replays
        # In a group all episodes have one start, and its seats the same players.
        starts = dict(zip(batch.group.tolist(), batch.episode.tolist(), strict=True))
        episodes = [replays.episodes[number] for number in starts.values()]
        plans = [
            replays.again(episode, "greedy", episode.group, players=episode.seats)
            for episode in episodes
        ]
        greedy = {
            name: _greedy(seat)
            for name, seat in material.reach.seats.items()
            if isinstance(seat, ModelSeat)
        }
        earned = dict(zip(starts, replays.earned(replays.play(plans, greedy)), strict=True))
        groups, agents = batch.group.tolist(), batch.agent.tolist()
        paid = [
            earned[group][batch.name("agent", agent)]
            for group, agent in zip(groups, agents, strict=True)
        ]
        return {"greedy_return": np.array(paid)}


def _greedy(seat: ModelSeat) -> ModelSeat:
    sampling = replace(seat.role.sampling, temperature=0.0)
    return ModelSeat(replace(seat.role, sampling=sampling), seat.chat, seat.policy)
