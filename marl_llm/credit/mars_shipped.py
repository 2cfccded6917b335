"""MARS as its authors' code computes it, which is not what the paper says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, cells, sums


@dataclass(frozen=True, slots=True, kw_only=True)
class MarsShipped:
    """The order of operations of the published training code.

        (b) r'_k = r_k - μ,      μ = mean reward of a turn of this game and player
        (c) r''  = r' / √(v + ε), v = variance over all sampled tokens, most of them 0
        (d) G_k  = Σ_{j≥k} r''_j
        (e) C_k  = G_k - mean of the *distinct* values that G takes for this player
        (f) A    = (C - m) / √(v + ε) over all sampled tokens, both players and all games together

    The code works on tokens; with the reward on a turn's last token and no discount, G is the same
    at all tokens of a turn, so turns weighted by their lengths give the same numbers. After (b) the
    token rewards sum to 0, so that (c) only scales. Compared with `mars`: (b) normalises before the
    sum, and charges μ once for every turn still to come, so it rewards short episodes when μ is
    high; (e) counts a rare value as much as a common one, the 0 of prompts and padding too; (f)
    makes the result depend on reply lengths and on the other player.

    Source: the code of thu-nics/MARSHAL (2025), the settings of its self-play runs.
    """

    card: ClassVar[Card] = Card(
        name="mars_shipped",
        title="MARS as its code has it",
        source="thu-nics/MARSHAL",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"groups", "shift"}),
    )

    player: tuple[str, ...] = ("role", "agent")  # columns that make a player
    padding: bool = True  # do prompts and padding bring a 0 into the distinct values?
    whiten_rewards: bool = True  # (c)
    whiten_advantages: bool = True  # (f)
    ddof: int = 1  # of both variances over tokens
    epsilon: float = 1e-8  # added to both variances

    def __post_init__(self) -> None:
        names = checks.key_names("mars_shipped.player", self.player)
        object.__setattr__(self, "player", names)
        checks.one_of("mars_shipped.ddof", self.ddof, (0, 1))
        checks.within("mars_shipped.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        tokens = batch.lengths.astype(np.float64)
        reward = np.asarray(batch.reward, dtype=np.float64)
        pool = baselines.pool(batch, agents, ("game", *self.player), "turn", mix_roles=True)
        centred = baselines.centre(reward, pool)
        if self.whiten_rewards:
            centred = self._scale_over_tokens(centred, tokens)
        to_go = returns.to_go(centred, agents)
        player, players = cells([batch.column(name) for name in self.player], len(batch))
        advantage = to_go - self._distinct_means(to_go, player, players, tokens > 0)[player]
        if self.whiten_advantages:
            advantage = baselines.whiten(advantage, tokens, ddof=self.ddof, epsilon=self.epsilon)
        return turn_credit(
            batch,
            advantage,
            components=ledger(returns.to_go(reward, agents), to_go, advantage),
            stats=baselines.pool_statistics(reward, pool),
        )

    def _scale_over_tokens(self, reward: Array, tokens: Array) -> Array:
        """Step (c): one reward per turn, on its last token, and 0 on all other tokens; mean 0."""
        free = tokens.sum() - self.ddof
        if free <= 0:
            return reward
        variance = np.sum(np.where(tokens > 0, reward, 0.0) ** 2) / free
        return reward / np.sqrt(variance + self.epsilon)

    def _distinct_means(self, to_go: Array, player: Array, players: int, sampled: Array) -> Array:
        """Step (e): mean of the distinct values of each player, [players] float64."""
        value, owner = to_go[sampled], player[sampled]
        if self.padding:
            value = np.append(value, np.zeros(players))
            owner = np.append(owner, np.arange(players))
        # Equality is that of the code's float32 tensors, or rounding would tell equal values apart.
        single = value.astype(np.float32)
        order = np.lexsort((single, owner))
        single, owner, value = single[order], owner[order], value[order]
        new = np.ones(len(value), dtype=bool)
        new[1:] = (single[1:] != single[:-1]) | (owner[1:] != owner[:-1])
        count = np.maximum(np.bincount(owner[new], minlength=players), 1)
        return sums(value[new], owner[new], players) / count
