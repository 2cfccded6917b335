"""Agent ablation: what a seat earns when somebody else takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from marl_llm.agents import Player
from marl_llm.agents.scripted import Uniform
from marl_llm.annotate.material import Material
from marl_llm.credit import checks
from marl_llm.credit.segments import Array

STAND_IN = "stand-in"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAblation:
    """The agent's mean return over K whole replays in which a default plays for it.

    The others play as they do, from the same start, and may do other things than in the episode.
    Nothing of this hangs on what the agent did, so the episodes of a group share the replays.
    """

    signals: ClassVar[tuple[str, ...]] = ("return_without",)

    player: Player = field(default_factory=Uniform)  # the default
    count: int = 4  # replays per agent of a group, K

    def __post_init__(self) -> None:
        checks.within("agent_ablation.count", self.count, 1)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        batch, replays = material.batch, material.replays
        names = [batch.name("agent", agent) for agent in batch.agent.tolist()]
        keys = list(zip(batch.group.tolist(), names, strict=True))
        # In a group all episodes have one start, and its seats the same players.
        starts = dict(zip(keys, batch.episode.tolist(), strict=True))
        plans, asked = [], []
        for (group, agent), number in starts.items():
            episode = replays.episodes[number]
            players = {**episode.seats, agent: STAND_IN}
            for k in range(self.count):
                plans.append(replays.again(episode, "without", group, agent, k, players=players))
                asked.append(agent)
        earned = replays.earned(replays.play(plans, {STAND_IN: self.player}))
        paid = [own[agent] for own, agent in zip(earned, asked, strict=True)]
        means = np.reshape(paid, (-1, self.count)).mean(axis=1)
        found = dict(zip(starts, means.tolist(), strict=True))
        return {"return_without": np.array([found[key] for key in keys])}
