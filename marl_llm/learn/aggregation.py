"""How much each sampled token counts: weights with the denominators of the whole batch.

The objective is Σ_m weight_m × term_m. Because every weight already holds the batch's own counts, a
sum over any split into micro-batches gives the same gradient.

A turn counts when its credit weight is not 0 and it has tokens. One that does not is left out of
the numerator *and* of every count below, so filtered turns do not water down the rest. A credit
weight other than 1 scales its turn's terms and changes no count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_llm.errors import ConfigError, nearest
from marl_llm.learn.rows import Array

MODES = ("turn", "trajectory", "token", "constant")


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Which mean the objective takes.

    - `turn`: mean over turns of the mean over their tokens, 1/(N L_i).
    - `trajectory`: mean over trajectories (one agent in one episode) of the mean over their turns
      of the mean over their tokens, 1/(G K_g L_i); with `per_role`, over roles first:
      1/P Σ_p 1/G_p Σ 1/K Σ 1/L (MARS).
    - `token`: mean over all tokens, 1/M. Long replies weigh more (DAPO).
    - `constant`: 1/(N C), C = `length`. No length bias (Dr. GRPO); C must not depend on the batch.
    """

    mode: str = "turn"
    per_role: bool = False  # trajectory only
    length: int | None = None  # C of constant, in tokens: the reply limit

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(
                f"aggregation mode {self.mode!r} is unknown; {nearest(self.mode, MODES)}"
            )
        if (self.mode == "constant") != (self.length is not None):
            raise ConfigError(
                "aggregation.length (tokens, the reply limit) goes with mode 'constant' and only "
                f"with it; got mode {self.mode!r}, length {self.length}"
            )
        if self.length is not None and self.length < 1:
            raise ConfigError(f"aggregation.length must be at least 1, got {self.length}")
        if self.per_role and self.mode != "trajectory":
            raise ConfigError(
                f"aggregation.per_role goes with mode 'trajectory', got mode {self.mode!r}"
            )


def token_weights(
    aggregation: Aggregation,
    lengths: Array,
    credit_weight: Array,
    episode: Array,
    agent: Array,
    role: Array,
) -> Array:
    """The weight of every sampled token, [M] float64; 0 for turns that do not count.

    Args:
        aggregation: which mean.
        lengths: L, [N] sampled tokens per turn.
        credit_weight: [N]; 0 leaves a turn out.
        episode: [N] int.
        agent: [N] int, with `episode` the trajectory's key.
        role: [N] int.
    """
    counts = (credit_weight != 0) & (lengths > 0)
    per_turn = np.zeros(len(lengths), np.float64)
    if np.any(counts):
        per_turn[counts] = credit_weight[counts] * turn_shares(
            aggregation, lengths[counts], episode[counts], agent[counts], role[counts]
        )
    return np.repeat(per_turn, lengths)


def turn_shares(
    aggregation: Aggregation, lengths: Array, episode: Array, agent: Array, role: Array
) -> Array:
    """The weight of one token of each turn, [N] float64, when all N ≥ 1 turns count."""
    n = len(lengths)
    if aggregation.mode == "token":
        return np.full(n, 1.0 / lengths.sum())
    if aggregation.mode == "turn":
        return 1.0 / (n * lengths)
    if aggregation.length is not None:
        return np.full(n, 1.0 / (n * aggregation.length))
    _, first, trajectory, turns = np.unique(
        np.stack([episode, agent]),
        axis=1,
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    in_mean = np.full(len(first), 1.0 / len(first))  # each trajectory's share
    if aggregation.per_role:
        _, part, members = np.unique(role[first], return_inverse=True, return_counts=True)
        in_mean = 1.0 / (len(members) * members[part])
    return (in_mean / turns)[trajectory] / lengths
