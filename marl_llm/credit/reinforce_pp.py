"""REINFORCE++: reward-to-go, or group-centred returns, whitened over all sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import Resampler, baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, role_statistics, turn_credit


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP:
    """Whitened reward-to-go of every sampled token.

        G_t = r_t + γ · G_{t+1},   A_t = (G_t - m) / √(v + ε)

    The reward of a turn lies on its last token; G [M] runs over the sampled tokens of one agent in
    one episode, other agents' words do not exist in it. m and v are the mean and the variance over
    all M sampled tokens of the batch, all roles together. Equal returns everywhere give exactly 0.

    Source: Hu, REINFORCE++, arXiv 2501.03262; ddof as in verl (OpenRLHF has 0).
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Literal["turn", "token"]] = "token"
    source: ClassVar[str] = "arXiv 2501.03262"
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]] = "code"

    gamma: float = 1.0  # discount per sampled token
    ddof: int = 1  # of the variance over tokens
    epsilon: float = 1e-8  # added to the variance

    def __post_init__(self) -> None:
        checks.within("reinforce_pp.gamma", self.gamma, 0.0, 1.0)
        checks.one_of("reinforce_pp.ddof", self.ddof, (0, 1))
        checks.within("reinforce_pp.epsilon", self.epsilon, 0.0)

    def estimate(
        self,
        batch: TurnBatch,
        *,
        rng: np.random.Generator | None = None,
        resample: Resampler | None = None,
    ) -> Credit:
        """Credit for every sampled token of the batch."""
        agents = batch.agents()
        to_go = returns.to_go_tokens(batch.reward, batch.offsets, agents, self.gamma)
        advantage = baselines.whiten(
            to_go, np.ones(len(to_go)), ddof=self.ddof, epsilon=self.epsilon
        )
        lengths = batch.lengths
        turn = np.repeat(np.arange(len(batch)), lengths)
        size = np.bincount(turn, np.abs(advantage), len(batch)) / np.maximum(lengths, 1)
        return Credit(
            advantage=advantage,
            weight=(lengths > 0).astype(np.float64),
            level="token",
            components={"returns": returns.to_go(batch.reward, agents)},
            stats=role_statistics(batch, size, lengths),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePPBaseline:
    """REINFORCE++ with a group baseline.

        x = R - mean_cell R,   A = (x - m) / √(v + ε)

    R [N] is the whole return of the turn's agent in its episode. m and v are the mean and the
    variance of x over all sampled tokens of the batch, so long replies weigh more in them, and m is
    not 0 although x is centred per cell. A cell without signal beside others therefore gets
    A = -m/√v. That is the published rule; "restore" (add m again, the masked whitening without a
    shift) gives m - m/√v, and only "keep" (x/√v) gives the 0 that such a cell deserves.

    Source: Hu, REINFORCE++, arXiv 2501.03262; "keep" is our reading.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Literal["turn", "token"]] = "turn"
    source: ClassVar[str] = "arXiv 2501.03262"
    evidence: ClassVar[Literal["paper", "code", "notes", "reading"]] = "code"

    by: tuple[str, ...] = ("group", "agent")  # equal values make a cell
    unit: baselines.Unit = "agent"  # counted once in the cell's mean
    shift_mean: baselines.WhiteMean = "subtract"  # or "restore", "keep": see above
    ddof: int = 1  # of the variance over tokens
    epsilon: float = 1e-8  # added to the variance
    singleton: baselines.Singleton = "zero"  # x of a cell alone; "raw" = baseline 0
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("reinforce_pp_baseline.by", self.by))
        checks.one_of("reinforce_pp_baseline.unit", self.unit, checks.UNITS)
        options = ("subtract", "restore", "keep")
        checks.one_of("reinforce_pp_baseline.shift_mean", self.shift_mean, options)
        checks.one_of("reinforce_pp_baseline.ddof", self.ddof, (0, 1))
        checks.within("reinforce_pp_baseline.epsilon", self.epsilon, 0.0)
        rules = checks.SINGLETON_RULES
        checks.one_of("reinforce_pp_baseline.singleton", self.singleton, rules)

    def estimate(
        self,
        batch: TurnBatch,
        *,
        rng: np.random.Generator | None = None,
        resample: Resampler | None = None,
    ) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = baselines.pool(batch, agents, self.by, self.unit, mix_roles=self.mix_roles)
        centred = baselines.settle(
            baselines.centre(total, pool),
            raw=total,
            few=baselines.alone(pool),
            rule=self.singleton,
            sampled=batch.lengths > 0,
        )
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
            components={"returns": total, "centred": centred},
            stats=baselines.pool_statistics(total, pool),
        )
