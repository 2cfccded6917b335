"""The loop: collect, learn, measure, keep. All it needs it is given.

The same lines run in one process and over Ray: a `Runtime` hides where engines and learners live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from marl_llm.journal import Journal, measured_after
from marl_llm.measure import Measurer
from marl_llm.rollout.plans import Plan, balanced
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings
from marl_llm.trainer import Lesson
from marl_llm.types import Episode


class Runtime(Protocol):
    """Where the parts of a run live: `local.LocalRuntime` or `cluster.runtime.RayRuntime`."""

    def serving(self) -> Mapping[str, Engine]:
        """Engines by policy, freshly loaded with the latest weights.

        Loading also makes an engine forget what it computed before, so that what comes next does
        not hang on what came before: a resumed run goes on as if it had never been stopped.
        """

    def collect(self, plans: Sequence[Plan]) -> list[Episode]:
        """Play these episodes and put them into the store of every policy."""

    def learn(self, policy: str, episodes: int) -> Lesson:
        """Claim that many episodes, whole groups, update the policy once, publish its weights."""

    def save(self, policy: str, folder: Path) -> None:
        """Write the policy's learner, whole, into an empty folder."""

    def restore(self, policy: str, folder: Path) -> None:
        """Go on from what `save` wrote."""

    def save_store(self, path: Path) -> None:
        """Write a file of the store as it is."""

    def restore_store(self, path: Path) -> None:
        """Go on with what `save_store` wrote; before the policies, whose weights it lacks."""

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
    makers = run.makers()
    agents = {name: list(makers[name]().possible_agents) for name in run.games}
    rollout = run.rollout
    if start == 0:
        journal.measured(0, measurer.measure(0, runtime.serving()))
    done, stop = start, stopped()
    while done < run.updates and not stop:
        journal.begin()
        plans = balanced(
            run.seed, done, rollout.episodes, rollout.group_size, agents, rollout.lineups
        )
        episodes = runtime.collect(plans)
        journal.collected(episodes)
        lessons = {policy: runtime.learn(policy, len(episodes)) for policy in run.policies}
        done += 1
        journal.learned(done, episodes, lessons)
        if measured_after(run, done):
            journal.measured(done, measurer.measure(done, runtime.serving()))
        stop = stopped()
        if stop or done == run.updates or done % run.run.checkpoint_every == 0:
            journal.checkpoint(done, runtime.save, runtime.save_store)
    return done
