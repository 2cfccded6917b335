"""A batch of made-up episodes, as large and as entangled as one of a real run.

Every episode has 8 turns of two agents: a planner moves, calls a searcher twice, and ends. Eight
episodes make a group. They were forked from each other after every second turn, so that they form a
binary tree; states repeat in a group, in an episode, and in other groups that began alike. A turn
has 256 sampled tokens on average.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.drawn import draw_signals
from marl_llm.credit.segments import Array
from marl_llm.credit.tokens import places, spread

GROUP = 8  # episodes
TURNS = 8  # of an episode
TOKENS = 256  # of a turn, on average
STEP = 32  # tokens of a reasoning step
TASKS = 64  # starts of the game; groups of one task meet the same states
STATES = 8  # that an agent meets in a task
VOCABULARY = 50_000
SPEAKER = np.array([0, 1, 1, 0, 1, 1, 0, 0])
CALLER = np.array([-1, 0, 0, -1, 3, 3, -1, -1])  # turn of the episode
FORKED = np.array([3, 3, 2, 2, 1, 1, 0, 0])  # so many bits of an episode's number do not matter yet


def made_up(episodes: int, *, tokens: int = TOKENS, seed: int = 0) -> TurnBatch:
    """A batch without signals.

    Args:
        episodes: a multiple of `GROUP`.
        tokens: of a turn, on average.
        seed: of what is drawn.
    """
    rng = np.random.default_rng(seed)
    episode, turn = np.divmod(np.arange(episodes * TURNS), TURNS)
    n, group, agent = len(turn), episode // GROUP, SPEAKER[turn]
    origin = _origins(_nodes(group, episode, turn))
    said = rng.integers(0, STATES, n)[origin]
    longer = rng.integers(-tokens // 2, tokens // 2, n)[origin - turn % 2]
    lengths = tokens + np.where(turn % 2 == 0, longer, -longer)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    spoken = np.cumsum(SPEAKER) - 1  # by the searcher
    agent_turn = np.where(agent == 1, spoken[turn], turn - 1 - spoken[turn])
    last = agent_turn == TURNS // 2 - 1
    cut, won = (rng.random(episodes) < share for share in (0.1, 0.5))
    shaping = -0.1 * (rng.random(n) < 0.1)[origin]
    zeros = np.zeros(n, dtype=np.int64)
    return TurnBatch(
        group=group,
        episode=episode,
        agent=agent,
        role=agent,
        policy=zeros,
        game=group % 2,
        turn=turn,
        agent_turn=agent_turn,
        parent=np.where(CALLER[turn] < 0, -1, episode * TURNS + CALLER[turn]),
        depth=agent,
        reward=shaping + (won[episode] & last),
        shaping=shaping,
        terminated=last & ~cut[episode],
        truncated=last & cut[episode],
        version=zeros,
        # What was said last leads to a state; all episodes of a task start in the same one.
        state_key=(group % TASKS * 2 + agent) * STATES + np.where(turn == 0, 0, np.roll(said, 1)),
        action_key=said,
        offsets=offsets,
        logprobs=-rng.exponential(0.5, offsets[-1]),
        names={
            "role": ("planner", "searcher"),
            "agent": ("planner_0", "searcher_0"),
            "game": ("maze", "library"),
        },
    )


def drawn(batch: TurnBatch, names: Iterable[str], *, seed: int = 0) -> dict[str, Array]:
    """Signals for a batch of `made_up`. They say nothing, but copies of a turn are copies.

    Args:
        batch: N turns.
        names: of signals; what is drawn for one does not hang on the others.
        seed: of what is drawn.
    """
    return {name: _signal(name, batch, seed) for name in names}


def _signal(name: str, batch: TurnBatch, seed: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    node = _nodes(batch.group, batch.episode, batch.turn)
    origin = _origins(node)
    if name == "node":
        return node
    if name == "tree":
        return batch.group
    if name == "replayed":
        return (origin < np.arange(len(batch))).astype(np.float64)
    if name == "segment":
        return places(batch.offsets) // STEP
    if name == "token_id":
        copied = spread(batch.offsets[origin], batch.offsets) + places(batch.offsets)
        return rng.integers(0, VOCABULARY, len(batch.logprobs))[copied]
    return draw_signals(rng, batch.episode, batch.agent, batch.lengths, [name])[name]


def _nodes(group: Array, episode: Array, turn: Array) -> Array:
    """The decision of each turn: the same in all episodes that were forked behind it, [N] int."""
    return (group * TURNS + turn) * GROUP + (episode % GROUP >> FORKED[turn])


def _origins(node: Array) -> Array:
    """The first row of each row's decision, [N] int."""
    first, of = np.unique(node, return_index=True, return_inverse=True)[1:]
    return first[of]
