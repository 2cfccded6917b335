"""Games: the rules. PettingZoo environments whose observations and actions are text.

This page is the contract; the package knows no tokens and no torch. A game

- says whose turn it is (`acting`: several agents when moves are simultaneous),
- tells each of them, in text, all that this agent may know (`observation`),
- takes a `Move` from each (`act`): an action by name, or the fault that stands in its place,
- pays strategic rewards (`take_rewards`) by its rules and its `OutcomeTable`, and nothing else:
  shaping (format, length) is the rollout's affair and kept apart.

To add one: a file with a subclass of `text_game.TextGame` (or rules from OpenSpiel through
`openspiel.OpenSpielGame`), and a YAML in `configs/game/` that names it under ``_target_``.
`marl-llm games check NAME` then runs the conformance suite on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marl_llm.types import Move, Observation, Outcome


class Game(Protocol):
    """What a rollout needs of a game. `TextGame` provides it on top of PettingZoo's AEC."""

    name: str
    possible_agents: list[str]  # "player_0", "player_1", ...
    roles: Mapping[str, str]  # agent -> as what it plays, in the order of the agents
    max_turns: int  # an episode never has more turns than this

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Start an episode; every random draw of it comes from this seed."""

    def rules(self) -> str:
        """The rules and the names of the actions, in words, for a system prompt."""

    def instructions(self, role: str) -> str:
        """The rules as this role is told them."""

    def acting(self) -> tuple[str, ...]:
        """Agents who must move now, none of whom sees the others' pending moves; () = over."""

    def observation(self, agent: str) -> Observation:
        """All that this agent may know now."""

    def act(self, agent: str, move: Move) -> None:
        """Play a move. An illegal action or a fault ends or penalises as the outcome table says."""

    def take_rewards(self) -> Mapping[str, float]:
        """Strategic reward per agent since the last call (agents with none may be absent)."""

    def outcomes(self) -> Mapping[str, Outcome]:
        """How it ended for each agent; empty while the game goes on."""

    def void(self) -> str | None:
        """Why a failure of the machinery made a finished episode worthless; None = it counts."""

    def accepts(self, agent: str, action: str) -> bool:
        """Whether the rules allow this action to an agent who is to move."""

    def gap(self) -> float:
        """The smallest difference between two endings' returns; shaping stays below half of it."""

    def snapshot(self) -> bytes:
        """The whole state, random generator included."""

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot of this game (only ever bytes that this process made)."""
