"""`TurnBatch`: N turns as columns; `Credit`: what an estimator says of them.

Only sampled tokens exist here, flat and in turn order, with `offsets` into them: observation and
padding tokens are not represented, so no mask can be got wrong. Identities are small integers; the
names behind them are in `names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np

from marl_llm.credit.segments import Array, Chains, chains
from marl_llm.errors import ConfigError, EpisodeError, nearest
from marl_llm.types import Episode, Turn

ID_COLUMNS = ("group", "episode", "agent", "role", "policy", "game", "turn", "agent_turn", "parent")
KEYS = (*ID_COLUMNS, "depth", "version", "state_key", "action_key")  # what one can pool by


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
        bad = np.flatnonzero(~np.isfinite(self.reward))
        if len(bad):
            i = bad[0]
            raise EpisodeError(
                f"reward of turn {self.turn[i]} of episode {self.episode[i]} is {self.reward[i]}; "
                "every reward must be finite"
            )

    def __len__(self) -> int:
        return len(self.group)

    @property
    def lengths(self) -> Array:
        """Sampled tokens per turn, [N]."""
        return np.diff(self.offsets)

    def column(self, name: str) -> Array:
        """One of the `KEYS`, [N] int."""
        keys = self._keys()
        if name not in keys:
            raise ConfigError(f"turns have no column {name!r} to pool by; {nearest(name, keys)}")
        return keys[name]

    def signal(self, name: str) -> Array:
        """A signal over turns, [N] float64.

        Raises:
            EpisodeError: it was not attached, or is not over turns.
        """
        if name not in self.signals:
            raise EpisodeError(f"the batch has no signal {name!r}; {nearest(name, self.signals)}")
        if self.signals[name].shape != (len(self),):
            raise EpisodeError(f"signal {name!r} is over tokens; one value per turn is needed")
        return np.asarray(self.signals[name], dtype=np.float64)

    def agents(self) -> Chains:
        """The turns of each agent in each episode, in playing order."""
        return chains((self.episode, self.agent), self.agent_turn)

    def name(self, column: str, code: int) -> str:
        """The name behind an identity; the number itself where names are not kept."""
        return self.names[column][code] if column in self.names else str(code)

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
    level: Literal["turn", "token"] = "turn"
    targets: Array | None = None  # [N] critic targets, never whitened
    components: Mapping[str, Array] = field(default_factory=dict)  # named parts, [N] each
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
) -> Credit:
    """Credit of turns, with 0 and weight 0 where nothing was sampled.

    Args:
        batch: N turns.
        advantage: [N], whatever it says of turns without tokens.
        components: named parts of the advantage, [N] each.
        stats: counts to report; the mean |A| of each role is added to them.
        targets: critic targets, [N].
        state: what a remembering estimator needs next time.
    """
    sampled = batch.lengths > 0
    advantage = np.where(sampled, advantage, 0.0)
    return Credit(
        advantage=advantage,
        weight=sampled.astype(np.float64),
        targets=targets,
        components=components,
        stats={**stats, **role_statistics(batch, advantage, sampled.astype(np.float64))},
        state=state,
    )


def role_statistics(batch: TurnBatch, size: Array, counted: Array) -> dict[str, float]:
    """Mean |A| per role.

    Args:
        batch: N turns.
        size: mean |A| of each turn, [N]; a sign does no harm.
        counted: how much each turn counts, [N].
    """
    weight = np.bincount(batch.role, counted)
    total = np.bincount(batch.role, counted * np.abs(size))
    return {
        f"adv_abs_mean/{batch.name('role', role)}": float(total[role] / weight[role])
        for role in np.flatnonzero(weight).tolist()
    }


def turns_of(episodes: Sequence[Episode], policy: str) -> list[Turn]:
    """The turns that a policy sampled, in episode and playing order: the rows of its batch."""
    return [turn for episode in episodes for turn in episode.turns if turn.policy == policy]


def from_episodes(episodes: Sequence[Episode], policy: str) -> TurnBatch:
    """The columns of one policy's turns, in the order of `turns_of`.

    Args:
        episodes: finished episodes, ids distinct.
        policy: whose turns; the other players' turns are left out.

    Raises:
        EpisodeError: two episodes have the same id.
    """
    if len({episode.id for episode in episodes}) < len(episodes):
        raise EpisodeError("two episodes of a batch have the same id; give each its own")
    rows = [
        (episode, index, turn)
        for episode in episodes
        for index, turn in enumerate(episode.turns)
        if turn.policy == policy
    ]
    turns = [turn for _, _, turn in rows]
    seen = [turn.observation for turn in turns]
    games = [episode.game for episode, _, _ in rows]
    roles = [observation.role for observation in seen]
    agent, agent_codes = _codes(observation.agent for observation in seen)
    role, role_codes = _codes(roles)
    game, game_codes = _codes(games)
    state, state_codes = _codes(
        zip(games, roles, (observation.key for observation in seen), strict=True)
    )
    action, action_codes = _codes(turn.action or "" for turn in turns)
    episode_id = _integers(episode.id for episode, _, _ in rows)
    index = _integers(index for _, index, _ in rows)
    row_of: dict[tuple[int, int | None], int] = {
        (episode.id, index): row for row, (episode, index, _) in enumerate(rows)
    }
    agents = chains((episode_id, agent), index)
    last = agents.after == 0
    ended = np.fromiter((episode.terminated for episode, _, _ in rows), bool, len(rows))
    shaping = np.fromiter((turn.shaping for turn in turns), np.float64, len(rows))
    return TurnBatch(
        group=_integers(episode.group for episode, _, _ in rows),
        episode=episode_id,
        agent=agent,
        role=role,
        policy=np.zeros(len(rows), dtype=np.int64),
        game=game,
        turn=index,
        agent_turn=agents.before,
        parent=_integers(row_of.get((episode.id, turn.parent), -1) for episode, _, turn in rows),
        depth=_integers(_depths(episodes, policy)),
        reward=np.fromiter((turn.reward for turn in turns), np.float64, len(rows)) + shaping,
        shaping=shaping,
        terminated=last & ended,
        truncated=last & ~ended,
        version=_integers(min(turn.versions, default=(0, 0, 0))[0] for turn in turns),
        state_key=state,
        action_key=action,
        offsets=np.concatenate(([0], np.cumsum(_integers(len(turn.ids) for turn in turns)))),
        logprobs=np.fromiter(chain.from_iterable(turn.logprobs for turn in turns), np.float64),
        names={
            "agent": tuple(agent_codes),
            "role": tuple(role_codes),
            "policy": (policy,),
            "game": tuple(game_codes),
            "state_key": tuple(key for _, _, key in state_codes),
            "action_key": tuple(action_codes),
        },
    )


def _integers(values: Iterable[int]) -> Array:
    return np.fromiter(values, np.int64)


def _codes(values: Iterable[Any]) -> tuple[Array, dict[Any, int]]:
    """Number values in the order in which they first appear, and who has which number."""
    table: dict[Any, int] = {}
    codes = _integers(table.setdefault(value, len(table)) for value in values)
    return codes, table


def _depths(episodes: Sequence[Episode], policy: str) -> Iterable[int]:
    """How many calls deep each turn of the policy is, whoever made the calls."""
    for episode in episodes:
        depths: list[int] = []
        for turn in episode.turns:
            depths.append(0 if turn.parent is None else depths[turn.parent] + 1)
            if turn.policy == policy:
                yield depths[-1]
