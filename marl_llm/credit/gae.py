"""GAE, over turns and over tokens: what an action changed in the critic's expectation.

The formulas of all estimators with a learned value are here, with the one that steps from turn to
turn. On the clock of tokens a turn's reward lies on its last token, and that of a turn without
tokens on the agent's last token before it; on the clock of turns every turn is a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from marl_llm.credit import checks
from marl_llm.credit.batch import Credit, TurnBatch, ledger, token_credit, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, Chains, following, scan_back
from marl_llm.credit.whitened import Whitened
from marl_llm.errors import EpisodeError


def gae(
    reward: Array, value: Array, value_end: Array, agents: Chains, gamma: float, lam: float
) -> Array:
    """Generalised advantage estimation along each agent's turns.

        δ_k = r_k + γ · V_{k+1} - V_k,   A_k = δ_k + γλ · A_{k+1}

    Args:
        reward: r, [N].
        value: V of what the agent knew before the turn, [N].
        value_end: V after the agent's last turn, [N]; read at last turns only.
        agents: chains of (episode, agent).
        gamma: γ, discount per turn of the agent.
        lam: λ, per turn of the agent; 0 = one-step error, 1 = return minus V.

    Returns:
        A, [N] float64. A + V is what the critic should have said.
    """
    delta = reward + gamma * following(value, agents, value_end) - value
    return scan_back(delta, gamma * lam, agents)


def token_errors(
    reward: Array, value: Array, value_end: Array, offsets: Array, agents: Chains, gamma: float
) -> Array:
    """What each sampled token changed in the critic's expectation.

        δ_t = r_t + γ · V_{t+1} - V_t

    The token after a turn's last one is the first of the agent's next turn that has any; behind all
    of them is `value_end`. What others said in between does not exist.

    Args:
        reward: r, [N].
        value: V before each token, [M].
        value_end: V after the agent's last turn, [N]; read at last turns only.
        offsets: [N+1].
        agents: chains of (episode, agent).
        gamma: γ, discount per sampled token.

    Returns:
        δ, [M] float64, a fresh array.
    """
    held = np.diff(offsets) > 0
    first = np.zeros(len(held))
    first[held] = value[offsets[:-1][held]]
    behind = following(nearest_ahead(first, held, agents, value_end), agents, value_end)
    last = offsets[1:][held] - 1
    delta = np.empty(len(value))
    delta[:-1] = value[1:]
    delta[last] = behind[held]
    delta *= gamma
    delta -= value
    delta[last] += paid_on_tokens(reward, held, agents)[held]
    return delta


def paid_on_tokens(reward: Array, held: Array, agents: Chains) -> Array:
    """What lies on the last token of each turn: its reward, and those of silent turns behind it.

    Args:
        reward: r, [N].
        held: turns with sampled tokens, [N] bool.
        agents: chains of (episode, agent).

    Returns:
        [N] float64; to be read where `held`.
    """
    return scan_back(reward, following(~held, agents, 0.0), agents)


def nearest_ahead(x: Array, held: Array, agents: Chains, end: Array) -> Array:
    """The x of the nearest turn that has one, from each turn on, itself included.

    Args:
        x: [N], read where `held`.
        held: [N] bool.
        agents: chains of (episode, agent).
        end: what lies behind an agent's last turn, [N]; read there only.

    Returns:
        [N] float64.
    """
    return scan_back(np.where(held, x, np.where(agents.after == 0, end, 0.0)), ~held, agents)


def filled(
    reward: Array,
    value: Array,
    known: Array,
    value_end: Array,
    agents: Chains,
    gamma: Array | float,
) -> Array:
    """Values with the unknown ones filled in from behind, so that these turns change nothing.

        V_k = r_k + γ · V_{k+1}   where V_k is not known

    Args:
        reward: r, [N].
        value: V, [N], read where known.
        known: [N] bool.
        value_end: V after the agent's last turn, [N]; read at last turns only.
        agents: chains of (episode, agent).
        gamma: γ, discount per turn of the agent, one number or one per turn, [N].

    Returns:
        V, [N] float64.
    """
    if np.all(known):
        return np.asarray(value, dtype=np.float64)
    behind = np.where(agents.after == 0, gamma * value_end, 0.0)
    return scan_back(np.where(known, value, reward + behind), gamma * ~known, agents)


def value_end(batch: TurnBatch, agents: Chains) -> Array:
    """V after the last turn of each agent, [N]: 0 if terminated, "value_next" otherwise.

    Args:
        batch: N turns.
        agents: its chains of (episode, agent).

    Raises:
        EpisodeError: an agent's last turn did not end its episode, and "value_next" is not there.
    """
    cut = (agents.after == 0) & ~batch.terminated
    if not np.any(cut):
        return np.zeros(len(batch))
    there = "value_next" in batch.signals
    lost = cut & ~batch.known("value_next") if there else cut
    if np.any(lost):
        i = np.flatnonzero(lost)[0]
        raise EpisodeError(
            f"{int(lost.sum())} agents' last turns did not end their episode (the first: turn "
            f"{batch.turn[i]} of episode {batch.episode[i]}), and the batch has no signal "
            "'value_next' that says what was still to come; attach it, or train on whole episodes"
        )
    return np.where(cut, batch.signal("value_next"), 0.0)


def value_credit(batch: TurnBatch, advantage: Array, value: Array, last: Whitened) -> Credit:
    """Credit of tokens whose critic should have said A + V.

    Args:
        batch: N turns, M sampled tokens.
        advantage: A, [M]; overwritten if whitened.
        value: V before each token, [M].
        last: whether and how A is whitened.
    """
    targets = advantage + value
    components = {"return": targets}
    if last.whiten:
        raw = advantage
        advantage = last.whitened(raw, np.broadcast_to(1.0, raw.shape))
        components["scaling"] = np.subtract(advantage, raw, out=raw)
    components["baseline"] = -value
    return token_credit(batch, advantage, components=components, stats={}, targets=targets)


class Errors(NamedTuple):
    """What a critic did not expect. Made by `errors`."""

    agents: Chains  # of (episode, agent)
    value: Array  # [N]: V before each turn, unknown ones filled in
    error: Array  # [N]: δ
    missing: dict[str, float]  # how many were unknown, to be reported


def errors(batch: TurnBatch, gamma: float) -> Errors:
    """The one-step errors of the signal "value", δ_k = r_k + γ · V_{k+1} - V_k.

    Args:
        batch: N turns.
        gamma: γ, discount per turn of the agent.
    """
    agents = batch.agents()
    reward = np.asarray(batch.reward, dtype=np.float64)
    end, known = value_end(batch, agents), batch.known("value")
    value = filled(reward, batch.signal("value"), known, end, agents, gamma)
    error = reward + gamma * following(value, agents, end) - value
    missing = float(np.sum(~known & (batch.lengths > 0)))
    return Errors(agents, value, error, {"missing_labels": missing})


@dataclass(frozen=True, slots=True, kw_only=True)
class GAE(Whitened):
    """Generalised advantage estimation, one step per turn of an agent.

        δ_k = r_k + γ · V_{k+1} - V_k,   A_k = Σ_{j≥k} (γλ)^(j-k) · δ_j

    Needs the signal "value" [N], V before each turn. After the last turn V is 0 if the episode
    terminated; if it was cut short, the signal "value_next" [N] has V there. A missing value is
    filled in from the next, so that its turn has δ = 0. A turn without tokens is a step as others,
    with a V of its own. All tokens of a turn get the same A [N]. `Credit.targets` is A + V, taken
    before any whitening.

    Source: Schulman et al., arXiv 1506.02438; over turns: Turn-PPO, arXiv 2512.17008.
    """

    card: ClassVar[Card] = Card(
        name="gae",
        title="GAE over turns",
        source="arXiv 1506.02438, 2512.17008",
        evidence="notes",
        granularity="turn",
        methodology="temporal difference",
        needs=frozenset({"value"}),
        cost="a critic's T values",
        breaks=frozenset({"shift"}),
    )

    gamma: float = 1.0  # discount per turn of the agent
    lam: float = 0.95  # per turn of the agent

    def __post_init__(self) -> None:
        Whitened.__post_init__(self)
        checks.within(f"{self.card.name}.gamma", self.gamma, 0.0, 1.0)
        checks.within(f"{self.card.name}.lam", self.lam, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        found = errors(batch, self.gamma)
        raw = scan_back(found.error, self.gamma * self.lam, found.agents)
        targets = raw + found.value
        advantage = self.whitened(raw, batch.lengths.astype(np.float64))
        return turn_credit(
            batch,
            advantage,
            components=ledger(targets, targets - found.value, advantage),
            stats=found.missing,
            targets=targets,
        )
