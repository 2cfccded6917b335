"""One policy's trainer: finished episodes in, new weights out.

It names the steps (columns, credit, update) and holds what must be remembered between updates: the
learner and the credit rule's state. In a cluster this class sits in the policy's trainer actor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marl_llm.credit import Estimator, Remembering, State
from marl_llm.credit.batch import Credit, TurnBatch, from_episodes, per_token, turns_of
from marl_llm.errors import TrainingError
from marl_llm.learn.learner import Learner
from marl_llm.seeds import generator
from marl_llm.types import Episode

STATE_FILE = "credit.json"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one update was made of."""

    policy: str
    stats: Mapping[str, float]  # `part/role/quantity` without the role
    advantages: np.ndarray  # [M] per sampled token, in the order of the policy's turns


def estimate(
    estimator: Estimator | Remembering,
    batch: TurnBatch,
    rng: np.random.Generator,
    state: State | None,
) -> Credit:
    """An estimator's answer, with its state if it is one that remembers."""
    if isinstance(estimator, Remembering):
        return estimator.estimate(batch, rng=rng, state=state)
    return estimator.estimate(batch, rng=rng)


class Trainer:
    """Learner and credit rule of one policy."""

    def __init__(
        self,
        policy: str,
        learner: Learner,
        estimator: Estimator,
        temperatures: Mapping[str, float],
        seed: int,
    ) -> None:
        """Bring the parts together.

        Args:
            policy: its name.
            learner: its weights and optimizer.
            estimator: its credit rule.
            temperatures: sampling temperature by the name of the seat that sampled.
            seed: the run's.
        """
        self.policy, self.learner = policy, learner
        self._estimator, self._temperatures, self._seed = estimator, temperatures, seed
        self._state: State | None = None

    def learn(self, episodes: Sequence[Episode]) -> Lesson:
        """One update; the new weights are the learner's.

        Raises:
            TrainingError: the policy sampled nothing in these episodes.
        """
        began = time.perf_counter()
        # Workers finish in any order; the batch, and what remembers it, must not depend on that.
        episodes = sorted(episodes, key=lambda episode: (episode.id, episode.attempt))
        turns = turns_of(episodes, self.policy)
        if not turns:
            raise TrainingError(
                f"policy {self.policy!r} took no turn in {len(episodes)} episodes; "
                "does a line-up seat it?"
            )
        batch = from_episodes(episodes, self.policy)
        temperatures = np.array([self._temperatures[turn.player] for turn in turns])
        batch = self.learner.penalised(turns, batch, temperatures)
        rng = generator(self._seed, "credit", self.policy, self.learner.version)
        credit = estimate(self._estimator, batch, rng, self._state)
        self._state = credit.state
        credited = time.perf_counter()
        stats = self.learner.update(turns, batch, credit, temperatures)
        return Lesson(
            policy=self.policy,
            stats={
                **{f"credit/{key}": value for key, value in credit.stats.items()},
                **{f"learn/{key}": value for key, value in stats.items()},
                "credit/seconds": credited - began,
            },
            advantages=per_token(credit, batch),
        )

    def save(self, folder: Path) -> None:
        """Write the learner and the credit rule's state into an empty folder."""
        self.learner.save(folder)
        (folder / STATE_FILE).write_text(json.dumps(self._state))

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        self.learner.restore(folder)
        self._state = json.loads((folder / STATE_FILE).read_text())
