"""The loop: collect, learn, measure, keep. All it needs it is given.

The same lines run in one process and over Ray: a `Runtime` hides where engines and learners live,
and says when something is done. With ``max_staleness: 0`` an update's games are played by the very
weights that learn from them. With more, the games of the next updates are played while policies
still learn, each at its own pace, and none ever sees a record of its own that is further behind
than it allows.
"""

from __future__ import annotations

from collections.abc import Callable

from marl_llm.journal import Journal, measured_after
from marl_llm.measure import Measurer
from marl_llm.rollout.plans import Plan, balanced
from marl_llm.runtime import Collected, Learned, Runtime
from marl_llm.settings import RunSettings
from marl_llm.trainer import Lesson


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
    if start == 0:
        journal.measured(0, measurer.measure(0, runtime.serving()))
    done, stop = start, stopped()
    while done < run.updates and not stop:
        done = advance(run, runtime, journal, done, halt_after(run, done), stopped)
        stop = stopped()
        if measured_after(run, done):
            journal.measured(done, measurer.measure(done, runtime.serving()))
        if stop or kept_after(run, done):
            journal.checkpoint(done, runtime.save, runtime.save_store)
    return done


def kept_after(run: RunSettings, update: int) -> bool:
    """Whether there is a checkpoint after an update."""
    return update == run.updates or update % run.run.checkpoint_every == 0


def halt_after(run: RunSettings, done: int) -> int:
    """The next update after which all policies must stand still: to be measured, or kept."""
    return next(
        update
        for update in range(done + 1, run.updates + 1)
        if measured_after(run, update) or kept_after(run, update)
    )


def advance(
    run: RunSettings,
    runtime: Runtime,
    journal: Journal,
    start: int,
    end: int,
    stopped: Callable[[], bool],
) -> int:
    """Go on from update `start` to `end`, or to less if stopped; how many are done then.

    Games of an update begin once no policy is further behind than the staleness allows; a policy
    learns as soon as its next games are there. What was begun is brought to its end.
    """
    at = {name: start for name, policy in run.policies.items() if policy.trained}  # next lesson
    asked = done = start
    games: dict[int, Collected] = {}
    lessons: dict[int, dict[str, Lesson]] = {}
    busy: set[str] = set()
    journal.begin()
    while done < end:
        while asked < end and all(asked - at[name] <= run.staleness(name) for name in at):
            runtime.collect(asked, plans_of(run, asked))
            asked += 1
        match runtime.wait():
            case Collected() as collected:
                games[collected.update] = collected
            case Learned(lesson):
                busy.remove(lesson.policy)
                lessons.setdefault(at[lesson.policy], {})[lesson.policy] = lesson
                at[lesson.policy] += 1
        for policy in at:
            while policy not in busy and at[policy] in games:
                if run.policies[policy].learns(at[policy]):
                    busy.add(policy)
                    runtime.learn(policy, at[policy])
                else:
                    at[policy] += 1
        while done < min(at.values()):
            journal.learned(done + 1, games.pop(done), lessons.pop(done, {}))
            done += 1
            end = asked if stopped() else end
    return done


def plans_of(run: RunSettings, update: int) -> list[Plan]:
    """The episodes of an update."""
    makers, rollout = run.makers(), run.rollout
    roles = {name: makers[name]().roles for name in run.games}
    return balanced(run.seed, update, rollout.episodes, rollout.group_size, roles, rollout.lineups)
