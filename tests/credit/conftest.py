"""Batches to estimate on: built by hand, at random, and out of another batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit.batch import TurnBatch

NAMES = {"role": ("alice", "bob", "carol"), "agent": ("a_0", "b_0", "c_0"), "game": ("go", "dice")}


def make(
    reward: Sequence[float],
    *,
    episode: Sequence[int] | None = None,
    agent: Sequence[int] | None = None,
    role: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    game: Sequence[int] | None = None,
    agent_turn: Sequence[int] | None = None,
    state_key: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    truncated: Sequence[int] = (),
    signals: dict[str, Sequence[float]] | None = None,
) -> TurnBatch:
    """One row per reward; by default each is the only turn of agent 0 in an episode of its own.

    Rows of one (episode, agent) follow each other in the order given; the role is the agent's
    number; `truncated` names the episodes that were cut short.
    """
    n = len(reward)

    def column(values: Sequence[int] | None, default: np.ndarray) -> np.ndarray:
        return default if values is None else np.asarray(values, dtype=np.int64)

    episodes = column(episode, np.arange(n))
    agents = column(agent, np.zeros(n, dtype=np.int64))
    pairs = list(zip(episodes.tolist(), agents.tolist(), strict=True))
    seen: Counter[tuple[int, int]] = Counter()
    order = np.zeros(n, dtype=np.int64)
    for i, pair in enumerate(pairs):
        order[i] = seen[pair]
        seen[pair] += 1
    turns = column(agent_turn, order)
    last = np.array([turns[i] == seen[pair] - 1 for i, pair in enumerate(pairs)], dtype=bool)
    cut = np.isin(episodes, truncated)
    offsets = np.concatenate(([0], np.cumsum(column(lengths, np.ones(n, dtype=np.int64)))))
    zeros = np.zeros(n, dtype=np.int64)
    return TurnBatch(
        group=column(group, zeros),
        episode=episodes,
        agent=agents,
        role=column(role, agents),
        policy=zeros,
        game=column(game, zeros),
        turn=turns,
        agent_turn=turns,
        parent=zeros - 1,
        depth=zeros,
        reward=np.asarray(reward, dtype=np.float64),
        shaping=np.zeros(n),
        terminated=last & ~cut,
        truncated=last & cut,
        version=zeros,
        state_key=column(state_key, zeros),
        action_key=zeros,
        offsets=offsets,
        logprobs=np.full(offsets[-1], -0.5),
        names=NAMES,
        signals={k: np.asarray(v, dtype=np.float64) for k, v in (signals or {}).items()},
    )


def draw(
    rng: np.random.Generator,
    *,
    groups: int = 3,
    episodes: int = 4,
    agents: int = 2,
    max_turns: int = 4,
    silent: float = 0.1,
    binary: bool = False,
) -> TurnBatch:
    """Interleaved agents with 1 to max_turns turns each; some turns sampled nothing."""
    rows = []
    for e in range(groups * episodes):
        turns = rng.integers(1, max_turns + 1, agents)
        order = sorted((k, a) for a in range(agents) for k in range(turns[a]))
        rows += [(e // episodes, e, a, k) for k, a in order]
    group, episode, agent, turn = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    lengths = np.where(rng.random(n) < silent, 0, rng.integers(1, 6, n))
    return make(
        rng.integers(0, 2, n) if binary else rng.normal(size=n),
        group=group,
        episode=episode,
        agent=agent,
        agent_turn=turn,
        game=group % 2,
        state_key=(group % 2) * 100 + agent * 10 + rng.integers(0, 4, n),
        lengths=lengths,
        truncated=np.unique(episode)[::3],
        signals={"value": rng.normal(size=n), "value_next": rng.normal(size=n)},
    )


def take(batch: TurnBatch, rows: Sequence[int]) -> TurnBatch:
    """The batch of these rows in this order, with their tokens."""
    rows = np.asarray(rows, dtype=np.int64)
    spans = [np.arange(batch.offsets[i], batch.offsets[i + 1]) for i in rows]
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *spans])
    columns = {
        name: batch.column(name)[rows]
        for name in ("group", "episode", "agent", "role", "policy", "game", "turn", "agent_turn",
                     "depth", "version", "state_key", "action_key")
    }  # fmt: skip
    return replace(
        batch,
        **columns,
        parent=np.full(len(rows), -1),
        reward=batch.reward[rows],
        shaping=batch.shaping[rows],
        terminated=batch.terminated[rows],
        truncated=batch.truncated[rows],
        offsets=np.concatenate(([0], np.cumsum(batch.lengths[rows]))),
        logprobs=batch.logprobs[tokens],
        signals={name: signal[rows] for name, signal in batch.signals.items()},
    )


@pytest.fixture(scope="session")
def make_batch():
    return make


@pytest.fixture(scope="session")
def random_batch():
    return draw


@pytest.fixture(scope="session")
def take_rows():
    return take


@pytest.fixture(scope="session")
def f1() -> TurnBatch:
    """Seven one-turn episodes in groups of four, two and one."""
    return make(
        [1, 0, 0, 1, 0.5, 0.5, 2], group=[0, 0, 0, 0, 1, 1, 2], lengths=[1, 3, 2, 3, 2, 3, 1]
    )
