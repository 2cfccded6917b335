"""HAE: credit on three levels: for changing a sub-goal, for choosing it, for acting on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from marl_llm.credit import baselines, checks, tokens
from marl_llm.credit.batch import Credit, TurnBatch, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.gae import filled, value_end
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array, Chains, chains, following, scan_back
from marl_llm.errors import EpisodeError

SWITCH, SUB_GOAL, ACTION, NONE = 0, 1, 2, -1  # values of the signal "block"

Truncation = Literal["exact", "same_state", "zero"]


class Level(NamedTuple):
    """One of the three kinds of decisions, over turns."""

    advantage: Array  # [N]
    target: Array  # [N]: what its head should have said


class Plan(NamedTuple):
    """The S segments as steps of their planners. Made by `plan`."""

    first: Array  # [S] int: the turn that starts each
    links: Chains  # the segments of each agent in each episode, in playing order
    gained: Array  # [S]: discounted reward within
    decay: Array  # [S]: γ^d, d turns in the segment
    end: Array  # [S]: what follows the agent's last turn


def starts_segment(switch: Array, agents: Chains) -> Array:
    """Where a new sub-goal begins, [N] bool: at an agent's first turn, and where it switched.

    Args:
        switch: not 0 where the agent switched, [N].
        agents: chains of (episode, agent).
    """
    return (switch != 0) | (agents.before == 0)


def segments(starts: Array, agents: Chains) -> Chains:
    """The turns under one sub-goal, in playing order.

    Args:
        starts: first turns of segments, [N] bool; an agent's first turn is one.
        agents: chains of (episode, agent).
    """
    number = np.empty(len(starts), dtype=np.int64)
    number[agents.order] = np.cumsum(starts[agents.order])
    return chains((number,), agents.before)


def low_level(
    reward: Array,
    value_low: Array,
    value_high: Array,
    end: Array,
    agents: Chains,
    parts: Chains,
    gamma: float,
    lam: float,
) -> Array:
    """The executor's GAE, which ends with its sub-goal and goes on from the planner's value.

        δ_t = r_t + γ · V_next - V^L_t,   A_t = δ_t + γλ · A_{t+1} within the segment

    V_next is V^L of the next turn, or V^H of it where it starts a new segment.

    Args:
        reward: r, [N].
        value_low: V^L, given the sub-goal, [N].
        value_high: V^H, before it is chosen, [N].
        end: what follows an agent's last turn, [N]; read there only.
        agents: chains of (episode, agent).
        parts: the `segments`.
        gamma: γ per turn of the agent.
        lam: λ per turn of the agent.

    Returns:
        A^L, [N].
    """
    entered = np.where(parts.before == 0, value_high, value_low)
    delta = reward + gamma * following(entered, agents, end) - value_low
    return scan_back(delta, gamma * lam, parts)


def plan(reward: Array, end: Array, agents: Chains, parts: Chains, gamma: float) -> Plan:
    """One step per segment.

    Args:
        reward: r, [N].
        end: what follows an agent's last turn, [N]; read there only.
        agents: chains of (episode, agent).
        parts: the `segments`.
        gamma: γ per turn of the agent.
    """
    last = agents.after == 0
    at_end = np.zeros(agents.count)
    at_end[agents.of[last]] = end[last]
    first = np.flatnonzero(parts.before == 0)
    return Plan(
        first,
        chains((agents.of[first],), agents.before[first]),
        scan_back(reward, gamma, parts)[first],
        gamma ** (parts.after[first] + 1.0),
        at_end[agents.of[first]],
    )


def high_level(steps: Plan, value: Array, lam: float) -> Array:
    """The planner's GAE, one step per sub-goal.

        R_k = Σ_{j<d} γ^j r_{s+j},   δ_k = R_k + γ^d · V^H_{k+1} - V^H_k
        A_k = δ_k + γ^d λ · A_{k+1},   d turns in segment k, which starts at turn s

    Args:
        steps: the segments.
        value: V^H where they start, [S].
        lam: λ per segment.

    Returns:
        A^H, [S].
    """
    behind = steps.decay * following(value, steps.links, steps.end)
    return scan_back(steps.gained + behind - value, steps.decay * lam, steps.links)


def returns_in_segment(
    reward: Array, value_high: Array, end: Array, agents: Chains, parts: Chains, gamma: float
) -> Array:
    """Return from a turn to the end of its sub-goal, and the planner's value from there.

        G_t = r_t + γ · G_{t+1},   G = r + γ · V^H_{k+1} at the last turn of segment k

    Args:
        reward: r, [N].
        value_high: V^H, [N].
        end: what follows an agent's last turn, [N]; read there only.
        agents: chains of (episode, agent).
        parts: the `segments`.
        gamma: γ per turn of the agent.

    Returns:
        G, [N].
    """
    behind = np.where(parts.after == 0, gamma * following(value_high, agents, end), 0.0)
    return scan_back(reward + behind, gamma, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HAE:
    """HiPER's hierarchical advantage estimation.

        sub-goal  A^H_k = δ^H_k + γ^d λ_seg · A^H_{k+1},   δ^H_k = R_k + γ^d · V^H_{k+1} - V^H_k
        action    A^L_t = δ^L_t + γ λ_turn · A^L_{t+1},    δ^L_t = r_t + γ · V_next - V^L_t
        switch    A^T_t = G_t - V^T_t                      as shipped
                  A^T_t = (q_t - β_t) · (V^H_t - V^keep_t) in theory

    A reply has three parts: keep or switch, the sub-goal, and an action. A segment is the d turns
    under one sub-goal; R_k is its discounted reward, G_t that from turn t on and V^H behind it.
    V_next is V^L of the next turn, V^H where that starts a segment, and A^L does not run on into
    the next segment. Each token gets the advantage of its part: the signal "block" [M] is 0 in the
    switch, 1 in the sub-goal, 2 in the action, -1 outside, where tokens get 0. So do the tokens of
    a sub-goal that was only copied. An agent's first turn always starts a segment.

    Signals over turns: "switch" [N] is 1 where a sub-goal starts, "value" is V^L (given the
    sub-goal), "value_high" V^H (before it). As shipped "value_switch" is V^T, a third head. In
    theory "switch_probability" is β and "value_keep" V^L under the old sub-goal, q is "switch", and
    an agent's first turn, which has nothing to keep, gets 0.

    Where an episode was cut short, "exact" goes on from the signal "value_next", V of whatever
    comes then; "same_state" is the shipped bootstrap from the last value of each level itself;
    "zero" is the shipped alternative. With `whiten` each of the three is centred and divided by its
    std (over n) over the turns that have such tokens, as in the scripts. A missing value is filled
    in from the next, a missing label of the switch gives its tokens 0, and a turn that does not say
    whether it switched goes on with its sub-goal; all are counted. `Credit.targets` [M] has, at the
    tokens of each part, what its own head should have said.

    Source: Peng et al., HiPER, arXiv 2602.16165, and JonP07/HiPER-agent, where the form "theory" is
    a comment.
    """

    card: ClassVar[Card] = Card(
        name="hae",
        title="HAE (HiPER)",
        source="arXiv 2602.16165",
        evidence="code",
        granularity="segment",
        methodology="temporal difference",
        level="token",
        needs=frozenset({"value", "value_high", "switch", "block"}),
        cost="a critic's 3 T values",
        breaks=frozenset({"groups", "shift"}),
    )

    gamma: float = 1.0  # discount per turn of the agent
    lam_turn: float = 1.0  # per turn of the agent, within a segment
    lam_segment: float = 0.95  # per segment
    form: Literal["shipped", "theory"] = "shipped"  # of the switch's advantage
    truncation: Truncation = "exact"  # or "same_state", "zero": what follows where cut short
    whiten: bool = True  # each of the three by itself
    epsilon: float = 1e-8  # added to the standard deviation, if whitened

    def __post_init__(self) -> None:
        checks.within("hae.gamma", self.gamma, 0.0, 1.0)
        checks.within("hae.lam_turn", self.lam_turn, 0.0, 1.0)
        checks.within("hae.lam_segment", self.lam_segment, 0.0, 1.0)
        checks.one_of("hae.form", self.form, ("shipped", "theory"))
        checks.one_of("hae.truncation", self.truncation, ("exact", "same_state", "zero"))
        checks.within("hae.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        said = batch.lengths > 0  # who says nothing goes on as before
        starts = starts_segment(_known(batch, "switch") * said, agents)
        parts = segments(starts, agents)
        turn, block = tokens.turn_of(batch.offsets), _blocks(batch)
        levels = self._levels(batch, agents, parts)
        carried = {
            "switch": block == SWITCH,
            "sub_goal": (block == SUB_GOAL) & starts[turn],
            "action": block == ACTION,
        }
        components = {
            name: np.where(here, self._whitened(levels[name].advantage, turn[here])[turn], 0.0)
            for name, here in carried.items()
        }
        _, stats = labelled(batch, *self._signals())
        return token_credit(
            batch,
            sum(components.values(), np.zeros(len(turn))),
            components=components,
            stats=stats | {"segments": float(np.sum(starts))},
            targets=sum(
                (np.where(here, levels[name].target[turn], 0.0) for name, here in carried.items()),
                np.zeros(len(turn)),
            ),
        )

    def _signals(self) -> tuple[str, ...]:
        """The signals over turns that are read."""
        form = ("value_switch",) if self.form == "shipped" else ("switch_probability", "value_keep")
        return ("switch", "value", "value_high", *form)

    def _levels(self, batch: TurnBatch, agents: Chains, parts: Chains) -> dict[str, Level]:
        """The three decisions of every turn; the sub-goal's where segments start."""
        reward = np.asarray(batch.reward, dtype=np.float64)
        end_low, end_high = self._ends(batch, agents, parts)
        steps = plan(reward, end_high, agents, parts, self.gamma)
        # A missing value is filled in from behind, so that its turn changes nothing.
        value_high = batch.signal("value_high").copy()
        value_high[steps.first] = planned = filled(
            steps.gained,
            value_high[steps.first],
            batch.known("value_high")[steps.first],
            steps.end,
            steps.links,
            steps.decay,
        )
        value_low = filled(
            reward,
            batch.signal("value"),
            batch.known("value"),
            following(value_high, agents, end_low),
            parts,
            self.gamma,
        )
        low = low_level(
            reward, value_low, value_high, end_low, agents, parts, self.gamma, self.lam_turn
        )
        high = np.zeros(len(batch))
        high[steps.first] = high_level(steps, planned, self.lam_segment)
        to_go = returns_in_segment(reward, value_high, end_high, agents, parts, self.gamma)
        return {
            "switch": self._switch(batch, agents, to_go, value_high),
            "sub_goal": Level(high, high + value_high),
            "action": Level(low, low + value_low),
        }

    def _switch(self, batch: TurnBatch, agents: Chains, to_go: Array, value_high: Array) -> Level:
        """The decision to switch, in the form that is set; 0 where a label is missing."""
        known, _ = labelled(batch, *self._signals())
        if self.form == "shipped":
            return Level(np.where(known, to_go - batch.signal("value_switch"), 0.0), to_go)
        free = known & (agents.before > 0)
        surprise = batch.signal("switch") - batch.signal("switch_probability")
        gain = value_high - batch.signal("value_keep")
        return Level(np.where(free, surprise * gain, 0.0), np.zeros(len(batch)))

    def _ends(self, batch: TurnBatch, agents: Chains, parts: Chains) -> tuple[Array, Array]:
        """What follows an agent's last turn for the executor and for the planner, [N] each."""
        if self.truncation == "exact":
            end = value_end(batch, agents)
            return end, end
        cut = (agents.after == 0) & ~batch.terminated & (self.truncation == "same_state")
        at_start = np.zeros(parts.count)
        first = parts.before == 0
        at_start[parts.of[first]] = _known(batch, "value_high")[first]
        return (
            np.where(cut, _known(batch, "value"), 0.0),
            np.where(cut, at_start[parts.of], 0.0),
        )

    def _whitened(self, x: Array, carrying: Array) -> Array:
        """An advantage over turns in units of its spread, if that is asked for, [N].

        Args:
            x: [N].
            carrying: turns that have such tokens, each once or more.
        """
        if not self.whiten:
            return x
        counted = np.zeros(len(x))
        counted[carrying] = 1.0
        pool = baselines.Pool(np.zeros(len(x), dtype=np.int64), counted, counted.sum(keepdims=True))
        return baselines.standardise(x, pool, ddof=0, epsilon=self.epsilon)


def _known(batch: TurnBatch, name: str) -> Array:
    """A signal over turns, 0 where it is missing, [N]."""
    return np.where(batch.known(name), batch.signal(name), 0.0)


def _blocks(batch: TurnBatch) -> Array:
    """The part of the reply that each token is in, [M]."""
    block = batch.token_signal("block")
    bad = np.flatnonzero(~np.isin(block, (SWITCH, SUB_GOAL, ACTION, NONE)))
    if len(bad):
        i = tokens.turn_of(batch.offsets)[bad[0]]
        raise EpisodeError(
            f"signal 'block' of turn {batch.turn[i]} of episode {batch.episode[i]} is "
            f"{block[bad[0]]:g}; it is 0 (switch), 1 (sub-goal), 2 (action) or -1 (none of them)"
        )
    return block
