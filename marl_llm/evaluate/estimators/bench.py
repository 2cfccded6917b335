"""Every estimator on every truth.

    result = bench(estimators, TRUTHS, Settings())
    print(markdown(result))

An estimator sees one batch of 120 groups per truth, with signals from ideal annotators that err a
little, and nobody's model. Two controls are among the estimators: `oracle` is the exact credit,
`random` is noise. What an estimator refuses is said in its cell; it never stops the others.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from marl_llm.credit import Estimator, assign, checks
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.given import Given
from marl_llm.credit.segments import Array
from marl_llm.credit.truth import Truth
from marl_llm.credit.truth.ideal import Noise, annotate
from marl_llm.credit.truth.process import Process, Solution, solve
from marl_llm.credit.truth.sample import Sample, grow, restart, sample
from marl_llm.errors import ConfigError, MarlError
from marl_llm.evaluate.estimators.costs import Cost, Counted, signal_cost
from marl_llm.evaluate.estimators.measures import (
    MEASURES,
    RESAMPLES,
    Yardstick,
    measure,
    of_turns,
    yardstick,
)
from marl_llm.seeds import generator

CONTROLS = ("oracle", "random")
GROWN = frozenset({"node", "tree", "design"})  # who needs one of these is shown trees
RESTARTED = frozenset({"suffix_of", "replayed"})  # ... and of these alone, replays of failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How large a comparison is."""

    groups: int = 120
    size: int = 8  # episodes of a group; trees and restarts halve it
    tokens: int = 2  # of each turn; the first one chooses
    seed: int = 0
    resamples: int = RESAMPLES  # bootstrap samples over groups
    noise: Noise = field(default_factory=Noise)

    def __post_init__(self) -> None:
        if self.groups < 2 or self.size < 2 or self.size % 2:
            raise ConfigError(
                f"a comparison needs 2 or more groups of 2, 4, 6, ... episodes, got {self.groups} "
                f"groups of {self.size}"
            )
        checks.within("resamples", self.resamples, 1)


@dataclass(frozen=True, slots=True)
class Stage:
    """One sample of a truth, ready to be asked about."""

    sample: Sample
    batch: TurnBatch
    against: Yardstick


class World:
    """A truth and its samples, each made when somebody first needs it."""

    def __init__(self, name: str, truth: Truth, settings: Settings) -> None:
        self.name, self.settings = name, settings
        self.process: Process = truth.process()
        self.solution: Solution = solve(self.process)
        self._look = replace(truth.look, tokens=settings.tokens)
        self._stages: dict[str, Stage] = {}

    def stage(self, needs: frozenset[str]) -> Stage:
        """The sample for an estimator with these needs."""
        kind = "grown" if needs & GROWN else "restarted" if needs & RESTARTED else "plain"
        if kind not in self._stages:
            self._stages[kind] = self._make(kind)
        return self._stages[kind]

    def _make(self, kind: str) -> Stage:
        settings, half = self.settings, self.settings.size // 2
        rng = generator(settings.seed, self.name, kind)
        if kind == "grown":
            forks = (2, half // 2) if half % 2 == 0 else (half,)
            draw = partial(grow, trees=2, forks=forks)
        elif kind == "restarted":
            draw = partial(restart, fresh=half, replays=half)
        else:
            draw = partial(sample, size=settings.size)
        drawn = draw(
            self.process, rng, groups=settings.groups, look=self._look, solution=self.solution
        )
        batch = annotate(drawn, rng, settings.noise)
        return Stage(drawn, batch, yardstick(drawn, settings.seed, settings.resamples))

    def facts(self) -> dict[str, Any]:
        """What the world is like."""
        plain = self.stage(frozenset())
        return {
            "turns": len(plain.batch) / len(plain.sample.row_of),
            "agents": len(self.process.agents),
            "decisive": float(plain.sample.decisive.mean()),
            "value": float(self.process.start @ self.solution.values[:-1, 0]),
        }


def bench(
    estimators: Mapping[str, Estimator],
    truths: Mapping[str, Truth],
    settings: Settings | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Ask every estimator about every truth.

    Args:
        estimators: by name.
        truths: by name.
        settings: sizes, seed, and how far annotators err.
        tell: is told what goes on.

    Returns:
        JSON: "settings", "truths", "estimators" (their cards) and "cells", estimator -> truth ->
        {"measures", "cost", "seconds"} or {"refused"} or {"failed"}.
    """
    settings = settings or Settings()
    cells: dict[str, dict[str, Any]] = {name: {} for name in (*CONTROLS, *estimators)}
    facts = {}
    for truth_name, truth in truths.items():
        tell(truth_name)
        world = World(truth_name, truth, settings)
        facts[truth_name] = {"what": truth.what, **world.facts()}
        plain = world.stage(frozenset())
        noise = generator(settings.seed, truth_name, "control").normal(size=len(plain.batch))
        for name, credit in zip(CONTROLS, (plain.sample.advantage, noise), strict=True):
            cells[name][truth_name] = _cell(credit, plain, Cost(), 0.0)
        for name, estimator in estimators.items():
            cells[name][truth_name] = _asked(name, estimator, world)
    return {
        "settings": asdict(settings),
        "truths": facts,
        "estimators": {name: _about(estimator) for name, estimator in estimators.items()},
        "cells": cells,
    }


def _asked(name: str, estimator: Estimator, world: World) -> dict[str, Any]:
    """One estimator on one truth: measures, or why there are none."""
    needs = estimator.card.needs
    try:
        stage = world.stage(needs)
        seed = world.settings.seed
        resample = Counted(stage.sample.resampler(generator(seed, world.name, name, "replays")))
        given = Given(generator(seed, world.name, name), resample)
        began = time.perf_counter()
        credit = of_turns(assign(estimator, stage.batch, given), stage.batch)
        took = time.perf_counter() - began
    except MarlError as error:
        return {"refused": str(error)}
    except Exception as error:  # a bug in one estimator is its own cell's affair
        return {"failed": f"{type(error).__name__}: {error}"}
    episodes = len(stage.sample.row_of)
    turns = len(stage.batch) / episodes
    price = signal_cost(needs, turns, len(world.process.agents), world.settings.size)
    spent = Cost(
        forwards=price.forwards,
        judgements=price.judgements,
        rollouts=price.rollouts + resample.rollouts / episodes,
    )
    return _cell(credit, stage, spent, took)


def _cell(credit: Array, stage: Stage, cost: Cost, seconds: float) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measure(credit, stage.against)
    return {
        "measures": {
            name: None if found[name] is None else _interval(found[name]) for name in MEASURES
        },
        "cost": asdict(cost),
        "seconds": seconds,
    }


def _interval(found: Any) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _about(estimator: Estimator) -> dict[str, Any]:
    card = estimator.card
    return {
        "title": card.title,
        "source": card.source,
        "evidence": card.evidence,
        "methodology": card.methodology,
        "needs": sorted(card.needs),
        "cost": card.cost,
    }
