"""GraphGPO: a step is good if it comes nearer to a success than others from the same state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, graphs, merged, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.merged import Merged
from marl_llm.credit.segments import Array, extremes


def nearness(
    left: Array, front: Array, region: Array, *, omega: float, scale: float
) -> tuple[Array, Array]:
    """What an edge is worth for the distance that is left behind it.

        C · ω^d,   d = 1 + the largest distance of the region where no success can be reached

    Args:
        left: distance behind the edge, [E]; +inf = no success can be reached.
        front: distance in front of it, [E], of which the largest finite one of a region is taken.
        region: edges of unlike regions never meet, [E] int.
        omega: ω, per edge.
        scale: C.

    Returns:
        [E], 0 in a region without a success; and whether the edge's region has one, [E] bool.
    """
    finite = np.where(np.isfinite(front), front, -1.0)
    _, largest = extremes(finite, region, int(region.max(initial=-1)) + 1)
    farthest = largest[region]
    known = farthest > 0
    d = np.where(np.isfinite(left), left, farthest + 1.0)
    return np.where(known, scale * omega**d, 0.0), known


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphGPO(Merged):
    """Graph-based group policy optimisation.

        A = w_E · A_E + w_G · A_G
        A_E = (R - mean_cell R) / (std_cell R + ε)
        A_G = (g - mean g) / (std g + ε)   over the turns at the same state,   g = C · ω^d(s')

    d(s') is the number of turns from the next state to the nearest success, on the shortest way
    that any episode of the graph took: 0 at the end of a success, and one more than the largest
    where no success can be reached. So a good step of a failed episode can be praised; a step that
    leads to a success is blamed where a shorter way was found. An episode succeeds if the agent's
    return is above `success_above`. A state visited once, and a graph without success, give A_G = 0
    and leave A_E: there is nothing for `fallback` to do.

    C and a constant cost per step cancel in the division, up to ε. The authors' penalty for invalid
    actions is a reward of the game's.

    Source: Cheng et al., GraphGPO, arXiv 2605.26684, as a public reproduction has it.
    """

    card: ClassVar[Card] = Card(
        name="graph_gpo",
        title="GraphGPO",
        source="arXiv 2605.26684",
        evidence="notes",
        granularity="turn",
        methodology="monte carlo",
        breaks=frozenset({"shift"}),
    )

    success_above: float = 0.0  # returns above it are successes
    omega: float = 0.1  # ω, per turn that is left
    scale: float = 10.0  # C
    episode_weight: float = 1.0  # w_E
    graph_weight: float = 1.0  # w_G
    ddof: int = 1  # of the standard deviations
    epsilon: float = 1e-6  # added to them

    def __post_init__(self) -> None:
        Merged.__post_init__(self)
        checks.within("graph_gpo.success_above", self.success_above, -np.inf)
        checks.within("graph_gpo.omega", self.omega, 0.0, 1.0)
        checks.within("graph_gpo.scale", self.scale, 0.0)
        checks.within("graph_gpo.episode_weight", self.episode_weight, 0.0)
        checks.within("graph_gpo.graph_weight", self.graph_weight, 0.0)
        checks.one_of("graph_gpo.ddof", self.ddof, (0, 1))
        checks.within("graph_gpo.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        whole = self.standardise(total, pool, batch, ddof=self.ddof, epsilon=self.epsilon)
        graph = self.merge(batch)
        success = total[graph.rows] > self.success_above
        d = graphs.distances(graph.source, graph.target, success, graph.states)
        left = graphs.after(d, graph.target, np.where(success, 0.0, np.inf))
        worth, reached = nearness(
            left, d[graph.source], graph.region, omega=self.omega, scale=self.scale
        )
        step = baselines.standardise(
            worth, merged.visits(graph), ddof=self.ddof, epsilon=self.epsilon
        )
        parts = {
            "episode": self.episode_weight * whole,
            "graph": self.graph_weight * graph.spread(step, len(batch)),
        }
        return turn_credit(
            batch,
            parts["episode"] + parts["graph"],
            components=parts,
            stats={
                **baselines.pool_statistics(total, pool),
                **merged.statistics(graph),
                "success_share": float(np.mean(success)) if len(success) else 0.0,
                "visits_without_success": float(np.sum(~reached)),
            },
        )
