"""`marl-llm bench credit`: what every credit estimator costs, against a plain loop.

One call per estimator on a batch like that of a large run (`episodes.py`), with the settings of its
YAML and the signals that it reads. Its plain Python loop (`loops.py`) is timed on batches of 8, 16,
32 episodes and so on, until it takes too long, and scaled to the whole batch as if its time were
linear. Loops that are not linear would flatter us: what is scaled is the largest batch on which an
episode took no more than three times the least.

Goals are set on the process's time, which on one thread is what the clock of a quiet machine says;
the clock's own is reported beside it. Memory is the peak of what NumPy asks for during the call,
the answer included, in **token columns**: one is as many float64 as the batch has sampled tokens.
An estimator may ask for 6 times the token columns that it handles. Those are the ones it reads,
namely signals and, if its answer hangs on them, the sampler's log-probs; and the advantage.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from marl_llm import config
from marl_llm.bench.episodes import GROUP, drawn, made_up
from marl_llm.bench.loops import Loop, find
from marl_llm.bench.timing import took
from marl_llm.commands.words import read
from marl_llm.credit import Estimator, assign
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Level
from marl_llm.credit.drawn import LEFT_OUT, replays
from marl_llm.credit.given import Given
from marl_llm.credit.segments import Array
from marl_llm.credit.signals import KNOWN
from marl_llm.errors import ConfigError, nearest

MOST_MS: Mapping[Level, float] = {"turn": 100.0, "token": 1500.0}
LEAST_TIMES = 30.0  # faster than the loop, where credit goes to turns
MOST_COLUMNS = 6.0  # times the token columns that an estimator handles
LOOP_SECONDS = 0.4  # a loop that took longer is given no larger batch
LOOP_GROWTH = 3.0  # times the least time per episode; a loop that takes more is not linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one estimator costs."""

    level: Level
    ms: float  # of the clock, median
    cpu_ms: float  # of the process, median
    cpu_ms_rounds: list[float]
    loop_cpu_ms: float | None  # of the loop on such a batch; None = there is no loop
    loop_episodes: int | None  # of the batch that this was concluded from
    extra_columns: float  # peak memory of the call, in token columns
    token_columns: int  # that it reads, and the advantage
    signals: list[str]  # that it reads

    @property
    def times_over_loop(self) -> float | None:
        """How often the estimator is done before the loop is."""
        return None if self.loop_cpu_ms is None else self.loop_cpu_ms / self.cpu_ms

    def missed(self) -> list[str]:
        """The goals that it misses."""
        missed, over = [], self.times_over_loop
        if self.cpu_ms > MOST_MS[self.level]:
            missed.append(f"> {MOST_MS[self.level]:g} ms")
        if self.level == "turn" and over is not None and over < LEAST_TIMES:
            missed.append(f"< {LEAST_TIMES:g} x")
        if self.extra_columns > MOST_COLUMNS * self.token_columns:
            missed.append(f"> {MOST_COLUMNS * self.token_columns:g} columns")
        return missed

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists, with what follows from them."""
        return asdict(self) | {"times_over_loop": self.times_over_loop, "missed": self.missed()}


def main(words: Sequence[str]) -> int:
    """`marl-llm bench credit [--json FILE] [estimators=a,b] [episodes=N] [rounds=N] [seed=N]`."""
    options = read(words, "bench credit", keys=("json", "estimators", "episodes", "rounds", "seed"))
    known = config.choices("credit")
    names = options.listed("estimators") or tuple(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"bench credit: estimators has no {name!r}; {nearest(name, known)}")
    episodes = options.number("episodes", 4096, least=GROUP)
    if episodes % GROUP:
        raise ConfigError(
            f"bench credit: episodes come in groups of {GROUP}, got episodes={episodes}; take a "
            f"multiple of {GROUP}"
        )
    rounds, seed = options.number("rounds", 5, least=1), options.number("seed", 0)
    console = Console(stderr=True)
    with console.status("") as status:
        result = measure(names, episodes, rounds, seed, status.update)
    show(result)
    if "json" in options.values:
        text = json.dumps(result, indent=1) + "\n"
        Path(options.values["json"]).write_text(text, encoding="utf-8")
    return 0


def measure(
    names: Sequence[str],
    episodes: int,
    rounds: int,
    seed: int = 0,
    stage: Callable[[str], object] = print,
) -> dict[str, Any]:
    """All figures.

    Args:
        names: of YAML files in `configs/credit`.
        episodes: of the batch.
        rounds: calls that are timed, after one that is not.
        seed: of the batch.
        stage: told what goes on now.
    """
    load = os.getloadavg()[0]
    _keep_memory()
    loops, batch = find(), made_up(episodes, seed=seed)
    signals: dict[str, Array] = {}  # drawn so far, since estimators share them
    figures: dict[str, Figures] = {}
    for name in names:
        stage(f"{name}, {len(figures) + 1} of {len(names)}")
        estimator = config.build(config.node("credit", name))
        reads = signals_read(estimator)
        signals |= drawn(batch, reads - signals.keys(), seed=seed)
        full = batch.with_signals({signal: signals[signal] for signal in reads})
        figures[name] = figures_of(estimator, full, loops.get(name), rounds)
    return {
        "estimators": {name: each.as_json() for name, each in figures.items()},
        "goals": {
            "most_cpu_ms": dict(MOST_MS),
            "least_times_over_loop": {"turn": LEAST_TIMES},
            "most_extra_columns_over_token_columns": MOST_COLUMNS,
        },
        "batch": {
            "episodes": episodes,
            "group": GROUP,
            "turns": len(batch),
            "sampled_tokens": len(batch.logprobs),
        },
        "settings": {"rounds": rounds, "seed": seed},
        "machine": {
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "cores": os.cpu_count(),
            "load_before": load,
            "load_after": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }


def figures_of(estimator: Estimator, batch: TurnBatch, loop: Loop | None, rounds: int) -> Figures:
    """Time one estimator, its memory, and its loop.

    Args:
        estimator: the rule.
        batch: with the signals that it reads, and no others.
        loop: the same in plain Python.
        rounds: calls that are timed, after one that is not.
    """
    given = Given(np.random.default_rng(0), replays(batch))

    def once() -> Credit:
        return assign(estimator, batch, given)

    gc.collect()
    once()
    times = [took(once) for _ in range(rounds)]
    cpu_ms = [1000 * each.process for each in times]
    episodes, seconds = (None, None) if loop is None else loop_seconds(loop, estimator, batch)
    return Figures(
        level=estimator.card.level,
        ms=1000 * statistics.median(each.clock for each in times),
        cpu_ms=statistics.median(cpu_ms),
        cpu_ms_rounds=cpu_ms,
        loop_cpu_ms=None if seconds is None else 1000 * seconds,
        loop_episodes=episodes,
        extra_columns=peak_bytes(once) / (8 * len(batch.logprobs)),
        token_columns=1 + reads_logprobs(estimator) + sum(map(over_tokens, batch.signals)),
        signals=sorted(batch.signals),
    )


def loop_seconds(loop: Loop, estimator: Estimator, batch: TurnBatch) -> tuple[int, float]:
    """What a loop would take for a batch if its time were linear.

    Returns:
        Episodes of the batch that it was timed on, and seconds.
    """
    whole = len(np.unique(batch.episode))
    each: dict[int, float] = {}  # seconds per episode, by number of episodes
    episodes, latest = GROUP, 0.0
    while episodes <= whole and latest <= LOOP_SECONDS:
        part = batch if episodes == whole else _small(episodes, batch.signals)
        latest = took(partial(loop, estimator, part)).process
        each[episodes] = latest / episodes
        episodes *= 2
    linear = max(n for n, took in each.items() if took <= LOOP_GROWTH * min(each.values()))
    return linear, each[linear] * whole


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that a call holds at once beyond what was there before it."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _keep_memory() -> None:
    """Let the C library see that large blocks come and go, as in any run; then it keeps them.

    Otherwise the system clears and hands out the memory of every array anew.
    """
    np.ones(2**21)


def over_tokens(signal: str) -> bool:
    """Whether a signal is a token column."""
    return KNOWN[signal].over == "token"


class Watched(dict[str, Array]):
    """Signals that remember which of them were read."""

    def __init__(self, signals: Mapping[str, Array]) -> None:
        super().__init__(signals)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self.read.add(name)
        return super().__getitem__(name)


def signals_read(estimator: Estimator) -> set[str]:
    """The signals that an estimator looks at when it has all there are."""
    batch = _with_everything()
    watched = Watched(batch.signals)
    batch = replace(batch, signals=watched)
    watched.read.clear()  # the batch has looked at them, too
    assign(estimator, batch, Given(np.random.default_rng(0), replays(batch)))
    return watched.read


def reads_logprobs(estimator: Estimator) -> bool:
    """Whether an estimator's answer hangs on the log-probs of the sampler."""
    batch = _with_everything()
    first, second = (
        assign(
            estimator,
            replace(batch, logprobs=factor * batch.logprobs),
            Given(np.random.default_rng(0), replays(batch)),
        )
        for factor in (1.0, 0.7)
    )
    return not np.array_equal(first.advantage, second.advantage)


def _with_everything() -> TurnBatch:
    return _small(8 * GROUP, [name for name in KNOWN if name != LEFT_OUT])


def _small(episodes: int, signals: Iterable[str]) -> TurnBatch:
    batch = made_up(episodes)
    return batch.with_signals(drawn(batch, signals))


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    batch, machine = result["batch"], result["machine"]
    title = f"{batch['turns']:,} turns, {batch['sampled_tokens']:,} sampled tokens"
    table = Table(title=title, box=None, pad_edge=False)
    table.add_column("estimator", no_wrap=True)
    table.add_column("level")
    for heading in ("ms", "CPU ms", "x loop", "columns", "of"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("goals")
    for name, each in result["estimators"].items():
        over = each["times_over_loop"]
        table.add_row(
            name,
            each["level"],
            f"{each['ms']:.1f}",
            f"{each['cpu_ms']:.1f}",
            "" if over is None else f"{over:,.0f}",
            f"{each['extra_columns']:.2f}",
            str(each["token_columns"]),
            ", ".join(each["missed"]) or "met",
        )
    console = Console()
    console.print(table)
    missed = sum(bool(each["missed"]) for each in result["estimators"].values())
    alone = sum(each["times_over_loop"] is None for each in result["estimators"].values())
    console.print(
        f"{len(result['estimators'])} estimators, {missed} miss a goal, {alone} have no loop to be "
        f"compared with. Load {machine['load_before']:.1f} before, {machine['load_after']:.1f} "
        f"after, on {machine['cores']} cores.",
        highlight=False,
    )
