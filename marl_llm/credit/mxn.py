"""M x N: designs against designs of the problem, executions against executions of the design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.segments import Array, sums

Executors = Literal["auto", "design", "question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MxN:
    """Nested groups of M designs with N executions each.

        A_design  = (D - mean over the designs of the problem) / (std + ε),   D = mean R of a design
        A_execute = (R - mean over the executions of the design) / (std + ε)

    R [N] is the whole return of the turn's agent. A design is played out by several episodes, which
    share the signal "design" [N]. Agents that nobody called (depth 0) are designers: D is the mean
    of their returns over the episodes of the design, it counts once, and the copies of the design
    in these episodes share the weight of one. Agents that were called are executors; where a design
    has no more than `few` executions, they are compared over all designs of the problem instead.
    So a sub-agent is compared with others at the very same task, not at other tasks.

    Source: MetaAgent-X, arXiv 2605.14212, and pettingllms-ai/PettingLLMs, where `few` compares with
    the number of executions that is set, not with what there is.
    """

    card: ClassVar[Card] = Card(
        name="mxn",
        title="M x N",
        source="arXiv 2605.14212",
        evidence="code",
        granularity="agent",
        methodology="monte carlo",
        needs=frozenset({"design"}),
        cost="M designs with N executions each",
    )

    by: tuple[str, ...] = ("group", "role")  # a problem; its designs part the cells further
    executors: Executors = "auto"  # compared within a "design", a "question", or as `few` says
    few: int = 2  # executions of a design that are too few to compare, under "auto"
    scale: bool = True  # divide by the standard deviation
    ddof: int = 1  # of that
    epsilon: float = 1e-6  # added to it, in units of reward
    mix_roles: bool = False  # may a cell hold several roles?

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", checks.key_names("mxn.by", self.by))
        checks.one_of("mxn.executors", self.executors, ("auto", "design", "question"))
        checks.whole("mxn.few", self.few, 0)
        checks.one_of("mxn.ddof", self.ddof, (0, 1))
        checks.within("mxn.epsilon", self.epsilon, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        designer, sampled = batch.depth == 0, batch.lengths > 0

        def pool(unit: baselines.Unit, *more: str) -> baselines.Pool:
            by = (*self.by, "depth", *more)
            return baselines.pool(batch, agents, by, unit, mix_roles=self.mix_roles)

        problem, design = pool("agent"), pool("agent", "design")
        copies = np.maximum(design.count, 1.0)[design.cell]
        once = np.where(designer, design.weight / copies, 0.0)
        designs = baselines.Pool(
            problem.cell, once, np.rint(sums(once, problem.cell, len(problem.count)))
        )
        value = np.where(designer, baselines.mean(total, design)[design.cell], total)
        wide = self._wide(pool("episode", "design").count[design.cell])
        centred, advantage = (
            np.where(
                designer,
                against(value, designs),
                np.where(wide, against(total, problem), against(total, design)),
            )
            for against in (baselines.centre, self._relative)
        )
        executions = baselines.counting(design, ~designer)
        counts = {"design": (value, designs), "execution": (total, executions)}
        return turn_credit(
            batch,
            advantage,
            components=ledger(value, centred, advantage),
            stats={
                f"{what}_{name}": count
                for what, (x, pool) in counts.items()
                for name, count in baselines.pool_statistics(x, pool).items()
            }
            | {"fallbacks": float(np.sum(~designer & wide & sampled))},
            weight=np.where(designer, 1.0 / copies, 1.0) * sampled,
        )

    def _wide(self, executions: Array) -> Array:
        """Which rows are compared over all designs of the problem, [N] bool.

        Args:
            executions: of the row's design, [N].
        """
        if self.executors == "auto":
            return executions <= self.few
        return np.full(len(executions), self.executors == "question")

    def _relative(self, x: Array, counted: baselines.Pool) -> Array:
        """How far x is from the mean of its cell, in units of its spread if scaled."""
        if not self.scale:
            return baselines.centre(x, counted)
        return baselines.standardise(x, counted, ddof=self.ddof, epsilon=self.epsilon)
