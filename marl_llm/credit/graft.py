"""GRAFT: temporal differences of the values of merged states; and their Monte-Carlo form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, graphs, merged
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.merged import Merged
from marl_llm.credit.segments import scan_back


@dataclass(frozen=True, slots=True, kw_only=True)
class GRAFT(Merged):
    """One-step advantages on the graph of a group's merged rollouts.

        V(u) = mean over the turns (u → v) at state u of r + γ · V(v)       for all states at once
        A = r + γ · V(v) - V(u),   scale: A / (std of A at state u + ε)

    A turn is paid for what the state it led to is worth, whichever episodes found that out; over
    the turns at one state the credit adds up to 0. r is what was earned on the way from the turn to
    the next one; on the last way it counts as the worth of the end, γ · r (`sink: discounted`, the
    sinks of the paper, worth 0 or 1), or as it is (`plain`). V is found by sweeps until no value
    of a graph moves by more than `tolerance` of its largest reward.

    A state visited once has A = 0, so that where states never repeat nothing is left: watch
    "singleton_share", or set `fallback: trajectory` for the agent's return against the mean of its
    cell (divided by its std, if `scale`).

    The paper's Graph-GAE adds the mean errors of the next steps, (γλ)^k each. At the fixed point
    above the mean error of every state is 0, so that with frequencies as weights it adds nothing;
    there is no setting for it.

    Source: Yao et al., Back to the definition (GRAFT), arXiv 2609.28963.
    """

    card: ClassVar[Card] = Card(
        name="graft",
        title="GRAFT",
        source="arXiv 2609.28963",
        evidence="paper",
        granularity="turn",
        methodology="temporal difference",
        breaks=frozenset({"shift"}),
    )

    gamma: float  # discount per edge
    scale: bool = True  # divide by the standard deviation at the state
    ddof: int = 1  # of that
    epsilon: float  # added to that
    sink: Literal["discounted", "plain"] = "discounted"  # what is earned at the end
    tolerance: float = 1e-10  # of V, as a share of the largest reward; the paper has 1e-8

    def __post_init__(self) -> None:
        Merged.__post_init__(self)
        checks.within("graft.gamma", self.gamma, 0.0, 1.0)
        checks.one_of("graft.ddof", self.ddof, (0, 1))
        checks.within("graft.epsilon", self.epsilon, 0.0)
        checks.one_of("graft.sink", self.sink, ("discounted", "plain"))
        checks.within("graft.tolerance", self.tolerance, 1e-14)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        graph = self.merge(batch)
        reward = graph.reward
        if self.sink == "discounted":
            reward = np.where(graph.target == graphs.END, self.gamma * reward, reward)
        value, open_regions = graphs.bellman(
            graph.source,
            graph.target,
            reward,
            graph.region,
            graph.states,
            gamma=self.gamma,
            tolerance=self.tolerance,
        )
        ahead = reward + self.gamma * graphs.after(value, graph.target)
        # Centring is one more sweep: the sum over a state is 0 however far the others got.
        here = merged.visits(graph)
        difference = step = baselines.centre(ahead, here)
        if self.scale:
            step = baselines.standardise(ahead, here, ddof=self.ddof, epsilon=self.epsilon)
        few = baselines.alone(here)
        n = len(batch)
        parts = {
            "difference": graph.spread(difference, n),
            "scaling": graph.spread(step - difference, n),
            "fallback": self.stand_in(
                batch, graph, few, ddof=self.ddof, epsilon=self.epsilon if self.scale else None
            ),
        }
        return turn_credit(
            batch,
            graph.spread(step, n) + parts["fallback"],
            components=parts,
            stats={
                **merged.statistics(graph),
                "open_regions": float(open_regions.sum()),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTDMCReading(Merged):
    """Temporal differences between the mean returns of merged states.

        V(u) = mean of G over the turns at state u,   G_k = r_k + γ · G_{k+1}
        A_k = r_k + γ · V(s_{k+1}) - V(s_k),   V = 0 at the end

    No equation is solved: what a state was worth is what came after it, so that two states with the
    same ways ahead can be worth unlike amounts. With γ = 1 the credit of an episode adds up to its
    return minus V of its first state, if none of its states was visited only once. Such a state's V
    is the turn's own return, which the difference would hold against the turn: it gets 0 instead,
    or (`fallback: trajectory`) the agent's return against the mean of its cell. Watch
    "singleton_share".

    Source: our reading of graph temporal differences (GRAFT, arXiv 2609.28963), with the state
    values of RTMC, arXiv 2604.11037.
    """

    card: ClassVar[Card] = Card(
        name="graph_td_mc_reading",
        title="Graph TD with mean returns",
        source="our reading of arXiv 2609.28963, 2604.11037",
        evidence="reading",
        granularity="turn",
        methodology="temporal difference",
    )

    gamma: float = 1.0  # discount per edge

    def __post_init__(self) -> None:
        Merged.__post_init__(self)
        checks.within("graph_td_mc_reading.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        graph = self.merge(batch)
        here = merged.visits(graph)
        value = baselines.mean(scan_back(graph.reward, self.gamma, graph.links), here)
        ahead = graph.reward + self.gamma * graphs.after(value, graph.target)
        few = baselines.alone(here)
        step = np.where(few, 0.0, ahead - value[graph.source])
        parts = {
            "difference": graph.spread(step, len(batch)),
            "fallback": self.stand_in(batch, graph, few),
        }
        return turn_credit(
            batch,
            parts["difference"] + parts["fallback"],
            components=parts,
            stats=merged.statistics(graph),
        )
