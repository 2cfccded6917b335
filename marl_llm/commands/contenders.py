"""Who can be evaluated or played against: a run's policies, models by name or path, players.

A policy of a run is named by its update: ``coldstart`` (what it started with) or ``update_000040``
(a checkpoint). Each is served by an engine of its own, so that versions can meet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from marl_llm import config, team, weights
from marl_llm.agents import Player
from marl_llm.agents.chat import Chat
from marl_llm.agents.role import Role
from marl_llm.commands import presets
from marl_llm.commands.presets import CONFIG, run_folder
from marl_llm.errors import CheckpointError, ConfigError, nearest
from marl_llm.games.catalog import maker
from marl_llm.games.text_game import TextGame
from marl_llm.learn import checkpoints
from marl_llm.learn.state import SCALARS_FILE, WEIGHTS_FILE
from marl_llm.rollout.play import ModelSeat
from marl_llm.serve import Engine
from marl_llm.serve.models import end_ids, load_model
from marl_llm.serve.sources import EngineSettings
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.settings import RunSettings
from marl_llm.types import Weights

COLDSTART = "coldstart"


@dataclass(frozen=True, slots=True)
class Contender:
    """A model in a role, with the engine that serves it."""

    name: str
    role: Role
    chat: Chat
    engine: Engine
    about: str  # whose weights

    @property
    def seat(self) -> ModelSeat:
        """Where it sits down; its engine goes by its name."""
        return ModelSeat(self.role, self.chat, self.name)


@dataclass(frozen=True, slots=True)
class RunOnDisk:
    """A run folder: its settings, and its policies as they were after each checkpoint."""

    path: Path
    settings: RunSettings
    seat: str  # whose policy and role are meant

    @classmethod
    def read(cls, folder: str, seat: str | None = None, device: str | None = None) -> RunOnDisk:
        """Read a run's settings.

        Args:
            folder: the run's.
            seat: of the policy that is meant, None = the one that the run evaluates.
            device: where it is served, None = where the run served it.

        Raises:
            CheckpointError: this is no run folder, or its models were never made.
            ConfigError: no model has such a seat.
        """
        path = run_folder(folder)
        settings = RunSettings.of(config.read(path / CONFIG))
        seat = settings.evaluation.seat if seat is None else seat
        if seat not in settings.seats:
            raise ConfigError(f"{folder} has no seat {seat!r}; {nearest(seat, settings.seats)}")
        if not (path / team.MODELS / settings.seats[seat].policy).is_dir():
            raise CheckpointError(
                f"{folder} holds no model yet: the run ended before its cold start did; start it "
                "anew"
            )
        if device is not None:
            policies = {
                name: replace(policy, engine=replace(policy.engine, device=device))
                for name, policy in settings.policies.items()
            }
            settings = replace(settings, policies=policies)
        return cls(path, settings, seat)

    @property
    def policy(self) -> str:
        """The policy that is meant."""
        return self.settings.seats[self.seat].policy

    def names(self) -> list[str]:
        """All of whom `contender` can make."""
        return [COLDSTART, *(path.name for path in checkpoints.all_of(self.path))]

    def latest(self) -> str:
        """The name of the newest state; the start when there is no checkpoint."""
        return self.names()[-1]

    def contender(self, name: str, called: str | None = None) -> Contender:
        """The policy as it was at the start or at a checkpoint.

        Args:
            name: ``coldstart`` or ``update_000040``.
            called: another name for it.

        Raises:
            CheckpointError: there is no such checkpoint, or it is not intact.
        """
        if name not in self.names():
            raise CheckpointError(f"{self.path} has no {name}; {nearest(name, self.names())}")
        engine = team.engine(self.settings, self.path, self.policy)
        if name != COLDSTART:
            kept = checkpoints.load(self.path / checkpoints.FOLDER / name)
            engine.load(_weights(self.policy, kept.folder(self.policy)))
        return Contender(
            name=called or name,
            role=self.settings.seats[self.seat].role,
            chat=team.chat(self.path, self.policy),
            engine=engine,
            about=f"{self.path}, policy {self.policy}, {name.replace('_', ' ')}",
        )

    def after(self, update: int) -> str:
        """The name of the policy after that many updates."""
        return f"update_{update:06d}" if update else COLDSTART

    def game(self, name: str) -> Callable[[], TextGame]:
        """A game of the run as the run sets it, else one of the catalog.

        Raises:
            ConfigError: there is no such game.
        """
        makers = self.settings.makers()
        return makers[name] if name in makers else maker(name)

    def player(self, name: str) -> Player | None:
        """A scripted player that the run itself names, None if it does not."""
        return {**self.settings.opponents, **self.settings.evaluation.panel}.get(name)


def of_model(
    model: str, role: str, called: str, device: str | None = None, dtype: str | None = None
) -> Contender:
    """A model by name or path, in a role of the group `role`.

    Raises:
        ModelError: it cannot be loaded or served.
        ConfigError: there is no such role.
    """
    settings = EngineSettings(device=device or "cpu", dtype=dtype or "float32")
    made = presets.role(role)
    loaded, tokenizer = load_model(model, dtype=settings.dtype, device=settings.device)
    chat = Chat(tokenizer)
    engine = TransformersEngine(
        loaded,
        end_ids=end_ids(loaded, tokenizer),
        tokenizer=tokenizer,
        max_batch=settings.max_batch,
        prefix_tokens=settings.prefix_tokens,
    )
    return Contender(called, made, chat, engine, f"{model} as {role}")


def _weights(policy: str, folder: Path) -> Weights:
    """What a learner wrote into a checkpoint, which has been compared with its manifest."""
    tensors = weights.read(folder / WEIGHTS_FILE)
    version = json.loads((folder / SCALARS_FILE).read_text())["version"]
    return Weights(policy, int(version), weights.checksum(tensors), tensors=tensors)
