"""One policy's trainer: finished episodes in, new weights out.

It names the steps (columns, signals, credit, update) and holds what must be remembered between
updates: the learner and the credit rule's state. In a cluster it is in the policy's trainer actor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marl_llm.annotate import Annotator, attach
from marl_llm.annotate.material import Material, Reach
from marl_llm.annotate.replays import Replays
from marl_llm.credit import Estimator, assign
from marl_llm.credit.batch import TurnBatch, per_token
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.credit.given import Given, State
from marl_llm.errors import ConfigError
from marl_llm.learn.learner import Learner
from marl_llm.seeds import generator
from marl_llm.types import Episode, Turn

STATE_FILE = "credit.json"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one update was made of."""

    policy: str
    stats: Mapping[str, float]  # `part/role/quantity` without the role
    advantages: np.ndarray  # [M] per sampled token, in the order of the policy's turns
    groups: tuple[int, ...] = ()  # of the episodes, ascending


class Trainer:
    """Learner and credit rule of one policy."""

    def __init__(
        self,
        policy: str,
        learner: Learner,
        estimator: Estimator,
        temperatures: Mapping[str, float],
        seed: int,
        annotators: Mapping[str, Annotator] | None = None,
        reach: Reach | None = None,
    ) -> None:
        """Bring the parts together.

        Args:
            policy: its name.
            learner: its weights and optimizer.
            estimator: its credit rule.
            temperatures: sampling temperature by the name of the seat that sampled.
            seed: the run's.
            annotators: what attaches signals, by name, in this order.
            reach: what annotators and replays may use; needed if there are any.

        Raises:
            ConfigError: there is no reach, and it is needed.
        """
        self.policy, self.learner = policy, learner
        self._estimator, self._temperatures, self._seed = estimator, temperatures, seed
        self._annotators, self._reach = annotators or {}, reach
        self._state: State | None = None
        if reach is None and (self._annotators or estimator.card.resamples):
            raise ConfigError(
                f"policy {policy!r} has annotators, or plays on from turns; give its trainer the "
                "games, seats and engines for that"
            )

    def learn(self, episodes: Sequence[Episode]) -> Lesson:
        """One update; the new weights are the learner's.

        Where the policy had no turn (nobody called it), there is nothing to learn from: its weights
        and their version stay, and the lesson says so (`learn/idle`).
        """
        began = time.perf_counter()
        # Workers finish in any order; the batch, and what remembers it, must not depend on that.
        episodes = sorted(episodes, key=lambda episode: (episode.id, episode.attempt))
        turns = turns_of(episodes, self.policy)
        if not turns:
            return Lesson(self.policy, {"learn/idle": 1.0}, np.zeros(0), groups_of(episodes))
        batch = self._columns(episodes)
        rng = generator(self._seed, "credit", self.policy, self.learner.version)
        given, collected = Given(rng, state=self._state), time.perf_counter()
        if self._reach is not None:
            replays = Replays(
                episodes={episode.id: episode for episode in episodes},
                batch=batch,
                columns=self._columns,
                play=self._reach.play,
            )
            batch = self._annotated(episodes, turns, replays, self._reach)
            given = replace(given, resample=replays)
        annotated = time.perf_counter()
        credit = assign(self._estimator, batch, given)
        self._state = credit.state
        credited = time.perf_counter()
        stats = self.learner.update(turns, batch, credit, self._temperatures_of(turns))
        spent = {"credit/seconds": credited - annotated + collected - began}
        if self._annotators:
            spent["annotate/seconds"] = annotated - collected
        return Lesson(
            policy=self.policy,
            stats={
                **{f"credit/{key}": value for key, value in credit.stats.items()},
                **{f"learn/{key}": value for key, value in stats.items()},
                **spent,
            },
            advantages=per_token(credit, batch),
            groups=groups_of(episodes),
        )

    def _columns(self, episodes: Sequence[Episode]) -> TurnBatch:
        """The policy's turns as credit should see them, without signals."""
        turns = turns_of(episodes, self.policy)
        batch = from_episodes(episodes, self.policy)
        return self.learner.penalised(turns, batch, self._temperatures_of(turns))

    def _temperatures_of(self, turns: Sequence[Turn]) -> np.ndarray:
        """At which each turn was sampled, [N]."""
        return np.array([self._temperatures[turn.player] for turn in turns], dtype=np.float64)

    def _annotated(
        self, episodes: Sequence[Episode], turns: Sequence[Turn], replays: Replays, reach: Reach
    ) -> TurnBatch:
        """The batch with the signals of all annotators."""
        seed = self._seed, "annotate", self.policy, self.learner.version
        material = Material(
            policy=self.policy,
            episodes=tuple(episodes),
            turns=tuple(turns),
            batch=replays.batch,
            temperatures=self._temperatures_of(turns),
            probe=self.learner,
            reach=reach,
            replays=replays,
            rng=generator(*seed),
        )
        return attach(self._annotators, material, *seed)

    def save(self, folder: Path) -> None:
        """Write the learner and the credit rule's state into an empty folder."""
        self.learner.save(folder)
        (folder / STATE_FILE).write_text(json.dumps(self._state))

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        self.learner.restore(folder)
        self._state = json.loads((folder / STATE_FILE).read_text())


def groups_of(episodes: Sequence[Episode]) -> tuple[int, ...]:
    """Their groups, ascending."""
    return tuple(sorted({episode.group for episode in episodes}))
