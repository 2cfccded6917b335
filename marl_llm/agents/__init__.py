"""Agents: what a role says. A prompt from an Observation, a Move from a reply, what it remembers.

Two kinds of player sit at a game:

- a **role** played by a model (`role.Role`: prompt, parser, sampling, memory and thought rules);
  its per-episode memory is a `role.Seat`, which turns observations into prompt ids and replies into
  moves;
- a **scripted** player (`Player` below): it looks at the game itself and names an action. Solvers,
  random play and people are scripted players.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Player(Protocol):
    """A scripted player. It may read the game's state, which a role never can."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def act(self, game, agent: str, rng: np.random.Generator) -> str:
        """The name of a legal action for this agent, whose turn it is."""
