"""What words name before anything heavy is imported: run folders, players, roles, games."""

from __future__ import annotations

from pathlib import Path

from marl_llm import config
from marl_llm.agents import Player
from marl_llm.agents.role import Role
from marl_llm.errors import CheckpointError

CONFIG = "config.yaml"  # of a run folder


def run_folder(folder: str) -> Path:
    """A folder that holds a run.

    Raises:
        CheckpointError: it does not.
    """
    path = Path(folder)
    if not (path / CONFIG).is_file():
        what = f"it has no {CONFIG}" if path.is_dir() else "there is no such folder"
        raise CheckpointError(f"{folder!r} is no run folder: {what}")
    return path


def scripted(name: str) -> Player:
    """A player of the group `player`.

    Raises:
        ConfigError: there is no such player.
    """
    player: Player = config.build(config.node("player", name), where=f"player {name}")
    return player


def role(name: str) -> Role:
    """A role of the group `role`.

    Raises:
        ConfigError: there is no such role.
    """
    made: Role = config.build(config.node("role", name), where=f"role {name}")
    return made
