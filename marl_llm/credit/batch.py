"""`TurnBatch`: N turns as columns; `Credit`: what an estimator says of them.

Only sampled tokens exist here, flat and in turn order, with `offsets` into them: observation and
padding tokens are not represented, so no mask can be got wrong. Identities are small integers; the
names behind them are in `names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from marl_llm.credit.card import Level
from marl_llm.credit.segments import Array, Chains, cells, chains, disagreeing, extremes, following
from marl_llm.credit.signals import MISSING, SIGNAL_KEYS, described, lacking
from marl_llm.credit.tokens import mean_turns
from marl_llm.errors import ConfigError, EpisodeError, nearest

ID_COLUMNS = ("group", "episode", "agent", "role", "policy", "game", "turn", "agent_turn", "parent")
COLUMNS = (*ID_COLUMNS, "depth", "version", "state_key", "action_key")
KEYS = (*COLUMNS, *SIGNAL_KEYS)  # what one can pool by


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """Columns over N turns, and flat columns over their M sampled tokens.

    Rows may stand in any order: `agent_turn` says which turn of an agent follows which. Rewards are
    finite; anything else is an error.
    """

    group: Array  # [N] int: comparable episodes
    episode: Array  # [N] int
    agent: Array  # [N] int: who, unique per episode
    role: Array  # [N] int: as what
    policy: Array  # [N] int: with whose weights
    game: Array  # [N] int
    turn: Array  # [N] int: order in the episode, all agents
    agent_turn: Array  # [N] int: order among this agent's turns in the episode
    parent: Array  # [N] int: row of the turn that called this one's agent, -1 = none
    depth: Array  # [N] int: 0 = called by nobody
    reward: (
        Array  # [N] float: strategic and shaping, all that came after this turn, before the next
    )
    shaping: Array  # [N] float: the part of `reward` that is shaping
    terminated: Array  # [N] bool: the agent's last turn, and the episode ended by its rules
    truncated: Array  # [N] bool: the agent's last turn, and the episode was cut short
    version: Array  # [N] int: of the weights that sampled (the oldest, if several)
    state_key: Array  # [N] int: equal = same game, role and information state
    action_key: Array  # [N] int: equal = same action text
    offsets: Array  # [N+1] int: tokens of turn i are offsets[i]:offsets[i+1]
    logprobs: Array  # [M] float: the sampler's, nats
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    signals: Mapping[str, Array] = field(default_factory=dict)  # [N] or [M], e.g. "value"
    # Found once, since nearly all estimators read them.
    _agents: Chains = field(init=False, repr=False, compare=False)
    _lengths: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n, m = len(self.group), len(self.logprobs)
        columns = self._keys() | {
            "reward": self.reward,
            "shaping": self.shaping,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }
        for name, column in columns.items():
            if column.shape != (n,):
                raise EpisodeError(f"column {name} has shape {column.shape}, expected ({n},)")
        for name, signal in self.signals.items():
            if signal.shape not in ((n,), (m,)):
                raise EpisodeError(
                    f"signal {name} has shape {signal.shape}, expected ({n},) for turns or "
                    f"({m},) for sampled tokens"
                )
        starts = self.offsets
        if starts.shape != (n + 1,) or starts[0] != 0 or np.any(np.diff(starts) < 0):
            raise EpisodeError(f"offsets must be {n + 1} ascending numbers that start at 0")
        if m != starts[-1]:
            raise EpisodeError(f"{m} log-probs for {starts[-1]} sampled tokens")
        agents = chains((self.episode, self.agent), self.agent_turn)
        object.__setattr__(self, "_agents", agents)
        object.__setattr__(self, "_lengths", np.diff(starts))
        self._check_values()
        self._check_order()

    def __len__(self) -> int:
        return len(self.group)

    @property
    def lengths(self) -> Array:
        """Sampled tokens per turn, [N]."""
        return self._lengths

    def column(self, name: str) -> Array:
        """One of the `KEYS`, [N] int."""
        keys = self._keys()
        if name in keys:
            return keys[name]
        if name in SIGNAL_KEYS and name in self.signals:
            return self.signals[name]
        more = lacking(name) if name in SIGNAL_KEYS else nearest(name, KEYS)
        raise ConfigError(f"turns have no column {name!r} to pool by; {more}")

    def signal(self, name: str) -> Array:
        """A signal over turns, [N] float64.

        Raises:
            EpisodeError: it was not attached, or is not over turns.
        """
        return np.asarray(self._signal(name, len(self), "turn"), dtype=np.float64)

    def token_signal(self, name: str) -> Array:
        """A signal over sampled tokens, [M] float64.

        Raises:
            EpisodeError: it was not attached, or is not over tokens.
        """
        return np.asarray(self._signal(name, len(self.logprobs), "sampled token"), np.float64)

    def token_key(self, name: str) -> Array:
        """A signal over sampled tokens whose values are whole numbers, [M] int64.

        Raises:
            EpisodeError: as for `token_signal`.
        """
        return self._signal(name, len(self.logprobs), "sampled token").astype(np.int64, copy=False)

    def known(self, name: str) -> Array:
        """Where a signal over turns says something, [N] bool; False = its label is missing."""
        missing = self.signals.get(name + MISSING)
        return np.ones(len(self), dtype=bool) if missing is None else ~missing.astype(bool)

    def with_signals(self, columns: Mapping[str, Array]) -> TurnBatch:
        """The batch with more signals; those of the same name are replaced.

        Args:
            columns: [N] or [M] each. NaN over turns marks a label that could not be had.
        """
        kept = {
            name: signal
            for name, signal in self.signals.items()
            if name.removesuffix(MISSING) not in columns
        }
        added: dict[str, Array] = {}
        for name, column in columns.items():
            missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(0, dtype=bool)
            signal = described(name)
            over_tokens = signal is not None and signal.over == "token"
            added[name] = column
            if len(column) == len(self) and not over_tokens and np.any(missing):
                added |= {name: np.where(missing, 0.0, column), name + MISSING: missing}
        return replace(self, signals={**kept, **added})

    def take(self, rows: Array) -> TurnBatch:
        """The batch of these rows in this order, with their tokens; lost parents become -1.

        Args:
            rows: indices, [R] int, distinct.
        """
        bare = self.bare(rows)
        within = np.repeat(self.offsets[rows] - bare.offsets[:-1], bare.lengths)
        tokens = np.arange(bare.offsets[-1]) + within
        return replace(
            bare,
            logprobs=self.logprobs[tokens],
            signals={
                name: signal[tokens if self._over_tokens(name) else rows]
                for name, signal in self.signals.items()
            },
        )

    def bare(self, rows: Array) -> TurnBatch:
        """As `take`, but no signals, and nothing of the tokens but their number: it costs little.

        Args:
            rows: indices, [R] int, distinct.
        """
        place = np.full(len(self) + 1, -1)  # the last entry is for "no parent"
        place[rows] = np.arange(len(rows))
        columns = {name: column[rows] for name, column in self._keys().items()}
        offsets = np.concatenate(([0], np.cumsum(self.lengths[rows])))
        return replace(
            self,
            **columns | {"parent": place[self.parent[rows]]},
            reward=self.reward[rows],
            shaping=self.shaping[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            offsets=offsets,
            logprobs=np.broadcast_to(0.0, offsets[-1]),
            signals={},
        )

    def agents(self) -> Chains:
        """The turns of each agent in each episode, in playing order."""
        return self._agents

    def name(self, column: str, code: int) -> str:
        """The name behind an identity; the number itself where names are not kept."""
        return self.names[column][code] if column in self.names else str(code)

    def _signal(self, name: str, size: int, what: str) -> Array:
        if name not in self.signals:
            raise EpisodeError(f"the batch has no signal {name!r}: {lacking(name)}")
        if len(self.signals[name]) != size:
            raise EpisodeError(
                f"signal {name!r} has {len(self.signals[name])} values; one per {what} is needed, "
                f"{size}"
            )
        return self.signals[name]

    def _over_tokens(self, name: str) -> bool:
        """Whether a signal is over tokens; where the counts are equal, its meaning decides."""
        signal = described(name)
        if len(self) == len(self.logprobs) and signal is not None:
            return signal.over == "token"
        return len(self.signals[name]) != len(self)

    def _check_values(self) -> None:
        """Rewards and signals are finite."""
        bad = np.flatnonzero(~np.isfinite(self.reward))
        if len(bad):
            raise EpisodeError(
                f"reward of {self._where(bad[0])} is {self.reward[bad[0]]}; every reward must be "
                "finite, and one that is not known is declared with the signal 'unscored'"
            )
        for name, signal in self.signals.items():
            bad = np.flatnonzero(~np.isfinite(signal))
            if len(bad):
                row = bad[0]
                if self._over_tokens(name):
                    row = np.searchsorted(self.offsets, row, side="right") - 1
                raise EpisodeError(
                    f"signal {name} of {self._where(row)} is {signal[bad[0]]}; signals must be "
                    "finite, and a label that could not be had is attached by `with_signals` as NaN"
                )

    def _check_order(self) -> None:
        """An agent's turns are numbered as they were played; parents are rows; groups are fair."""
        if not len(self):
            return
        agents = self.agents()
        later = following(self.agent_turn, agents, np.inf) <= self.agent_turn
        later |= following(self.turn, agents, np.inf) <= self.turn
        bad = np.flatnonzero(later)
        if len(bad):
            raise EpisodeError(
                f"{self._where(bad[0])} and the agent's next one are out of order: turn and "
                "agent_turn must rise along an agent's turns"
            )
        bad = np.flatnonzero((self.parent < -1) | (self.parent >= len(self)))
        if len(bad):
            raise EpisodeError(
                f"{self._where(bad[0])} was called by row {self.parent[bad[0]]}, which a batch of "
                f"{len(self)} rows does not have; -1 = by nobody"
            )
        group, count = cells((self.group,), len(self))
        if len(disagreeing(self.game, group, count)):
            low, high = extremes(self.game, group, count)
            bad = np.flatnonzero((low < high)[group])
            names = (self.name("game", int(game[group[bad[0]]])) for game in (low, high))
            raise EpisodeError(
                f"group {self.group[bad[0]]} mixes the games {' and '.join(names)} (episode "
                f"{self.episode[bad[0]]}); episodes of a group must be comparable"
            )

    def _where(self, row: int) -> str:
        return f"turn {self.turn[row]} of episode {self.episode[row]}"

    def _keys(self) -> dict[str, Array]:
        return {
            "group": self.group,
            "episode": self.episode,
            "agent": self.agent,
            "role": self.role,
            "policy": self.policy,
            "game": self.game,
            "turn": self.turn,
            "agent_turn": self.agent_turn,
            "parent": self.parent,
            "depth": self.depth,
            "version": self.version,
            "state_key": self.state_key,
            "action_key": self.action_key,
        }


@dataclass(frozen=True, slots=True)
class Credit:
    """An estimator's answer.

    Weight 0 leaves a turn out of the loss.
    """

    advantage: Array  # [N] or [M] float64, as `level` says
    weight: Array  # [N] float64
    level: Level = "turn"
    targets: Array | None = None  # [N] or [M] critic targets, never whitened
    # Named parts, as long as the advantage, that add up to it wherever something was sampled.
    components: Mapping[str, Array] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None  # a remembering estimator's next state

    def __post_init__(self) -> None:
        if not np.all(np.isfinite(self.advantage)):
            bad = int(np.flatnonzero(~np.isfinite(self.advantage))[0])
            raise EpisodeError(f"advantage {bad} is {self.advantage[bad]}, not finite")


def per_token(credit: Credit, batch: TurnBatch) -> Array:
    """Credit of every sampled token, [M] float64: turn credit goes to each token of the turn.

    Raises:
        EpisodeError: the advantage has neither N turns nor M tokens, as its level asks.
    """
    expected = len(batch) if credit.level == "turn" else len(batch.logprobs)
    if credit.advantage.shape != (expected,):
        raise EpisodeError(
            f"advantage has shape {credit.advantage.shape}; level {credit.level!r} asks for "
            f"({expected},)"
        )
    return (
        np.repeat(credit.advantage, batch.lengths) if credit.level == "turn" else credit.advantage
    )


def turn_credit(
    batch: TurnBatch,
    advantage: Array,
    *,
    components: Mapping[str, Array],
    stats: Mapping[str, float],
    targets: Array | None = None,
    state: Mapping[str, Any] | None = None,
    weight: Array | None = None,
) -> Credit:
    """Credit of turns, with 0 and weight 0 where nothing was sampled.

    Args:
        batch: N turns.
        advantage: [N], whatever it says of turns without tokens.
        components: named parts that add up to the advantage, [N] each.
        stats: counts to report; the mean |A| of each role is added to them.
        targets: critic targets, [N].
        state: what a remembering estimator needs next time.
        weight: of the turns in the loss, [N], 0 where nothing was sampled; 1 elsewhere if not said.
    """
    sampled = batch.lengths > 0
    advantage = np.array(advantage, dtype=np.float64)
    advantage[~sampled] = 0.0
    weight = sampled.astype(np.float64) if weight is None else weight
    return Credit(
        advantage=advantage,
        weight=weight,
        targets=targets,
        components=components,
        stats={**stats, **role_statistics(batch, advantage, weight)},
        state=state,
    )


def token_credit(
    batch: TurnBatch,
    advantage: Array,
    *,
    components: Mapping[str, Array],
    stats: Mapping[str, float],
    targets: Array | None = None,
) -> Credit:
    """Credit of sampled tokens, with weight 0 for turns where nothing was sampled.

    Args:
        batch: N turns, M sampled tokens.
        advantage: [M].
        components: named parts that add up to the advantage, [M] each.
        stats: counts to report; the mean |A| of each role is added to them.
        targets: critic targets, [M].
    """
    lengths = batch.lengths
    size = mean_turns(np.abs(advantage), batch.offsets)
    return Credit(
        advantage=advantage,
        weight=(lengths > 0).astype(np.float64),
        level="token",
        targets=targets,
        components=components,
        stats={**stats, **role_statistics(batch, size, lengths)},
    )


def ledger(raw: Array, centred: Array, scaled: Array | None = None) -> dict[str, Array]:
    """The components of a return against a baseline, which add up to the advantage.

    Args:
        raw: the return.
        centred: return minus baseline.
        scaled: the advantage, if it was scaled, clipped or whitened after that.
    """
    parts = {"return": raw, "baseline": centred - raw}
    return parts if scaled is None else parts | {"scaling": scaled - centred}


def role_statistics(batch: TurnBatch, size: Array, counted: Array) -> dict[str, float]:
    """Mean |A| per role.

    Args:
        batch: N turns.
        size: mean |A| of each turn, [N]; a sign does no harm.
        counted: how much each turn counts, [N].
    """
    means = {}
    total = counted * np.abs(size)
    # Role by role, for there are few: adding up in few bins is slow, each addition waits for the
    # one before.
    for role in _distinct(batch.role):
        mine = (batch.role == role).astype(np.float64)
        if weight := np.dot(mine, counted):
            means[f"adv_abs_mean/{batch.name('role', role)}"] = float(np.dot(mine, total) / weight)
    return means


def _distinct(codes: Array) -> Iterable[int]:
    """The numbers that occur among small ones; perhaps some between them that do not."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=-1))
    return range(low, high + 1) if high - low < 16 else np.unique(codes).tolist()
