"""The journal of a run: everything that is written down or shown while it goes on.

Metrics, sampled games, policy tables, checkpoints, the summary and the report all go through here, so
that the loop only says what happened.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from marl_llm.learn import checkpoints
from marl_llm.measure import Measurement
from marl_llm.report.episodes import advantages_by_turn, write_episodes
from marl_llm.report.html import write_report
from marl_llm.report.live import LiveView, game_line
from marl_llm.report.metrics import MetricsLog, read, replace_text, shown
from marl_llm.report.picture import draw_headline
from marl_llm.report.summary import headline, metric_range, peak_memory_gb, write_summary
from marl_llm.settings import RunSettings
from marl_llm.trainer import Lesson
from marl_llm.types import FORFEITS, Episode

POLICIES = "policies"  # folder of policy tables
PICTURE = "curve.png"


def rollout_metrics(episodes: Sequence[Episode], seconds: float) -> dict[str, float]:
    """What an update's games were like: `rollout/<role>/<quantity>`.

    Args:
        episodes: of one update.
        seconds: how long they took.
    """
    metrics: dict[str, float] = {}
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy is not None]
    outcomes = Counter(outcome for episode in episodes for outcome in episode.outcomes.values())
    tokens = sum(len(turn.ids) for turn in turns)
    role = turns[0].observation.role if turns else "player"
    metrics[f"rollout/{role}/tokens_per_second"] = tokens / max(seconds, 1e-9)
    metrics[f"rollout/{role}/reply_tokens"] = tokens / max(len(turns), 1)
    metrics[f"rollout/{role}/game_turns"] = sum(len(e.turns) for e in episodes) / len(episodes)
    for kind in sorted(FORFEITS):
        metrics[f"rollout/{role}/forfeit_{kind}_share"] = outcomes[kind] / len(episodes)
    metrics[f"rollout/{role}/forfeit_share"] = sum(outcomes[k] for k in FORFEITS) / len(episodes)
    metrics[f"rollout/{role}/truncated_share"] = sum(not e.terminated for e in episodes) / len(
        episodes
    )
    seats: dict[str, list[float]] = {}
    for episode in episodes:
        for agent, value in episode.returns.items():
            seats.setdefault(agent, []).append(value)
    for agent, values in seats.items():
        metrics[f"rollout/{agent}/return"] = sum(values) / len(values)
    metrics[f"rollout/{role}/shaping"] = sum(turn.shaping for turn in turns) / max(len(turns), 1)
    metrics[f"rollout/{role}/seconds"] = seconds
    return metrics


class Journal:
    """Writes one run folder; use as a context manager."""

    def __init__(
        self,
        run: RunSettings,
        run_dir: Path,
        view: LiveView,
        decode: Mapping[str, Callable[[int], str]],
        start: int,
        seconds: float,
    ) -> None:
        """Open the journal of a run.

        Args:
            run: the settings.
            run_dir: its folder.
            view: where people look.
            decode: one token id as text, by policy.
            start: updates done before.
            seconds: of training before.
        """
        self._run, self._dir, self._view, self._decode = run, run_dir, view, decode
        self._metrics = MetricsLog(run_dir)
        if start:
            self._metrics.truncate_after(start)
        self._began = time.monotonic() - seconds
        self._update_began = self._collected = self._began
        self._tokens = 0

    @property
    def seconds(self) -> float:
        """Of training so far, cold start not counted."""
        return time.monotonic() - self._began

    def begin(self, update: int) -> None:
        """An update starts."""
        self._view.stage("playing and learning")
        self._update_began = time.monotonic()

    def collected(self, episodes: Sequence[Episode]) -> None:
        """Its episodes are there."""
        self._collected = time.monotonic()
        self._tokens += sum(len(turn.ids) for episode in episodes for turn in episode.turns)

    def learned(
        self, update: int, episodes: Sequence[Episode], lessons: Mapping[str, Lesson]
    ) -> None:
        """Every policy has learned from them."""
        now = time.monotonic()
        metrics = rollout_metrics(episodes, self._collected - self._update_began)
        for policy, lesson in lessons.items():
            for key, value in lesson.stats.items():
                part, _, quantity = key.partition("/")
                metrics[f"{part}/{policy}/{quantity}"] = value
            taken = lesson.stats.get("learn/seconds", 0.0)
            if taken > 0:
                metrics[f"learn/{policy}/tokens_per_second"] = lesson.stats["learn/tokens"] / taken
        metrics["run/all/update_seconds"] = now - self._update_began
        metrics["run/all/tokens_per_second"] = self._tokens / max(now - self._began, 1e-9)
        self._metrics.log(update, metrics)
        self._view.update(update, metrics, game_line(episodes[0]))
        if update == self._run.updates or update % self._run.evaluation.every == 0:
            self._keep_episodes(update, episodes, lessons)

    def _keep_episodes(
        self, update: int, episodes: Sequence[Episode], lessons: Mapping[str, Lesson]
    ) -> None:
        advantages = {}
        for policy, lesson in lessons.items():
            advantages |= advantages_by_turn(episodes, policy, lesson.advantages.tolist())
        kept = spread(episodes, self._run.run.episodes)
        decode = next(iter(self._decode.values()))
        write_episodes(self._dir, update, kept, decode, advantages)

    def measured(self, update: int, measurement: Measurement) -> None:
        """The policies were measured."""
        self._metrics.log(update, measurement.metrics)
        self._view.update(update, measurement.metrics)
        for game, table in measurement.policies.items():
            path = self._dir / POLICIES / f"update_{update:06d}.json"
            path.parent.mkdir(exist_ok=True)
            replace_text(path, json.dumps(table.as_json()))
        self.summarise(update, "running")

    def checkpoint(self, update: int, save: Callable[[str, Path], None]) -> None:
        """Keep every policy's whole state."""
        checkpoints.save(
            self._dir,
            update,
            {
                policy: lambda folder, policy=policy: save(policy, folder)
                for policy in self._run.policies
            },
            {"seconds": self.seconds},
            keep=self._run.run.keep,
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
        }
        judged = headline(rows)
        if judged is not None:
            better = "lower" if judged.quantity.better == "lower" else "higher"
            summary[judged.quantity.name] = metric_range(rows, judged.key, better)
        for item in shown(rows):
            if item.key.startswith("rollout/") and item.quantity.name == "forfeit_share":
                summary["forfeits"] = metric_range(rows, item.key)
        rates = [
            row["run/all/tokens_per_second"] for row in rows if "run/all/tokens_per_second" in row
        ]
        if rates:
            summary["tokens_per_second"] = rates[-1]
        write_summary(self._dir, summary)

    def finish(self, update: int, status: str) -> Path:
        """Write the summary, the picture and the report; where the report lies."""
        self.summarise(update, status)
        if headline(read(self._dir)) is not None:
            draw_headline([self._dir], self._dir / PICTURE)
        return write_report(self._dir)

    def close(self) -> None:
        """Let the files go."""
        self._metrics.close()


def spread(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """`count` episodes spread evenly over a batch, so that all games are seen."""
    step = max(1, len(episodes) // max(count, 1))
    return list(episodes[::step])[:count]
