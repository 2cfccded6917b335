"""Calls: which turns serve one call, who stands at the top of it, and how much each call weighs.

A turn's `parent` is the turn that called its agent, and `depth` says how many calls deep it is. A
**call** is what one agent does for one caller's turn; agents that nobody called make one each. A
caller of another policy is in another batch: its calls have a depth here, and no parent, but the
signal "caller" still tells them apart.
"""

from __future__ import annotations

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array, Chains, cells, chains, sums
from marl_llm.errors import EpisodeError


def callers(batch: TurnBatch) -> Array:
    """The row of the turn that called the row's agent, [N] int; -1 = nobody in the batch.

    Raises:
        EpisodeError: a caller does not stand before its call in the same episode.
    """
    parent = batch.parent
    bad = np.flatnonzero(
        (parent >= 0)
        & ((batch.episode[parent] != batch.episode) | (batch.turn[parent] >= batch.turn))
    )
    if len(bad):
        i, by = bad[0], parent[bad[0]]
        raise EpisodeError(
            f"turn {batch.turn[i]} of episode {batch.episode[i]} was called by turn "
            f"{batch.turn[by]} of episode {batch.episode[by]}; a caller comes before its call, in "
            "the same episode"
        )
    return parent


def call_chains(batch: TurnBatch) -> Chains:
    """The turns of each call in playing order.

    Callers are told apart by their rows, or by the signal "caller" [N] where they have none here.
    """
    parent = callers(batch)
    # By turn and not by row, so that the order of the rows does not number the calls.
    caller = np.where(parent >= 0, batch.turn[parent], batch.signals.get("caller", -1))
    return chains((batch.episode, batch.agent, caller), batch.agent_turn)


def roots(parent: Array) -> Array:
    """The row at the top of each row's line of callers, [N] int; the row itself if uncalled.

    Args:
        parent: row of the caller, -1 = nobody, [N] int; as `callers` gives it.
    """
    top = np.where(parent < 0, np.arange(len(parent)), parent)
    while np.any((above := top[top]) != top):  # each pass doubles the reach
        top = above
    return top


def nested_shares(batch: TurnBatch, calls: Chains) -> Array:
    """A call weighs what its caller weighs, divided by the calls that the caller made.

        w(call) = w(caller) / calls of the caller,   w = 1 for agents that nobody called

    Calls without a sampled turn are not counted. The signal "call_share" [N], where there is one,
    says it of the whole team's tree. Without it, the callers that are not in the batch count as one
    per episode, which weighs 1.

    Args:
        batch: N turns.
        calls: its `call_chains`.

    Returns:
        w, [N] float64: of each row's call.
    """
    if "call_share" in batch.signals:
        return np.where(batch.depth > 0, batch.signals["call_share"], 1.0)
    parent = callers(batch)
    first = np.flatnonzero(calls.before == 0)
    first = first[np.argsort(calls.of[first])]  # [C]: the first turn of each call
    nobody = calls.count
    caller = np.where(parent[first] >= 0, calls.of[parent[first]], nobody)
    called = batch.depth[first] > 0
    spoken = called & (sums(batch.lengths, calls.of, calls.count) > 0)
    family, families = cells((batch.episode[first], caller, called), len(first))
    siblings = sums(spoken, family, families)[family]
    weight = np.append(np.where(called, 1.0 / np.maximum(siblings, 1.0), 1.0), 1.0)
    above = np.append(caller, nobody)
    while np.any(above < nobody):  # each pass doubles the reach
        weight *= weight[above]
        above = above[above]
    return weight[calls.of]
