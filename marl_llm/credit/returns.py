"""Returns: what an agent got, seen from each of its turns.

The clock of a discount is said where it is set.
All take the chains of (episode, agent), so that an agent is paid for what reached *it*, whoever
moved in between. They know no baseline.
"""

from __future__ import annotations

import numpy as np

from marl_llm.credit.segments import Array, Chains, following, scan_back, sums


def totals(reward: Array, agents: Chains) -> Array:
    """The whole return of the row's agent in its episode, the same at each of its turns.

        R = Σ_k r_k

    Args:
        reward: r, [N].
        agents: chains of (episode, agent).

    Returns:
        R, [N] float64.
    """
    in_order = np.asarray(reward, dtype=np.float64)[agents.order]
    return sums(in_order, agents.of[agents.order], agents.count)[agents.of]


def to_go(reward: Array, agents: Chains, gamma: float = 1.0) -> Array:
    """Return from this turn on.

        G_k = r_k + γ · G_{k+1}

    Args:
        reward: r, [N].
        agents: chains of (episode, agent).
        gamma: discount per *turn of this agent*.

    Returns:
        G, [N] float64.
    """
    return scan_back(reward, gamma, agents)


def to_go_tokens(reward: Array, offsets: Array, agents: Chains, gamma: float = 1.0) -> Array:
    """Return from this sampled token on, the reward of a turn lying on its last token.

        G_{k,t} = γ^(L_k - 1 - t) · H_k,   H_k = r_k + γ^(L_{k+1}) · H_{k+1},   t = 0..L_k - 1

    Only sampled tokens exist and count, so nothing decays or resets over the other agents' words. A
    turn without tokens passes its reward on to the last token before it.

    Args:
        reward: r, [N].
        offsets: tokens of turn i are offsets[i]:offsets[i+1], [N+1].
        agents: chains of (episode, agent).
        gamma: discount per *sampled token*.

    Returns:
        G, [M] float64.
    """
    lengths = np.diff(offsets)
    at_last_token = scan_back(reward, gamma ** following(lengths, agents, 0.0), agents)
    to_last_token = np.repeat(offsets[1:] - 1, lengths) - np.arange(offsets[-1])
    return gamma ** to_last_token.astype(np.float64) * np.repeat(at_last_token, lengths)
