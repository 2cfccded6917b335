"""`marl-llm bench calls`: does credit find what each call of a delegation was worth?

A scripted team plays needle_pool, and every rule is asked about the same calls (`sub_calls.py`).
Three ways to pay stand side by side: `m_grpo` as the paper does, `own` by the checkable truth of
the own report only, `team` all of it by the planner's answer. Leaving one out is done in three
ways: the stored game is counted again without the report; play goes on from where the report is
missing, the planner free to call again; and the annotator `agent_ablation` plays whole games with a
stand-in in the seat. The first way, and Shapley values, ask the game for what is to be found out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from marl_llm import config
from marl_llm.agents.scripted import Uniform
from marl_llm.annotate.agent_ablation import AgentAblation
from marl_llm.annotate.replays import Replays
from marl_llm.commands.words import read
from marl_llm.credit import assign
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.columns import from_episodes
from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError
from marl_llm.evaluate.sub_calls import (
    GAME,
    POLICY,
    Calls,
    InTime,
    Score,
    Team,
    alignment_noise,
    as_policy,
    draw_calls,
    of_calls,
    replayed_without,
    score,
)
from marl_llm.games.delegation import Pay
from marl_llm.games.needle_pool import LEVELS, NeedlePool
from marl_llm.rollout.play import play
from marl_llm.seeds import derive, generator

PAYS = {  # name -> what it says
    "m_grpo": Pay(),
    "own": Pay(format=0.0, correct=1.0, sub_format=0.0, sub_main=0.0, sub_own=1.0),
    "team": Pay(format=0.0, correct=1.0, sub_format=0.0, sub_main=1.0, sub_own=0.0),
}
ALIGNED_TO = (1, 2, 4, 8, 16, 32)  # d of the random alignment
NOISE_LEVEL = 5  # up to six calls
CONTINUATIONS = 4

Without = Callable[[Calls], TurnBatch]  # the batch with another `return_without`


@dataclass(frozen=True, slots=True)
class Row:
    """One rule as it is asked."""

    rule: str  # of configs/credit
    pay: str
    how: str = ""  # what is special about it
    settings: Mapping[str, Any] = field(default_factory=dict)
    without: Without | None = None

    @property
    def title(self) -> str:
        """What the table calls it."""
        return f"{self.rule}, {self.how}" if self.how else self.rule


def going_on(calls: Calls) -> TurnBatch:
    """`return_without` by playing on without the report."""
    return calls.batch.with_signals({"return_without": replayed_without(calls, CONTINUATIONS)})


def ablated(calls: Calls) -> TurnBatch:
    """`return_without` by the annotator, with a stand-in that reports at random."""
    seats, games = calls.team.seats(), {GAME: calls.make}
    seed = derive(calls.seed, "ablated")
    replays = Replays(
        episodes={episode.id: episode for episode in calls.episodes},
        batch=calls.batch,
        columns=lambda episodes: from_episodes(as_policy(list(episodes)), POLICY),
        play=lambda plans, players: play(plans, games, {**seats, **players}, {}, seed=seed),
    )
    material: Any = SimpleNamespace(batch=calls.batch, replays=replays)  # all that it reads
    annotator = AgentAblation(player=InTime(Uniform()), count=CONTINUATIONS)
    return calls.batch.with_signals(annotator.annotate(material))


ROWS = (
    Row("m_grpo", "m_grpo"),
    Row("m_grpo", "m_grpo", "by call index", {"by": ["group", "role", "depth", "agent"]}),
    Row("dr_mas", "m_grpo"),
    Row("mars", "m_grpo"),
    Row("matpo", "team"),
    Row("m_grpo", "team"),
    Row("m_grpo", "own"),
    Row("dr_mas", "own"),
    Row("leave_one_out", "team", "counted again"),
    Row("leave_one_out", "team", "play goes on", without=going_on),
    Row("leave_one_out", "team", "agent_ablation", without=ablated),
    Row("shapley", "team"),
    Row("shapley", "team", "calls pooled", {"by": ["group", "role"]}),
)


def main(words: Sequence[str]) -> int:
    """`marl-llm bench calls [--json FILE] [groups=N] [size=N] [level=N] [draws=N] [seed=N]`."""
    options = read(words, "bench calls", keys=("json", "groups", "size", "level", "draws", "seed"))
    level = options.number("level", 3, least=1)
    if level not in LEVELS:
        raise ConfigError(f"bench calls: level is one of {list(LEVELS)}, got {level}")
    console = Console(stderr=True)
    with console.status("") as status:
        result = measure(
            groups=options.number("groups", 200, least=2),
            size=options.number("size", 8, least=2),
            level=level,
            draws=options.number("draws", 200, least=2),
            seed=options.number("seed", 0),
            stage=status.update,
        )
    print(markdown(result), end="")
    if "json" in options.values:
        text = json.dumps(result, indent=1) + "\n"
        Path(options.values["json"]).write_text(text, encoding="utf-8")
    return 0


def measure(
    *,
    groups: int,
    size: int,
    level: int,
    draws: int,
    seed: int,
    stage: Callable[[str], object] = print,
) -> dict[str, Any]:
    """All figures.

    Args:
        groups: different starts.
        size: episodes of each.
        level: of needle_pool.
        draws: of the random alignment.
        seed: of everything.
        stage: told what goes on now.
    """
    found: dict[str, Any] = {}
    for reward in ("sum", "product"):
        stage(f"playing {reward}")
        drawn = {
            name: draw_calls(
                partial(NeedlePool, level=level, reward=reward, pay=pay),
                Team(),
                groups=groups,
                size=size,
                seed=seed,
            )
            for name, pay in PAYS.items()
        }
        rows = {}
        for row in ROWS:
            stage(f"{reward}: {row.title}, pay {row.pay}")
            calls = drawn[row.pay]
            rows[f"{row.title} | {row.pay}"] = asdict(score(credit_of(row, calls), calls, seed))
        noise = generator(seed, "control").normal(size=len(drawn["team"].rows))
        rows["random | –"] = asdict(score(noise, drawn["team"], seed))
        found[reward] = {"rows": rows, **facts(drawn["team"])}
    stage("random alignment")
    varying = draw_calls(
        partial(NeedlePool, level=NOISE_LEVEL), Team(), groups=groups, size=size, seed=seed
    )
    return {
        "settings": {"groups": groups, "size": size, "level": level, "draws": draws, "seed": seed},
        "rewards": found,
        "alignment": {
            "level": NOISE_LEVEL,
            **facts(varying),
            "rows": [asdict(alignment_noise(varying.batch, d, draws, seed)) for d in ALIGNED_TO],
        },
    }


def credit_of(row: Row, calls: Calls) -> Array:
    """What a rule says of each call, [C]."""
    batch = calls.batch if row.without is None else row.without(calls)
    estimator = config.build({**config.node("credit", row.rule), **row.settings})
    return of_calls(assign(estimator, batch), calls)


def facts(calls: Calls) -> dict[str, Any]:
    """What the episodes are like."""
    per_episode = np.bincount(calls.batch.episode[calls.rows], minlength=len(calls.episodes))
    right = np.array([episode.returns["planner"] for episode in calls.episodes])
    return {
        "calls": len(calls.rows),
        "episodes_by_calls": np.bincount(per_episode).tolist(),
        "planner_return": float(right.mean()),
        "worthless": float(np.mean(calls.shapley == 0)),
        "shared": float(np.mean(np.abs(calls.shapley - calls.left_out) > 1e-9)),
    }


def markdown(result: Mapping[str, Any]) -> str:
    """The tables."""
    settings, rewards = result["settings"], result["rewards"]
    lines = [
        f"needle_pool level {settings['level']}, {settings['groups']} groups of "
        f"{settings['size']} episodes, seed {settings['seed']}. Pearson's r over calls, 95 % "
        "intervals over groups."
    ]
    for reward, found in rewards.items():
        lines += [
            "",
            f"`reward={reward}`: {found['calls']:,} calls, {found['worthless']:.0%} of them worth "
            f"nothing, planner's mean {found['planner_return']:.2f}.",
            "",
            "| rule | pay | with the Shapley value | the same inside groups | with what is lost "
            "without it |",
            "|---|---|---|---|---|",
        ]
        for name, row in found["rows"].items():
            each = " | ".join(_interval(row[part]) for part in Score.__slots__)
            lines.append(f"| {name} | {each} |")
    aligned = result["alignment"]
    by_calls = ", ".join(f"{n} × {k}" for k, n in enumerate(aligned["episodes_by_calls"]) if n)
    lines += [
        "",
        f"Random alignment to d calls, level {aligned['level']} (episodes × calls: {by_calls}), "
        f"{settings['draws']} draws:",
        "",
        "| d | calls dropped | sd of a group's mean | its bias | variance of the gradient |",
        "|---|---|---|---|---|",
    ]
    for row in aligned["rows"]:
        lines.append(
            f"| {row['size']} | {row['dropped']:.0%} | {row['baseline']:.3f} | "
            f"{row['bias']:+.4f} ± {row['bias_error']:.4f} | × {row['variance']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
