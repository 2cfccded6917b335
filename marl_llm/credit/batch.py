"""`TurnBatch`: N turns as columns; `Credit`: what an estimator says of them.

Only sampled tokens exist here, flat and in turn order, with `offsets` into them: observation and
padding tokens are not represented, so no mask can be got wrong. Identities are small integers; the
names behind them are in `names`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from marl_llm.errors import EpisodeError
from marl_llm.types import Episode, Turn

Array = np.ndarray

ID_COLUMNS = ("group", "episode", "agent", "role", "policy", "game", "turn", "agent_turn", "parent")


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """Columns over N turns, and flat columns over their M sampled tokens.

    Turns of one agent in one episode stand in playing order (`agent_turn` ascending), but need not
    be adjacent. Rewards are float64; a NaN reward is an error.
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
    reward: Array  # [N] float: strategic and shaping, all that came after this turn, before the next
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
        n = len(self.group)
        for name in (*ID_COLUMNS, "depth", "reward", "shaping", "terminated", "truncated",
                     "version", "state_key", "action_key"):  # fmt: skip
            column = getattr(self, name)
            if column.shape != (n,):
                raise EpisodeError(f"column {name} has shape {column.shape}, expected ({n},)")
        if self.offsets.shape != (n + 1,) or np.any(np.diff(self.offsets) < 0):
            raise EpisodeError(f"offsets must be {n + 1} ascending numbers")
        if len(self.logprobs) != self.offsets[-1]:
            raise EpisodeError(
                f"{len(self.logprobs)} log-probs for {self.offsets[-1]} sampled tokens"
            )
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
    return np.repeat(credit.advantage, batch.lengths) if credit.level == "turn" else credit.advantage


def turns_of(episodes: Sequence[Episode], policy: str) -> list[Turn]:
    """The turns that a policy sampled, in episode and playing order: the rows of its batch."""
    return [turn for episode in episodes for turn in episode.turns if turn.policy == policy]


def from_episodes(episodes: Sequence[Episode], policy: str) -> TurnBatch:
    """The columns of one policy's turns, in the order of `turns_of`.

    Args:
        episodes: finished episodes, ids distinct.
        policy: whose turns; the other players' turns are left out.
    """
    codes: dict[str, dict[str, int]] = {
        name: {} for name in ("agent", "role", "policy", "game", "state_key", "action_key")
    }

    def code(column: str, text: str) -> int:
        table = codes[column]
        return table.setdefault(text, len(table))

    rows: list[tuple] = []
    logprobs: list[float] = []
    offsets = [0]
    for episode in episodes:
        row_of: dict[int, int] = {}  # turn index in the episode -> row
        seen: dict[str, int] = {}  # agent -> its turns so far
        last: dict[str, int] = {}  # agent -> its latest row
        for index, turn in enumerate(episode.turns):
            if turn.policy != policy:
                continue
            agent = turn.observation.agent
            role = turn.observation.role
            parent = -1 if turn.parent is None else row_of.get(turn.parent, -1)
            depth = 0 if turn.parent is None else rows[parent][8] + 1 if parent >= 0 else 1
            row_of[index] = last[agent] = len(rows)
            rows.append((
                episode.group, episode.id, code("agent", agent), code("role", role),
                code("policy", policy), code("game", episode.game), index, seen.get(agent, 0),
                depth, parent, turn.reward + turn.shaping, turn.shaping,
                min((v for v, _, _ in turn.versions), default=0),
                code("state_key", f"{episode.game}\x1f{role}\x1f{turn.observation.key}"),
                code("action_key", turn.action or ""),
            ))  # fmt: skip
            seen[agent] = seen.get(agent, 0) + 1
            logprobs.extend(turn.logprobs)
            offsets.append(len(logprobs))
        for row in last.values():
            rows[row] = (*rows[row], episode.terminated)
    n = len(rows)
    last_row = np.fromiter((len(row) == 16 for row in rows), bool, n)
    ended = np.fromiter((row[15] if len(row) == 16 else False for row in rows), bool, n)
    table = list(zip(*(row[:15] for row in rows), strict=True)) if rows else [()] * 15
    integers = {
        name: np.array(table[i], dtype=np.int64)
        for i, name in enumerate(("group", "episode", "agent", "role", "policy", "game", "turn",
                                  "agent_turn", "depth", "parent"))
    }  # fmt: skip
    return TurnBatch(
        **integers,
        reward=np.array(table[10], dtype=np.float64),
        shaping=np.array(table[11], dtype=np.float64),
        version=np.array(table[12], dtype=np.int64),
        state_key=np.array(table[13], dtype=np.int64),
        action_key=np.array(table[14], dtype=np.int64),
        terminated=last_row & ended,
        truncated=last_row & ~ended,
        offsets=np.array(offsets, dtype=np.int64),
        logprobs=np.array(logprobs, dtype=np.float64),
        names={name: tuple(table) for name, table in codes.items()},
    )
