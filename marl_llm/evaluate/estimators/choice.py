"""Which estimators suit a situation: rules of thumb, and measured figures where there are some.

The rules follow from what separates the families in worlds that are known exactly. A rule that
gives every turn the return of its episode credits turns that cannot matter as much as those that
decide; differences of values, or of probes, do not; judged rules are as good as their judge; and
everything that compares equal states is silent where states do not repeat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_llm.errors import ConfigError

SURE = 0.85  # a judge that is right this often may add to credit; below, it may only share it out
MOST = 6  # names in a short list
MEASURES = ("pairs", "leak", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is at hand."""

    restorable: bool  # games can be set back to a stored turn and played on
    repeating: bool  # half of the turns or more meet a state that another episode met too
    gold: bool  # right answers, and spare forward passes to probe them
    judge: float  # how often a judge of turns is right; 0 = there is none
    agents: bool  # several act for one team
    turnover: bool  # they leave, join or are replaced in mid-episode


@dataclass(frozen=True, slots=True)
class Rule:
    """A family, when it applies, and why."""

    when: Callable[[Situation], bool]
    names: tuple[str, ...]
    why: str


RULES = (  # the strongest first
    Rule(
        lambda s: s.turnover,
        ("toca_stratified_reading", "toca_loo_reading"),
        "a baseline per schedule of events: who stays is not blamed for who left",
    ),
    Rule(
        lambda s: s.gold,
        ("trace_delta", "info_gain_reading"),
        "differences of a probe: a turn that brings nothing gets next to nothing. Adding the "
        "outcome to it would undo that",
    ),
    Rule(
        lambda s: s.repeating,
        ("graft_values", "rtmc"),
        "values counted over equal states, at no cost; silent where a state is met once",
    ),
    Rule(
        lambda s: s.restorable,
        ("vine_ppo",),
        "continuations from the very turn say what it changed: dear, so for checks and for few "
        "hard turns",
    ),
    Rule(
        lambda s: s.restorable and s.judge == 0,
        ("rrpo",),
        "replays of failures from a random turn: more to compare where the policy fails",
    ),
    Rule(
        lambda s: s.restorable and s.judge > 0,
        ("srpo",),
        "replays of failures from where the judge saw the first mistake",
    ),
    Rule(
        lambda s: s.judge >= SURE,
        ("triage", "iapo"),
        "the judge is good enough to add to the outcome, or to say what rests on what",
    ),
    Rule(
        lambda s: 0 < s.judge < SURE,
        ("stamp", "draco"),
        "the judge shares credit out and cannot turn its sign, so wrong labels do bounded harm",
    ),
    Rule(
        lambda s: s.agents and s.restorable,
        ("shapley", "leave_one_out"),
        "what the team loses without an agent: one that does nothing gets nothing",
    ),
    Rule(
        lambda s: s.agents,
        ("dr_mas", "m_grpo"),
        "each agent, or role, against its own like; no word on which turn did it",
    ),
    Rule(
        lambda s: not (s.gold or s.repeating or s.restorable or s.judge),
        ("gtpo_turn",),
        "nothing tells the turns of an episode apart but what was paid after them",
    ),
    Rule(
        lambda s: True,
        ("grpo",),
        "the baseline that any other must beat: all turns of an episode alike",
    ),
)
BASELINE = RULES[-1].names[0]


@dataclass(frozen=True, slots=True)
class Figures:
    """An estimator's measures, each the mean over some truths, and its cost per episode."""

    measures: Mapping[str, float | None]
    cost: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Advice:
    """One line of a short list."""

    name: str
    why: str
    figures: Figures | None


@dataclass(frozen=True, slots=True)
class Bench:
    """The result of `marl-llm credit bench --json`."""

    path: Path
    result: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Bench:
        """Read a file.

        Raises:
            ConfigError: it is not what the bench writes.
        """
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            for part in ("settings", "truths", "cells"):
                result[part].keys()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no result of a bench ({type(error).__name__}: {error}); make one with "
                "marl-llm credit bench --json bench.json"
            ) from error
        return cls(path, result)

    @property
    def judge(self) -> float | None:
        """How often its judge was right."""
        return self.result["settings"].get("noise", {}).get("judge")

    def truths(self, situation: Situation) -> list[str]:
        """Its worlds that are like the situation."""
        like = ["and", "or", "add", "noisy", "long"] if situation.repeating else ["unique"]
        like += ["team"] * situation.agents + ["turnover"] * situation.turnover
        return [name for name in like if name in self.result["truths"]]

    def figures(self, name: str, truths: list[str]) -> Figures | None:
        """An estimator's figures; None where it has none."""
        cells = [self.result["cells"].get(name, {}).get(truth, {}) for truth in truths]
        said = [cell for cell in cells if "measures" in cell]
        if not said:
            return None
        return Figures(
            {measure: _mean([cell["measures"].get(measure) for cell in said])
             for measure in MEASURES},
            {kind: sum(cell["cost"][kind] for cell in said) / len(said)
             for kind in said[0]["cost"]},
        )  # fmt: skip


def advise(situation: Situation, bench: Bench | None = None) -> list[Advice]:
    """A short list, the best first.

    By the rules alone each family's first member comes before any second one. With figures, those
    with more pairs of turns ranked right come first; the baseline stays last.

    Args:
        situation: what is at hand.
        bench: figures, if there are any.
    """
    fit = [rule for rule in RULES if rule.when(situation)]
    most = max(len(rule.names) for rule in fit)
    order = [(rule.names[k], rule.why) for k in range(most) for rule in fit if k < len(rule.names)]
    truths = bench.truths(situation) if bench else []
    listed = [
        Advice(name, why, bench.figures(name, truths) if bench else None)
        for name, why in order
        if name != BASELINE
    ]
    listed.sort(key=_worse)  # stable: without figures the order of the rules stays
    last = Advice(BASELINE, fit[-1].why, bench.figures(BASELINE, truths) if bench else None)
    return [*listed[: MOST - 1], last]


def _worse(advice: Advice) -> float:
    pairs = advice.figures.measures["pairs"] if advice.figures else None
    return 0.0 if pairs is None else -pairs


def _mean(found: list[Mapping[str, float] | None]) -> float | None:
    values = [each["value"] for each in found if each is not None]
    return sum(values) / len(values) if values else None
