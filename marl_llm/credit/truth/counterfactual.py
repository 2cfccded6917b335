"""What would have come without a turn or an agent, or greedily: replays with the same luck."""

from __future__ import annotations

import numpy as np

from marl_llm.credit.segments import Array
from marl_llm.credit.truth.coalitions import shapley
from marl_llm.credit.truth.play import Luck, draw_luck, paid
from marl_llm.credit.truth.sample import Sample

MAX_COALITION = 6  # agents, all of whose coalitions are replayed


def replayed(sample: Sample, rng: np.random.Generator) -> dict[str, Array]:
    """The signals of replays.

    Args:
        sample: episodes that were drawn.
        rng: of actions that are drawn anew.
    """
    signals = {
        "ablated_return": without_turns(sample, rng),
        "greedy_return": greedily(sample, rng),
    }
    if sample.process.pay.shape[-1] == 1 and len(sample.process.agents) <= MAX_COALITION:
        signals |= without_agents(sample)
    return signals


def without_turns(sample: Sample, rng: np.random.Generator) -> Array:
    """Return of the row's agent when the turn's action is drawn anew and all else stays, [N].

    What stays is the luck: later turns make the choices that the same numbers lead to.

    Args:
        sample: episodes that were drawn.
        rng: of the actions.
    """
    rows = np.arange(len(sample.batch))
    luck = sample.luck_from(rows)
    action = luck.action.copy()
    action[:, 0] = rng.random(len(rows))
    luck = Luck(luck.start, action, luck.chance)
    return sample.before() + paid(sample.process, sample.state, luck, sample.batch.agent)


def greedily(sample: Sample, rng: np.random.Generator) -> Array:
    """Return of the row's agent in one episode per group whose actions are the likeliest, [N]."""
    process, batch = sample.process, sample.batch
    best = np.eye(process.policy.shape[1])[np.argmax(process.policy, axis=1)]
    groups, number = np.unique(batch.group, return_inverse=True)
    luck = draw_luck(process, rng, len(groups))
    first = np.zeros(len(groups), dtype=np.int64)
    first[number[::-1]] = sample.row_of[sample.played[::-1], 0]  # the group's first episode
    start = sample.state[first]
    each = [
        paid(process, start, luck, np.full(len(groups), agent), best)
        for agent in range(len(process.agents))
    ]
    return np.stack(each, axis=1)[number, batch.agent]


def without_agents(sample: Sample) -> dict[str, Array]:
    """What the team would have earned without an agent, and each agent's Shapley share, [N] each.

    An agent that is left out is replaced by its default policy; the luck stays.

    Args:
        sample: episodes of a team that were drawn.
    """
    process, batch = sample.process, sample.batch
    start = sample.row_of[:, 0]
    luck, state = sample.luck_from(start), sample.state[start]
    n = len(process.agents)
    worth = np.empty((2**n, len(start)))
    for coalition in range(2**n):
        there = (coalition >> process.agent & 1).astype(bool)
        policy = np.where(there[:, None], process.policy, process.default)
        worth[coalition] = paid(process, state, luck, np.zeros(len(start), dtype=int), policy)
    without = worth[2**n - 1 - (1 << batch.agent), sample.played]
    return {"return_without": without, "shapley_value": shapley(worth)[batch.agent, sample.played]}
