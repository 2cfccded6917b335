"""The journal of a run: everything that is written down or shown while it goes on.

Metrics, sampled games, policy tables, checkpoints, the summary and the report all go through here,
so that the loop only says what happened.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from marl_llm.agents.plan_execute import PlanExecute
from marl_llm.errors import TrainingError
from marl_llm.learn import checkpoints
from marl_llm.learn.checkpoints import Checkpoint
from marl_llm.measure import Measurement
from marl_llm.report.alarms import alarms
from marl_llm.report.calls import call_metrics
from marl_llm.report.episodes import EPISODES_FOLDER, TurnKey, advantages_by_turn, write_episodes
from marl_llm.report.html import POLICIES_FOLDER, write_report
from marl_llm.report.live import LiveView, game_line
from marl_llm.report.metrics import METRICS_FILE, MetricsLog, Row, read, replace_text, shown
from marl_llm.report.picture import PICTURE_FILE, draw_headline
from marl_llm.report.summary import (
    headline,
    metric_range,
    peak_memory_gb,
    read_summary,
    write_summary,
)
from marl_llm.runtime import Collected
from marl_llm.settings import RunSettings
from marl_llm.store import FILE as STORE_FILE
from marl_llm.trainer import Lesson
from marl_llm.types import FORFEITS, Episode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    updates: int = 0
    seconds: float = 0.0  # of training; cold start and start-up not counted
    tokens: int = 0  # sampled in training

    @classmethod
    def of(cls, kept: Checkpoint | None) -> Progress:
        """Where a checkpoint stands; None = at the start."""
        if kept is None:
            return cls()
        return cls(kept.update, float(kept.scalars["seconds"]), int(kept.scalars["tokens"]))


def measured_after(run: RunSettings, update: int) -> bool:
    """Whether policies are measured, and games kept, after this update."""
    return update == run.updates or update % run.evaluation.every == 0


class Journal:
    """Writes one run folder."""

    def __init__(
        self,
        run: RunSettings,
        run_dir: Path,
        view: LiveView,
        decoders: Mapping[str, Callable[[int], str]],
        start: Progress,
    ) -> None:
        """Open the journal of a run; what was written after `start` is forgotten.

        Args:
            run: the settings.
            run_dir: its folder.
            view: where people look.
            decoders: by policy, one token id as text.
            start: how far the run has come.
        """
        self._run, self._dir, self._view, self._decoders = run, run_dir, view, decoders
        resumed = (run_dir / METRICS_FILE).exists()
        self._metrics = MetricsLog(run_dir)
        if resumed:
            # Without a checkpoint the first measurement is made again too.
            self._metrics.truncate_after(start.updates or -1)
            forget_after(run_dir, start.updates or -1)
        self._tokens = start.tokens
        self._began = time.monotonic() - start.seconds
        self._update_began = self._began
        self._news: dict[str, float] = {}  # of an update that is still to be measured
        self._game = ""
        parsers = {name: seat.role.parser for name, seat in run.seats.items()}
        self._planners = {n: p for n, p in parsers.items() if isinstance(p, PlanExecute)}

    @property
    def seconds(self) -> float:
        """Of training so far."""
        return time.monotonic() - self._began

    def begin(self) -> None:
        """Updates go on."""
        self._view.stage("playing and learning")
        self._update_began = time.monotonic()

    def learned(self, update: int, collected: Collected, lessons: Mapping[str, Lesson]) -> None:
        """An update is done: its games were played, and every policy has learned from them."""
        episodes = [episode for episode in collected.episodes if episode.void is None]
        for policy, lesson in lessons.items():
            check_groups(update, policy, lesson, collected.episodes)
        self._tokens += sum(len(turn.ids) for episode in episodes for turn in episode.turns)
        metrics = rollout_metrics(episodes, collected.seconds)
        metrics |= plan_metrics(episodes, self._planners)
        metrics["rollout/all/void_share"] = 1 - len(episodes) / len(collected.episodes)
        metrics |= {f"serve/{name}/busy_share": share for name, share in collected.busy.items()}
        for policy, lesson in lessons.items():
            metrics |= learning_metrics(policy, lesson)
        now = time.monotonic()
        metrics["run/all/update_seconds"] = now - self._update_began
        self._update_began = now
        metrics["run/all/tokens_per_second"] = self._tokens / max(self.seconds, 1e-9)
        self._metrics.log(update, metrics)
        self._news, self._game = metrics, game_line(episodes[0])
        if measured_after(self._run, update):
            self._keep_episodes(update, episodes, lessons)
            self._view.stage("measuring")
        else:
            self._view.update(update, metrics, self._game)

    def measured(self, update: int, measurement: Measurement) -> None:
        """The policies were measured."""
        self._metrics.log(update, measurement.metrics)
        self._view.update(update, {**self._news, **measurement.metrics}, self._game)
        tables = {game: found.as_json() for game, found in measurement.policies.items()}
        if tables:
            path = self._dir / POLICIES_FOLDER / f"update_{update:06d}.json"
            replace_text(path, json.dumps(tables))
        self.summarise(update, "running")

    def checkpoint(
        self,
        update: int,
        save: Callable[[str, Path], None],
        save_store: Callable[[Path], None],
    ) -> None:
        """Keep every policy's whole state and what is in the store.

        With the score of just now, if it was measured.

        Args:
            update: updates done.
            save: writes a policy's state into an empty folder.
            save_store: writes the store into a new file.
        """

        def writer(policy: str) -> Callable[[Path], None]:
            return lambda folder: save(policy, folder)

        checkpoints.save(
            self._dir,
            update,
            {policy: writer(policy) for policy in self._run.policies},
            {"seconds": self.seconds, "tokens": self._tokens},
            keep=self._run.run.keep,
            score=score_at(read(self._dir), update),
            files={STORE_FILE: save_store},
        )

    def summarise(self, update: int, status: str) -> None:
        """Write summary.json as things stand."""
        rows = read(self._dir)
        summary: dict[str, object] = {
            "experiment": self._run.experiment,
            "seed": self._run.seed,
            "updates": update,
            "seconds": self.seconds,
            "status": status,
            "games": list(self._run.games),
            "peak_memory_gb": peak_memory_gb(),
            "references": dict(self._run.evaluation.references),
            "alarms": [asdict(alarm) for alarm in alarms(rows)],
        }
        judged = headline(rows)
        if judged is not None:
            lower = judged.quantity.better == "lower"
            summary[judged.quantity.name] = metric_range(
                rows, judged.key, "lower" if lower else "higher"
            )
        for item in shown(rows):
            if item.quantity.name == "success_greedy":
                summary["success_greedy"] = metric_range(rows, item.key, "higher")
            if item.key.startswith("rollout/") and item.quantity.name == "forfeit_share":
                summary["forfeits"] = metric_range(rows, item.key)
        if update:
            summary["tokens_per_second"] = self._tokens / max(self.seconds, 1e-9)
        write_summary(self._dir, summary)

    def finish(self, update: int, status: str) -> Path:
        """Write the summary, the picture and the report; where the report lies."""
        self._view.stage("writing the report")
        self.summarise(update, status)
        if headline(read(self._dir)) is not None:
            draw_headline([self._dir], self._dir / PICTURE_FILE)
        return write_report(self._dir)

    def close(self) -> None:
        """Let the files go."""
        self._metrics.close()

    def _keep_episodes(
        self, update: int, episodes: Sequence[Episode], lessons: Mapping[str, Lesson]
    ) -> None:
        advantages: dict[TurnKey, Sequence[float]] = {}
        for policy, lesson in lessons.items():
            of_it = [episode for episode in episodes if episode.group in set(lesson.groups)]
            advantages |= advantages_by_turn(of_it, policy, lesson.advantages.tolist())
        kept = kept_games(episodes, self._run.run.episodes)
        write_episodes(self._dir, update, kept, self._decoders, advantages)


def check_groups(update: int, policy: str, lesson: Lesson, episodes: Sequence[Episode]) -> None:
    """Refuse a lesson that was not learned from the games of its update.

    Raises:
        TrainingError: naming the groups that it lacks, or that belong to another update.
    """
    sizes = Counter(episode.group for episode in episodes)
    good = Counter(episode.group for episode in episodes if episode.void is None)
    played = {group for group, size in sizes.items() if good[group] >= min(2, size)}
    learned = set(lesson.groups)
    if played != learned:
        raise TrainingError(
            f"update {update} of policy {policy!r} learned from other games than were played for "
            f"it: lacking {sorted(played - learned)[:5]}, foreign {sorted(learned - played)[:5]}"
        )


def score_at(rows: Sequence[Row], update: int) -> float | None:
    """The headline metric after an update, higher is better; None if it was not measured then.

    What was measured some updates before would give its credit to other weights.
    """
    judged = headline(rows)
    if judged is None:
        return None
    value = next((row.get(judged.key) for row in rows if row["update"] == update), None)
    return -value if value is not None and judged.quantity.better == "lower" else value


def rollout_metrics(episodes: Sequence[Episode], seconds: float) -> dict[str, float]:
    """What an update's games were like: `rollout/<role>/<quantity>`, roles pooled as `all`.

    Shares are of episodes, each counted once whatever number of agents a fault befell. What
    planners do is in `report.calls.call_metrics`.

    Args:
        episodes: of one update.
        seconds: how long they took.
    """
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy is not None]
    tokens = sum(len(turn.ids) for turn in turns)
    endings = [set(episode.outcomes.values()) for episode in episodes]
    games = len(episodes)
    metrics = {
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "reply_tokens": tokens / max(len(turns), 1),
        "game_turns": sum(len(episode.turns) for episode in episodes) / games,
        "forfeit_share": sum(not FORFEITS.isdisjoint(ending) for ending in endings) / games,
        "truncated_share": sum(not episode.terminated for episode in episodes) / games,
        "shaping": sum(turn.shaping for turn in turns) / max(len(turns), 1),
        "seconds": seconds,
    }
    for kind in sorted(FORFEITS):
        metrics[f"forfeit_{kind}_share"] = sum(kind in ending for ending in endings) / games
    roles = {turn.observation.role for turn in turns}
    role = roles.pop() if len(roles) == 1 else "all"
    paid: Counter[str] = Counter()
    seated: Counter[str] = Counter()
    for episode in episodes:
        paid.update(episode.returns)
        seated.update(episode.returns.keys())
    return {
        **{f"rollout/{role}/{quantity}": value for quantity, value in metrics.items()},
        **{f"rollout/{agent}/return": paid[agent] / seated[agent] for agent in sorted(seated)},
        **call_metrics(episodes),
    }


def plan_metrics(
    episodes: Sequence[Episode], parsers: Mapping[str, PlanExecute]
) -> dict[str, float]:
    """How often a sub-goal is kept where it could have been: `rollout/<role>/keep_share`.

    An agent's first turn has nothing to keep, and a fault neither keeps nor switches.

    Args:
        episodes: of one update.
        parsers: by seat, of the seats that have sub-goals.
    """
    kept: dict[str, list[bool]] = {}
    for episode in episodes:
        begun: set[str] = set()
        for turn in episode.turns:
            seen, parser = turn.observation, parsers.get(turn.player)
            if parser is None:
                continue
            plan = parser.plan(turn.reply) if turn.fault is None else None
            if plan is not None and seen.agent in begun:
                kept.setdefault(seen.role, []).append(not plan.switch)
            begun.add(seen.agent)
    return {f"rollout/{role}/keep_share": sum(said) / len(said) for role, said in kept.items()}


def learning_metrics(policy: str, lesson: Lesson) -> dict[str, float]:
    """What an update of a policy was like: `learn/<policy>/<quantity>`, `credit/<policy>/...`."""
    metrics = {}
    for key, value in lesson.stats.items():
        part, _, quantity = key.partition("/")
        metrics[f"{part}/{policy}/{quantity}"] = value
    taken = lesson.stats.get("learn/seconds", 0.0)
    if taken > 0:
        metrics[f"learn/{policy}/tokens_per_second"] = lesson.stats["learn/tokens"] / taken
    return metrics


def record_end(run: RunSettings, run_dir: Path, status: str, error: str) -> None:
    """Say in the summary of a run that ended early why it did.

    Args:
        run: the settings.
        run_dir: its folder.
        status: "failed" or "stopped".
        error: in words.
    """
    rows = read(run_dir) if (run_dir / METRICS_FILE).exists() else []
    start = {"experiment": run.experiment, "seed": run.seed, "seconds": 0.0}
    done = int(rows[-1]["update"] or 0) if rows else 0
    ended = {"updates": done, "status": status, "error": error}
    write_summary(run_dir, {**start, **read_summary(run_dir), **ended})


def forget_after(run_dir: Path, update: int) -> None:
    """Remove the games and policy tables of later updates: they will be made again."""
    for folder in (EPISODES_FOLDER, POLICIES_FOLDER):
        for path in (run_dir / folder).glob("update_*"):
            number = re.match(r"update_(\d+)\.", path.name)
            if number and int(number[1]) > update:
                path.unlink()


def kept_games(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """Whole groups, spread evenly over each game of a batch, together at least `count` episodes.

    Groups stay whole so that credit rules which compare within them can be asked later.
    """
    games: dict[str, dict[int, list[Episode]]] = {}
    for episode in episodes:
        games.setdefault(episode.game, {}).setdefault(episode.group, []).append(episode)
    kept: set[int] = set()
    for groups in games.values():
        size = max(map(len, groups.values()))
        number = math.ceil(math.ceil(count / len(games)) / size)
        kept |= {e.id for group in spread(list(groups.values()), number) for e in group}
    return [episode for episode in episodes if episode.id in kept]


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` items spread evenly over a sequence, the first among them."""
    step = max(1, len(items) // max(count, 1))
    return list(items[::step])[:count]
