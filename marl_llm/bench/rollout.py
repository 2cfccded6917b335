"""`marl-llm bench rollout`: what each layer costs, as ratios of two things timed in turn.

    rollout_over_engine    self-play              over  the engine alone on the very same requests
    engine_over_generate   the engine alone       over  `model.generate` of transformers on them
    learner_over_bare      an update of weights   over  forward, cross entropy, backward, AdamW
    overhead_share         credit, batching and store, of a whole update

Everything is measured on an ordinary experiment, in one process, after a short cold start. A
machine is never quiet, so the two sides of a ratio are timed directly after each other, several
rounds of it, and a figure is the median of the rounds' ratios.

With an experiment of several policies, it is measured how busy their servers are (`serving.py`).
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from marl_llm import config, team
from marl_llm.bench import serving
from marl_llm.bench.sampling import sampling_rates
from marl_llm.bench.timing import Rates, spread
from marl_llm.bench.updating import overhead, update_rates
from marl_llm.bench.workload import Workload
from marl_llm.errors import ConfigError, nearest
from marl_llm.settings import RunSettings

# The model only has to know the format, so that its replies end by themselves.
SHORT = ("policies.main.coldstart.games=1000", "policies.main.coldstart.fit.steps=200")
TARGETS = {  # what a healthy build reaches, on two cores
    "rollout_over_engine": (">=", 0.75),
    "engine_over_generate": (">=", 2.0),
    "learner_over_bare": (">=", 0.8),
    "overhead_share": ("<", 0.05),
}
WHAT = {
    "rollout_over_engine": "self-play / engine alone, same requests",
    "engine_over_generate": "engine alone / transformers' generate, same requests",
    "learner_over_bare": "weight update / bare forward-backward, same rows",
    "learner_with_kl_over_bare": "the same, with a reference nothing is remembered of",
    "overhead_share": "credit, batching and store / whole update",
}


@dataclass(frozen=True, slots=True)
class Options:
    """A command line of `bench rollout`."""

    json: Path | None  # where the figures go, None = nowhere but the table
    rounds: int
    words: tuple[str, ...]  # key=value, of the experiment

    @classmethod
    def of(cls, words: Sequence[str]) -> Options:
        """Read the words after `bench rollout`.

        Raises:
            ConfigError: an unknown option, or one without its value.
        """
        found: dict[str, str] = {}
        rest = []
        waiting = list(words)
        while waiting:
            word = waiting.pop(0)
            if not word.startswith("--"):
                rest.append(word)
                continue
            name, equals, value = word.partition("=")
            if name not in ("--json", "--rounds"):
                raise ConfigError(
                    f"bench rollout: unknown option {name!r}; "
                    f"{nearest(name, ('--json', '--rounds'))}"
                )
            if not equals:
                if not waiting:
                    raise ConfigError(f"bench rollout: {name} needs a value, as in {name} VALUE")
                value = waiting.pop(0)
            found[name] = value
        rounds = found.get("--rounds", "7")
        if not rounds.isdecimal() or int(rounds) < 1:
            raise ConfigError(f"bench rollout: --rounds is a number from 1 on, got {rounds!r}")
        path = found.get("--json")
        return cls(None if path is None else Path(path), int(rounds), tuple(rest))


def main(words: Sequence[str]) -> int:
    """`marl-llm bench rollout [--json FILE] [--rounds N] [key=value ...]`."""
    options = Options.of(words)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="marl_llm_bench_") as folder:
        result = measure(options, Path(folder), console.print)
    (serving.show if "busy" in result else show)(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(options: Options, folder: Path, stage: Any = print) -> dict[str, Any]:
    """All figures, and where they come from.

    Args:
        options: of the command line.
        folder: empty, for the models.
        stage: told what goes on now.
    """
    policies = RunSettings.of(config.compose(options.words)).policies
    short = [word.replace(".main.", f".{name}.") for name in policies for word in SHORT]
    over_ray = ["runtime=ray"] if len(policies) > 1 else []
    run = RunSettings.of(config.compose([*over_ray, *short, *options.words]))
    team.use_threads(run.runtime.threads)
    load = os.getloadavg()[0]
    if over_ray:
        figures = serving.measure(run, options.rounds, folder, stage)
    else:
        figures = measure_one(run, options.rounds, folder, stage)
    return {
        **figures,
        "settings": {"words": list(options.words), "rounds": options.rounds, "seed": run.seed},
        "machine": {
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "load_before": load,
            "load_after": os.getloadavg()[0],
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def measure_one(run: RunSettings, rounds: int, folder: Path, stage: Any) -> dict[str, Any]:
    """The figures of one policy, in one process.

    Args:
        run: the experiment.
        rounds: that count.
        folder: empty, for the model.
        stage: told what goes on now.
    """
    workload = Workload.prepare(run, folder, stage)
    team.settle()
    stage("self-play, the engine alone, generate")
    sampling = sampling_rates(workload, rounds)
    stage("weight updates and the bare loop")
    updating = update_rates(workload, rounds)
    stage("whole updates and their parts")
    parts = overhead(workload, rounds)
    return {
        **ratios(sampling, updating, parts),
        "tokens_per_second": {
            name: float(np.median(rates)) for name, rates in {**sampling, **updating}.items()
        },
        "rounds": {**sampling, **updating},
        "seconds": parts,
        "workload": workload.facts(),
    }


def ratios(sampling: Rates, updating: Rates, parts: Mapping[str, float]) -> dict[str, float]:
    """The figures, from tokens per second of each round and seconds of each part."""
    overheads = sum(parts[name] for name in ("credit", "batching", "store"))
    return {
        "rollout_over_engine": spread(sampling, "rollout", "engine").median,
        "engine_over_generate": spread(sampling, "engine", "generate").median,
        "learner_over_bare": spread(updating, "learner", "bare").median,
        "learner_with_kl_over_bare": spread(updating, "learner_with_kl", "bare").median,
        "overhead_share": overheads / parts["update"],
    }


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    table = Table(title="marl-llm bench rollout")
    for heading in ("figure", "value", "target", "what"):
        table.add_column(heading, justify="right" if heading in ("value", "target") else "left")
    for name, what in WHAT.items():
        sign, bound = TARGETS.get(name, ("", None))
        target = "" if bound is None else f"{sign} {bound:g}"
        table.add_row(name, f"{result[name]:.3f}", target, what)
    console = Console()
    console.print(table)
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in result["tokens_per_second"].items())
    console.print(f"tokens/s: {rates}")
    seconds = ", ".join(f"{name} {1000 * took:.1f}" for name, took in result["seconds"].items())
    console.print(f"ms of an update: {seconds}")
