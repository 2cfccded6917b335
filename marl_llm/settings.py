"""A run in one frozen value: what `config` composes, checked, before anything is loaded.

`RunSettings.of(config)` takes the plain dictionary of a command line or of a run folder. Makers of
games stay plain nodes, so that a worker in another process can make its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from marl_llm.agents import Player
from marl_llm.agents.role import Role
from marl_llm.annotate import Annotator
from marl_llm.annotate.material import OfStatistics
from marl_llm.config import build, choices, settings
from marl_llm.credit import Estimator
from marl_llm.credit.signals import described, lacking
from marl_llm.errors import ConfigError, nearest
from marl_llm.games.text_game import TextGame
from marl_llm.learn.learner import LearnerSettings
from marl_llm.learn.supervised import FitSettings
from marl_llm.rollout.plans import Lineup
from marl_llm.rollout.shaping import Shaping
from marl_llm.serve.sources import EngineSettings, ModelSource
from marl_llm.targets import OURS

MOST_UPDATES = 10**9
_CHECKED = 1000  # updates that are looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How the episodes of an update are played."""

    episodes: int = 256  # per update
    group_size: int = 1  # episodes with the same start
    concurrency: int = 512  # games in flight at once
    turn_seconds: float | None = None  # deadline of one reply
    episode_seconds: float | None = None  # of an episode, divided among calls: rollout.deadlines
    stall_seconds: float = 600.0  # no reply at all for so long ends the run
    lineups: tuple[tuple[str, ...] | Mapping[str, str], ...] = (("self",),)  # see `rollout.plans`
    shaping: Shaping = field(default_factory=Shaping)
    retries: int = 3  # of an episode that a failure of the machinery made void
    groups: Literal["wait", "refill", "partial"] = "refill"  # which are learned from; see the store


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Supervised training on scripted play, before the first update."""

    player: Player  # plays every seat of every game of the run
    games: int = 1000
    thought: Literal["brief", "none"] = "brief"  # restate the observation before the answer?
    fit: FitSettings = field(default_factory=FitSettings)

    def __post_init__(self) -> None:
        if self.games < 1:
            raise ConfigError(f"coldstart.games must be at least 1, got {self.games}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternation:
    """When a policy learns: for `learn` updates, then not for `rest`, and so on.

    Two policies that take turns, 20 updates each:

        planner   Alternation(learn=20, rest=20)
        executor  Alternation(learn=20, rest=20, after=20)
    """

    learn: int
    rest: int
    after: int = 0  # updates of rest before the first

    def __post_init__(self) -> None:
        for name, number, least in (
            ("learn", self.learn, 1),
            ("rest", self.rest, 0),
            ("after", self.after, 0),
        ):
            if number < least:
                raise ConfigError(f"alternation.{name} must be at least {least}, got {number}")

    def learns(self, update: int) -> bool:
        """Whether it learns from the games of this update, counted from 0."""
        since = update - self.after
        return since >= 0 and since % (self.learn + self.rest) < self.learn


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model of its own that annotators ask; it is not trained."""

    model: str  # name or path
    engine: EngineSettings = field(default_factory=EngineSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Weights and all that happens to them."""

    model: ModelSource
    engine: EngineSettings
    credit: Estimator
    learner: LearnerSettings
    annotators: Mapping[str, Annotator] = field(default_factory=dict)  # signals for the credit rule
    judge: Judge | None = None  # None = the policy judges itself, where an annotator asks
    coldstart: ColdStart | None = None
    trained: bool = True  # False = it plays and stays as it is
    alternation: Alternation | None = None  # None = it learns in every update
    max_staleness: int | None = None  # of its own records; None = as the runtime has it

    def learns(self, update: int) -> bool:
        """Whether it learns from the games of this update, counted from 0."""
        return self.trained and (self.alternation is None or self.alternation.learns(update))

    @property
    def attached(self) -> frozenset[str]:
        """The signals that its annotators attach."""
        return frozenset(name for each in self.annotators.values() for name in each.signals)

    @property
    def reaches(self) -> bool:
        """Whether its trainer needs games, seats and engines: to play on, to score, to ask."""
        return bool(self.annotators) or self.credit.card.resamples

    @property
    def whole(self) -> bool:
        """Whether its trainer needs what the others saw and said, or only statistics of it."""
        reads = not all(isinstance(each, OfStatistics) for each in self.annotators.values())
        return reads or self.credit.card.resamples

    def lacks(self, name: str) -> list[str]:
        """What the credit rule needs and nobody attaches, a sentence each with the way out.

        Args:
            name: of the policy.
        """
        known = choices("annotator")
        sentences = []
        for need in sorted(self.credit.card.needs - self.attached):
            signal = described(need)
            way = "no annotator here attaches it: choose another credit, or write one"
            if signal is not None and signal.annotator in known:
                place = f"annotator@policies.{name}.annotators.{signal.annotator}"
                way = f"add +{place}={signal.annotator}"
            sentences.append(f"it needs the signal {need!r}: {lacking(need)}; {way}")
        if "reference_logprob" in self.attached and not self.learner.needs_reference:
            sentences.append(
                f"an annotator reads the reference, and the learner holds none; set "
                f"policies.{name}.learner.kl.keep=true"
            )
        return sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSettings:
    """A seat for a model: which role, whose weights."""

    role: Role
    policy: str = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How progress is measured."""

    every: int = 10  # updates between two evaluations; the start and the end are always measured
    seat: str = "self"  # who is evaluated
    nash_conv: tuple[str, ...] = ()  # games whose exact NashConv is computed
    thought: Literal["sampled", "fixed", "none"] = "sampled"  # what stands before a scored action
    thoughts: int = 8  # sampled per information state
    panel: Mapping[str, Player] = field(default_factory=dict)  # scripted opponents, by name
    itself: bool = False  # also play in all seats at once, as cooperative games are played
    success: int = 0  # held-out episodes of the first line-up whose success is counted; 0 = none
    games: tuple[str, ...] = ()  # of the matches; () = the games of the run
    pairs: int = 100  # deals per opponent and game, each played from both seats
    references: Mapping[str, float] = field(default_factory=dict)  # lines in the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Where a run is kept and how often."""

    dir: str | None = None  # None = runs/<experiment>-seed<seed>[-n]
    checkpoint_every: int = 20  # updates
    keep: int = 3  # checkpoints
    episodes: int = 64  # kept at each evaluation, for replays and other credit rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Where the parts of a run live."""

    name: Literal["local", "ray"] = "local"
    threads: int | None = None  # torch threads per process, None = torch's choice
    workers: int = 1  # ray: rollout workers
    max_staleness: int = 0  # updates by which records may lag behind; see also Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything about a run."""

    experiment: str
    seed: int
    updates: int
    games: Mapping[str, Any]  # that are trained on: name -> node with `_target_`
    held_out: Mapping[str, Any]  # that are only evaluated
    seats: Mapping[str, SeatSettings]
    opponents: Mapping[str, Player]  # scripted players that line-ups may name
    policies: Mapping[str, Policy]
    rollout: Rollout
    evaluation: Evaluation
    run: RunFolder
    runtime: Runtime
    packages: tuple[str, ...] = ()  # besides ours, whose code `_target_` may name
    dry_run: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RunSettings:
        """The run that a composed configuration describes.

        Raises:
            ConfigError: a setting is unknown or out of range, or a name leads nowhere.
        """
        values = dict(config)
        for name in ("seed", "updates"):  # first, since other settings may refer to them
            if type(values.get(name)) is not int or values[name] < 0:
                raise ConfigError(
                    f"{name} must be a whole number of at least 0, got {values.get(name)!r}"
                )
        if values["updates"] > MOST_UPDATES:
            raise ConfigError(f"updates must be at most {MOST_UPDATES:,}, got {values['updates']}")
        nodes = {name: values.pop(name, {}) for name in ("games", "held_out")}
        allowed = (OURS, *_packages(values.pop("packages", [])))
        parts = {name: build(value, allowed=allowed, where=name) for name, value in values.items()}
        parts["packages"] = allowed[1:]
        parts["rollout"] = _rollout(parts.get("rollout", {}))
        parts["evaluation"] = settings(Evaluation, parts.get("evaluation", {}), "evaluation")
        parts["run"] = settings(RunFolder, parts.get("run", {}), "run")
        parts["runtime"] = settings(Runtime, parts.get("runtime", {}), "runtime")
        parts["seats"] = _each(SeatSettings, parts.get("seats", {}), "seats")
        parts["policies"] = {
            name: _policy(policy, f"policies.{name}")
            for name, policy in _named(parts.get("policies", {}), "policies").items()
        }
        run = settings(cls, {**parts, **nodes}, "")
        run._check()
        return run

    def _check(self) -> None:
        for what, number, least in (
            ("evaluation.every", self.evaluation.every, 1),
            ("evaluation.pairs", self.evaluation.pairs, 1),
            ("evaluation.success", self.evaluation.success, 0),
            ("run.checkpoint_every", self.run.checkpoint_every, 1),
            ("run.keep", self.run.keep, 1),
            ("run.episodes", self.run.episodes, 0),
            ("rollout.episodes", self.rollout.episodes, 1),
            ("rollout.group_size", self.rollout.group_size, 1),
            ("rollout.concurrency", self.rollout.concurrency, 1),
            ("rollout.retries", self.rollout.retries, 0),
            ("runtime.workers", self.runtime.workers, 1),
            ("runtime.threads", self.runtime.threads, 1),
            ("runtime.max_staleness", self.runtime.max_staleness, 0),
        ):
            if number is not None and number < least:
                raise ConfigError(f"{what} must be at least {least}, got {number}")
        for what, seconds in (
            ("rollout.turn_seconds", self.rollout.turn_seconds),
            ("rollout.episode_seconds", self.rollout.episode_seconds),
            ("rollout.stall_seconds", self.rollout.stall_seconds),
        ):
            if seconds is not None and seconds <= 0:
                raise ConfigError(f"{what} must be above 0, got {seconds}")
        if not self.rollout.lineups or not all(self.rollout.lineups):
            raise ConfigError(
                "rollout.lineups must hold at least one line-up, and each at least one name, such "
                "as [[self]], or [{planner: planner, executor: executor}] by role; got "
                f"{[_plain(lineup) for lineup in self.rollout.lineups]}"
            )
        if self.run.dir is not None and not self.run.dir.strip():
            raise ConfigError("run.dir is empty; give a folder, or leave run.dir out for one")
        if self.evaluation.success == 1:
            raise ConfigError("evaluation.success needs at least 2 episodes for an interval, got 1")
        if self.policies and not any(policy.trained for policy in self.policies.values()):
            raise ConfigError("no policy is trained; set trained=true for one of policies")
        for name, policy in self.policies.items():
            if policy.max_staleness is not None and policy.max_staleness < 0:
                raise ConfigError(
                    f"policies.{name}.max_staleness must be at least 0, got {policy.max_staleness}"
                )
        for update in range(min(self.updates, _CHECKED) if self.policies else 0):
            if not any(policy.learns(update) for policy in self.policies.values()):
                raise ConfigError(
                    f"in update {update + 1} all policies rest, so its games would be for nothing; "
                    "change the alternation of one"
                )
        for name, seat in self.seats.items():
            if seat.policy not in self.policies:
                raise ConfigError(
                    f"seats.{name}.policy is {seat.policy!r}; {nearest(seat.policy, self.policies)}"
                )
        for name, make in self.makers().items():
            game: object = make()  # a game's own settings are checked where it is made
            if not isinstance(game, TextGame):
                raise ConfigError(
                    f"games.{name} makes a {type(game).__name__}, which is no game; it must make a "
                    "marl_llm.games.text_game.TextGame"
                )
        known = {*self.seats, *self.opponents}
        for lineup in self.rollout.lineups:
            for name in names_of(lineup):
                if name not in known:
                    raise ConfigError(f"rollout.lineups names {name!r}; {nearest(name, known)}")
        if self.evaluation.seat not in self.seats:
            raise ConfigError(
                f"evaluation.seat is {self.evaluation.seat!r}; "
                f"{nearest(self.evaluation.seat, self.seats)}"
            )
        for name in (*self.evaluation.games, *self.evaluation.nash_conv):
            known = {*self.games, *self.held_out}
            if name not in known:
                raise ConfigError(f"evaluation names game {name!r}; {nearest(name, known)}")

    def cast(self, policy: str) -> dict[str, Role]:
        """How a policy plays each role of the games: as its first seat that can sit there.

        A line-up by role says which; where none does, and in a line-up by seat, it is any seat.
        """
        own = {name: seat.role for name, seat in self.seats.items() if seat.policy == policy}
        found: dict[str, Role] = {}
        makers = self.makers()
        for game in self.games:
            for role in makers[game]().roles.values():
                for lineup in self.rollout.lineups:
                    sits = [lineup.get(role)] if isinstance(lineup, Mapping) else lineup
                    for name in sits:
                        if name in own:
                            found.setdefault(role, own[name])
        return found

    def staleness(self, policy: str) -> int:
        """Updates by which the records of this policy may lag behind it."""
        own = self.policies[policy].max_staleness
        return self.runtime.max_staleness if own is None else own

    def makers(self) -> dict[str, Callable[[], TextGame]]:
        """Makers of fresh games, by name; pickle as the nodes they are made from."""
        return {
            name: partial(build, node, allowed=(OURS, *self.packages), where=f"games.{name}")
            for name, node in {**self.games, **self.held_out}.items()
        }


def names_of(lineup: Lineup) -> tuple[str, ...]:
    """The players that a line-up names."""
    return tuple(lineup.values() if isinstance(lineup, Mapping) else lineup)


def _plain(lineup: Lineup) -> dict[str, str] | list[str]:
    return dict(lineup) if isinstance(lineup, Mapping) else list(lineup)


def _packages(names: Any) -> tuple[str, ...]:
    listed = isinstance(names, list | tuple)
    if not listed or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ConfigError(
            f"packages must be a list of packages without their modules, such as "
            f"packages=[my_games]; got {names!r}"
        )
    return tuple(names)


def _rollout(node: Any) -> Rollout:
    parts = node
    if isinstance(node, Mapping) and isinstance(node.get("shaping"), Mapping):
        shaping = settings(Shaping, node["shaping"], "rollout.shaping")
        parts = {**node, "shaping": shaping}
    return settings(Rollout, parts, "rollout")


def _policy(node: Any, where: str) -> Policy:
    parts = dict(_named(node, where))
    if parts.get("coldstart") is not None:
        cold = dict(_named(parts["coldstart"], f"{where}.coldstart"))
        cold["fit"] = settings(FitSettings, cold.get("fit", {}), f"{where}.coldstart.fit")
        parts["coldstart"] = settings(ColdStart, cold, f"{where}.coldstart")
    if parts.get("judge") is not None:
        judge = dict(_named(parts["judge"], f"{where}.judge"))
        if isinstance(judge.get("engine"), Mapping):
            judge["engine"] = settings(EngineSettings, judge["engine"], f"{where}.judge.engine")
        parts["judge"] = settings(Judge, judge, f"{where}.judge")
    return settings(Policy, parts, where)


def _each(cls: type, nodes: Any, where: str) -> dict[str, Any]:
    return {
        name: settings(cls, node, f"{where}.{name}") for name, node in _named(nodes, where).items()
    }


def _named(nodes: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(nodes, Mapping):
        raise ConfigError(f"{where} is a mapping, such as {where}.NAME.KEY=VALUE; got {nodes!r}")
    return nodes
