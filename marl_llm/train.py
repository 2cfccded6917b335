"""The loop: collect, learn, measure, keep. All it needs it is given.

The same lines run in one process and over Ray: a `Runtime` hides where engines and learners live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from marl_llm.journal import Journal
from marl_llm.measure import Measurer
from marl_llm.rollout.plans import Plan, balanced
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.trainer import Lesson
from marl_llm.types import Episode


class Runtime(Protocol):
    """Where the parts of a run live: `local.LocalRuntime` or `cluster.runtime.RayRuntime`."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """By policy, with the latest weights."""

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Play these episodes and put them into the store."""

    def learn(self, policy: str, episodes: int) -> Lesson:
        """Claim that many episodes, update the policy once, publish and load its weights."""

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""

    def close(self) -> None:
        """End every process that the runtime started."""


def train(
    run: RunSettings,
    runtime: Runtime,
    measurer: Measurer,
    journal: Journal,
    start: int,
    stopped: Callable[[], bool],
) -> int:
    """Run updates `start` to `run.updates` and return how many are done in all.

    Args:
        run: the run's settings.
        runtime: engines and learners, in the state after update `start`.
        measurer: evaluates, every `run.evaluation.every` updates and at both ends.
        journal: writes everything down.
        start: updates already done.
        stopped: True once the user wants to stop; asked between updates.
    """
    agents = {name: list(make().possible_agents) for name, make in run.makers().items() if name in run.games}
    if start == 0:
        journal.measured(0, measurer.measure(0, runtime.engines))
    done = start
    while done < run.updates and not stopped():
        plans = balanced(
            run.seed,
            done,
            run.rollout.episodes,
            run.rollout.group_size,
            agents,
            run.rollout.lineups,
        )
        journal.begin(done + 1)
        episodes = runtime.collect(plans)
        journal.collected(episodes)
        lessons = {policy: runtime.learn(policy, len(episodes)) for policy in run.policies}
        done += 1
        journal.learned(done, episodes, lessons)
        last = done == run.updates
        if last or done % run.evaluation.every == 0:
            journal.measured(done, measurer.measure(done, runtime.engines))
        if last or done % run.run.checkpoint_every == 0 or stopped():
            journal.checkpoint(done, runtime.save)
    return done
