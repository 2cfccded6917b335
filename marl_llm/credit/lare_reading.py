"""LaRe: a return, explained by scores of its turns and paid out accordingly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.labels import labelled
from marl_llm.credit.segments import Array, cells, sums
from marl_llm.errors import ConfigError


def ridge_fit(features: Array, targets: Array, ridge: float) -> Array:
    """Weights of the linear model that explains the targets best.

        w = argmin Σ_e (y_e - z_e · w)² + α |w|²

    Args:
        features: z, [E, F].
        targets: y, [E].
        ridge: α, above 0, in squared units of z; it decides between features that say the same, as
            one indicator per agent does.

    Returns:
        w, [F].
    """
    gram = features.T @ features + ridge * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaReReading(Grouped):
    """Latent rewards: the return of a batch's episodes, regressed on scores of their turns.

        r̂_k = w · z_k,   w = argmin Σ_e (R_e - Σ_{k in e} w · z_k)² + α |w|²
        A_k = Ĝ_k - mean_cell Ĝ,   Ĝ_k = Σ_{j≥k} γ^(j-k) · r̂_j

    z [N, F] are the signals that `factors` names, as code that a language model wrote might score a
    turn; they are attached under any names, "factor/progress" say. All turns of all agents share w.
    With `per: episode` R_e is the mean return of the episode's agents, that of the team if they
    share it, and the sum runs over all its turns; with `per: agent` each agent's return is
    explained by its own turns. r̂ of an episode sums to R_e only as far as the scores explain it,
    and the statistic "explained" says how far: 1 - Σ (R_e - Σ r̂)² / Σ R_e². A turn without all
    scores gets r̂ = 0, and its episode does not count in the fit.

    Source: our reading of LaRe, arXiv 2412.11120, which fits a network of five layers to many
    batches and learns a critic on r̂; here the fit is linear and of this batch, and the baseline is
    the cell's mean.
    """

    card: ClassVar[Card] = Card(
        name="lare_reading",
        title="LaRe with a linear fit",
        source="our reading of arXiv 2412.11120",
        evidence="reading",
        granularity="turn",
        methodology="redistribution",
        cost="a language model's code, once",
        breaks=frozenset({"groups", "shift"}),
    )

    factors: tuple[str, ...]  # signals over turns that score them
    ridge: float  # α, in squared units of the scores
    per: Literal["episode", "agent"] = "episode"  # whose return is explained
    gamma: float = 1.0  # discount per turn of the agent
    unit: baselines.Unit = "turn"  # counted once in the cell's mean

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        if isinstance(self.factors, str) or not self.factors:
            raise ConfigError(
                f"lare_reading.factors is a list of signals over turns, got {self.factors!r}"
            )
        object.__setattr__(self, "factors", tuple(self.factors))
        checks.within("lare_reading.ridge", self.ridge, np.finfo(np.float64).tiny)
        checks.one_of("lare_reading.per", self.per, ("episode", "agent"))
        checks.within("lare_reading.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        known, stats = labelled(batch, *self.factors)
        latent, fit = self._latent(batch, known)
        to_go = returns.to_go(latent, agents, self.gamma)
        pool = self.pool(batch, agents)
        centred = baselines.centre(to_go, pool)
        return self.difference(to_go, centred, pool, batch, stats | fit)

    def _latent(self, batch: TurnBatch, known: Array) -> tuple[Array, dict[str, float]]:
        """r̂ of every turn, [N]; and how much of the returns it explains."""
        scores = np.stack([batch.signal(name) for name in self.factors], axis=1) * known[:, None]
        keys = (batch.episode,) if self.per == "episode" else (batch.episode, batch.agent)
        of, count = cells(keys, len(batch))
        players = sums(batch.agents().before == 0, of, count)
        whole = sums(batch.reward, of, count) / players
        features = np.stack([sums(score, of, count) for score in scores.T], axis=1)
        sampled = batch.lengths > 0
        fitted = (sums(sampled & ~known, of, count) == 0) & (sums(sampled, of, count) > 0)
        weights = ridge_fit(features[fitted], whole[fitted], self.ridge)
        missed = np.sum((whole - features @ weights)[fitted] ** 2)
        size = np.sum(whole[fitted] ** 2)
        explained = 1.0 - missed / size if size > 0 else 0.0
        return scores @ weights, {"explained": float(explained)}
