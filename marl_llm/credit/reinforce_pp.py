"""REINFORCE++: reward-to-go, or group-centred returns, whitened over all sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, token_credit, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP:
    """Whitened reward-to-go of every sampled token.

        G_t = r_t + γ · G_{t+1},   A_t = (G_t - m) / √(v + ε)

    The reward of a turn lies on its last token; G [M] runs over the sampled tokens of one agent in
    one episode, other agents' words do not exist in it. m and v are the mean and the variance over
    all M sampled tokens of the batch, all roles together. Equal returns everywhere give exactly 0,
    and a constant that all episodes are paid at their end cancels, unless γ < 1.

    Source: Hu, REINFORCE++, arXiv 2501.03262; ddof as in verl (OpenRLHF has 0).
    """

    card: ClassVar[Card] = Card(
        name="reinforce_pp",
        title="REINFORCE++",
        source="arXiv 2501.03262",
        evidence="code",
        granularity="token",
        methodology="monte carlo",
        level="token",
        breaks=frozenset({"groups"}),
    )

    gamma: float = 1.0  # discount per sampled token
    ddof: int = 1  # of the variance over tokens
    epsilon: float = 1e-8  # added to the variance

    def __post_init__(self) -> None:
        checks.within("reinforce_pp.gamma", self.gamma, 0.0, 1.0)
        checks.one_of("reinforce_pp.ddof", self.ddof, (0, 1))
        checks.within("reinforce_pp.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        to_go = returns.to_go_tokens(batch.reward, batch.offsets, agents, self.gamma)
        advantage = baselines.whiten(
            to_go, np.ones(len(to_go)), ddof=self.ddof, epsilon=self.epsilon
        )
        return token_credit(batch, advantage, components=ledger(to_go, advantage), stats={})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePPBaseline(Grouped):
    """REINFORCE++ with a group baseline.

        x = R - mean_cell R,   A = (x - m) / √(v + ε)

    R [N] is the whole return of the turn's agent in its episode. m and v are the mean and the
    variance of x over all sampled tokens of the batch, so long replies weigh more in them, and m is
    not 0 although x is centred per cell. A cell without signal beside others therefore gets
    A = -m/√v. That is the published rule; "restore" (add m again, the masked whitening without a
    shift) gives m - m/√v, and only "keep" (x/√v) gives the 0 that such a cell deserves.

    Source: Hu, REINFORCE++, arXiv 2501.03262; "keep" is our reading.
    """

    card: ClassVar[Card] = Card(
        name="reinforce_pp_baseline",
        title="REINFORCE++ with a group baseline",
        source="arXiv 2501.03262",
        evidence="code",
        granularity="response",
        methodology="monte carlo",
        breaks=frozenset({"groups"}),
    )

    shift_mean: baselines.WhiteMean = "subtract"  # or "restore", "keep": see above
    ddof: int = 1  # of the variance over tokens
    epsilon: float = 1e-8  # added to the variance

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        options = ("subtract", "restore", "keep")
        checks.one_of("reinforce_pp_baseline.shift_mean", self.shift_mean, options)
        checks.one_of("reinforce_pp_baseline.ddof", self.ddof, (0, 1))
        checks.within("reinforce_pp_baseline.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        centred = self.settle(baselines.centre(total, pool), total, pool, batch)
        advantage = baselines.whiten(
            centred,
            batch.lengths.astype(np.float64),
            ddof=self.ddof,
            epsilon=self.epsilon,
            shift_mean=self.shift_mean,
        )
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, centred, advantage),
            stats=baselines.pool_statistics(total, pool),
        )
