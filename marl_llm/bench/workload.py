"""What is measured: one experiment's first update, with every request and reply of it on record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_llm import team
from marl_llm.agents import Player
from marl_llm.errors import ConfigError
from marl_llm.games import Game
from marl_llm.rollout.plans import Plan
from marl_llm.rollout.play import ModelSeat
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.store import SqliteStore
from marl_llm.store.episodes import AtHand
from marl_llm.train import plans_of
from marl_llm.types import Completion, Episode, Request, Weights


class Recorder:
    """An engine that keeps what it is asked and what it answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.version, self.context = engine.version, engine.context
        self.requests: list[Request] = []
        self.lengths: dict[int, int] = {}  # sampled tokens, by id of the request

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand on and keep."""
        self.requests.extend(requests)
        self._engine.submit(requests)

    def poll(self, timeout: float) -> list[Completion]:
        """Hand back and keep the lengths."""
        completions = self._engine.poll(timeout)
        self.lengths.update((one.id, len(one.ids)) for one in completions)
        return completions

    def score(
        self,
        sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """Hand on."""
        return self._engine.score(sequences, temperature)

    def load(self, weights: Weights) -> None:
        """Hand on."""
        self._engine.load(weights)


@dataclass(frozen=True, slots=True)
class Workload:
    """An experiment with one policy, its model made, and the record of its first update."""

    run: RunSettings
    folder: Path  # with the model
    policy: str
    makers: Mapping[str, Callable[[], Game]]
    seats: Mapping[str, ModelSeat | Player]
    plans: tuple[Plan, ...]
    episodes: tuple[Episode, ...]
    requests: tuple[Request, ...]
    lengths: tuple[int, ...]  # sampled tokens of each request

    @classmethod
    def prepare(cls, run: RunSettings, folder: Path, stage: Callable[[str], None]) -> Workload:
        """Make the model and play the first update once, on record.

        Raises:
            ConfigError: the experiment has several policies, so that tokens of several engines
            would be mixed.
        """
        if len(run.policies) != 1:
            raise ConfigError(
                f"bench measures an experiment with one policy, {run.experiment} has "
                f"{len(run.policies)}: {', '.join(run.policies)}"
            )
        (policy,) = run.policies
        team.prepare(run, folder / team.MODELS, stage)
        makers, seats = run.makers(), team.seats(run, folder)
        plans = plans_of(run, 0)
        recorder = Recorder(team.engine(run, folder, policy))
        episodes = team.collect(
            run, makers, seats, {policy: recorder}, {policy: 0}, store(), AtHand(), plans, {}
        )
        lengths = tuple(recorder.lengths[request.id] for request in recorder.requests)
        return cls(
            run, folder, policy, makers, seats, tuple(plans), tuple(episodes),
            tuple(recorder.requests), lengths,
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        prompts = [len(request.prompt_ids) for request in self.requests]
        rollout = self.run.rollout
        engine = self.run.policies[self.policy].engine
        return {
            "experiment": self.run.experiment,
            "model": self.run.policies[self.policy].model.describe(),
            "episodes": len(self.episodes),
            "concurrency": rollout.concurrency,
            "max_batch": engine.max_batch,
            "requests": len(self.requests),
            "sampled_tokens": sum(self.lengths),
            "prompt_tokens": sum(prompts),
            "longest_prompt": max(prompts),
            "longest_reply": max(self.lengths),
        }


def store() -> SqliteStore:
    """An empty store in which no lease runs out."""
    return SqliteStore(":memory:", lambda: 0.0)


def sampled(episodes: Sequence[Episode]) -> int:
    """Tokens that a model sampled in episodes."""
    return sum(len(turn.ids) for episode in episodes for turn in episode.turns)
