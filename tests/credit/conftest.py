"""Batches to estimate on: built by hand, at random, with any signal; and replays without games."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit.batch import COLUMNS, TurnBatch
from marl_llm.credit.drawn import draw_signals, replays

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


def fork(
    leaves: list, *, players: Sequence[int] = (0,), pays: Sequence[float] = (1.0,), group: int = 0
) -> TurnBatch:
    """Episodes of a tree: a list is a state with its children, a number what a leaf's episode paid.

    At depth d the agent players[d mod their number] moves; an agent that moved gets pays[agent]
    times the leaf's number at its last turn. The copies of a decision behind the first are marked.
    """
    paths: list[tuple[tuple[int, ...], float]] = []

    def walk(node, path):
        if isinstance(node, list):
            for i, child in enumerate(node):
                walk(child, (*path, i))
        else:
            paths.append((path, node))

    walk(leaves, ())
    rows, reward, nodes, seen = [], [], [], {}
    for episode, (path, paid) in enumerate(paths):
        movers = [players[depth % len(players)] for depth in range(len(path))]
        for depth, mover in enumerate(movers):
            rows.append((episode, mover, movers[:depth].count(mover), depth))
            reward.append(0.0 if mover in movers[depth + 1 :] else paid * pays[mover % len(pays)])
            nodes.append(seen.setdefault(path[: depth + 1], len(seen)))
    episode, agent, agent_turn, turn = (np.array(column) for column in zip(*rows, strict=True))
    nodes = np.array(nodes)
    first = np.zeros(len(nodes), dtype=bool)
    first[np.unique(nodes, return_index=True)[1]] = True
    batch = make(
        reward, episode=episode, agent=agent, agent_turn=agent_turn, group=0 * turn + group
    )
    return replace(batch, turn=turn).with_signals(
        {"node": nodes, "tree": 0 * nodes, "replayed": (~first).astype(float)}
    )


def stories(
    states: Sequence[str],
    actions: Sequence[str],
    reward: Sequence[Sequence[float]],
    *,
    group: int = 0,
) -> TurnBatch:
    """Episodes of agent 0 that see and do what the letters say: states ["ab"], actions ["xy"]."""
    seen = [ord(letter) for word in states for letter in word]
    batch = make(
        [r for rewards in reward for r in rewards],
        episode=np.repeat(np.arange(len(states)), [len(word) for word in states]),
        group=[group] * len(seen),
        state_key=seen,
    )
    return replace(batch, action_key=np.array([ord(letter) for word in actions for letter in word]))


def draw_leaves(rng: np.random.Generator, depth: int = 4) -> list:
    """A tree of uneven growth for `fork`; its leaves pay a few different numbers."""
    return [
        draw_leaves(rng, depth - 1) if depth > 1 and rng.random() < 0.6 else rng.integers(-2, 3) / 2
        for _ in range(rng.integers(1, 4))
    ]


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
    batch = make(
        rng.integers(0, 2, n) if binary else rng.normal(size=n),
        group=group,
        episode=episode,
        agent=agent,
        agent_turn=turn,
        game=group % 2,
        state_key=(group % 2) * 100 + agent * 10 + rng.integers(0, 4, n),
        lengths=lengths,
        truncated=np.unique(episode)[::3],
    ).with_signals(draw_signals(rng, episode, agent, lengths))
    shaping = 0.1 * rng.normal(size=n) * (rng.random(n) < 0.3)
    return replace(
        batch,
        action_key=rng.integers(0, 3, n),
        shaping=shaping,
        logprobs=-rng.exponential(size=len(batch.logprobs)),
    )


def draw_calls(
    rng: np.random.Generator,
    *,
    groups: int = 2,
    episodes: int = 3,
    max_calls: int = 3,
    silent: float = 0.1,
) -> TurnBatch:
    """A planner (role 0) in each episode, who calls searchers (1), who call readers (2).

    Each planner has one turn per call, and a last one; some turns sampled nothing. An agent's
    number says its role, too.
    """
    rows: list[tuple[int, ...]] = []  # group, episode, agent, role, turn, agent_turn, parent, depth

    def speak(episode: int, agent: int, role: int, agent_turn: int, parent: int) -> int:
        turn = sum(row[1] == episode for row in rows)
        rows.append((episode // episodes, episode, agent, role, turn, agent_turn, parent, role))
        return len(rows) - 1

    for episode in range(groups * episodes):
        reader = max_calls
        calls = int(rng.integers(0, max_calls + 1))
        for k in range(calls):
            planner = speak(episode, 0, 0, k, -1)
            first = speak(episode, 1 + k, 1, 0, planner)
            for _ in range(int(rng.integers(0, 3))):
                reader += 1
                speak(episode, reader, 2, 0, first)
            speak(episode, 1 + k, 1, 1, planner)
        speak(episode, 0, 0, calls, -1)
    group, episode, agent, role, turn, agent_turn, parent, depth = np.array(rows).T
    n = len(rows)
    lengths = np.where(rng.random(n) < silent, 0, rng.integers(1, 4, n))
    batch = make(
        rng.normal(size=n),
        group=group,
        episode=episode,
        agent=agent,
        role=role,
        agent_turn=agent_turn,
        state_key=10 * role + rng.integers(0, 4, n),
        lengths=lengths,
        truncated=np.unique(episode)[::3],
    ).with_signals(draw_signals(rng, episode, agent, lengths))
    return replace(
        batch,
        turn=turn,
        parent=parent,
        depth=depth,
        action_key=rng.integers(0, 3, n),
        names={**NAMES, "agent": tuple(f"agent_{i}" for i in range(1 + 3 * max_calls))},
    )


def with_copies(batch: TurnBatch, rows: np.ndarray) -> TurnBatch:
    """The batch and, behind it, copies of these rows, in episodes of their own."""
    more = batch.take(np.asarray(rows, dtype=np.int64))
    columns = {
        name: np.concatenate((batch.column(name), more.column(name))) for name in COLUMNS
    } | {
        "episode": np.concatenate((batch.episode, batch.episode.max() + 1 + more.episode)),
        "parent": np.concatenate((batch.parent, more.parent + len(batch) * (more.parent >= 0))),
    }
    return replace(
        batch,
        **columns,
        reward=np.concatenate((batch.reward, more.reward)),
        shaping=np.concatenate((batch.shaping, more.shaping)),
        terminated=np.concatenate((batch.terminated, more.terminated)),
        truncated=np.concatenate((batch.truncated, more.truncated)),
        offsets=np.concatenate((batch.offsets, batch.offsets[-1] + more.offsets[1:])),
        logprobs=np.concatenate((batch.logprobs, more.logprobs)),
        signals={
            name: np.concatenate((signal, more.signals[name]))
            for name, signal in batch.signals.items()
        },
    )


@pytest.fixture(scope="session")
def add_copies():
    return with_copies


@pytest.fixture(scope="session")
def make_replays():
    return replays


@pytest.fixture(scope="session")
def make_batch():
    return make


@pytest.fixture(scope="session")
def random_batch():
    return draw


@pytest.fixture(scope="session")
def tell():
    return stories


@pytest.fixture(scope="session")
def grow_fork():
    return fork


@pytest.fixture(scope="session")
def random_leaves():
    return draw_leaves


@pytest.fixture(scope="session")
def random_calls():
    return draw_calls


@pytest.fixture(scope="session")
def take_rows():
    return lambda batch, rows: batch.take(np.asarray(rows, dtype=np.int64))


@pytest.fixture(scope="session")
def four_rollouts():
    """Four episodes of one prompt, 3, 2, 3 and 2 turns of one agent, at states 0 to 3 that repeat.

    Its turns are paid; the outcomes alone would be 0 0 1, 0 0, 0 0 0 and 0 1.
    """

    def build(reward=(0.2, 0, 1, 0.2, 0, 0, 0.2, 0, 0, 1), signals=None) -> TurnBatch:
        batch = make(
            reward,
            episode=[0, 0, 0, 1, 1, 2, 2, 2, 3, 3],
            state_key=[0, 1, 2, 0, 1, 0, 3, 1, 0, 3],
            lengths=[10, 20, 5, 8, 12, 10, 10, 10, 6, 14],
            signals=signals,
        )
        return replace(batch, action_key=np.array([0, 1, 2, 0, 3, 4, 5, 1, 4, 6]))

    return build


@pytest.fixture(scope="session")
def f1() -> TurnBatch:
    """Seven one-turn episodes in groups of four, two and one."""
    return make(
        [1, 0, 0, 1, 0.5, 0.5, 2], group=[0, 0, 0, 0, 1, 1, 2], lengths=[1, 3, 2, 3, 2, 3, 1]
    )
