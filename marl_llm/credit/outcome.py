"""What the rules that shape an outcome advantage share: GRPO's number, and a budget to spend.

The budget of an agent in an episode is its advantage at each of its sampled tokens. A rule that
keeps it moves credit between the turns, and neither adds any nor changes a sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.grouped import Grouped
from marl_llm.credit.segments import Array, Chains, sums


@dataclass(frozen=True, slots=True, kw_only=True)
class FromOutcome(Grouped):
    """Settings of the advantage that is shaped, which is GRPO's."""

    ddof: int = 1  # 1 = divide the squares by n - 1
    epsilon: float = 1e-6  # added to the standard deviation, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        checks.one_of(f"{self.card.name}.ddof", self.ddof, (0, 1))
        checks.within(f"{self.card.name}.epsilon", self.epsilon, 0.0)

    def outcome(
        self, reward: Array, batch: TurnBatch, agents: Chains
    ) -> tuple[Array, dict[str, float]]:
        """GRPO's advantage of each agent in its episode, the same at all its turns.

        Args:
            reward: what the agent is paid for, [N].
            batch: N turns.
            agents: its chains of (episode, agent).

        Returns:
            A, [N]; and counts of its cells.
        """
        total = returns.totals(reward, agents)
        pool = self.pool(batch, agents)
        compared = baselines.compare(total, pool, ddof=self.ddof, epsilon=self.epsilon)
        advantage = self.settle(compared.scaled, total / (1.0 + self.epsilon), pool, batch)
        return advantage, compared.statistics


def budgets(batch: TurnBatch, agents: Chains, known: Array) -> baselines.Pool:
    """The turns of each agent in each episode as a cell in which every sampled token counts.

    Args:
        batch: N turns.
        agents: its chains of (episode, agent).
        known: turns that count, [N] bool; the others keep what they have.
    """
    weight = np.where(known, batch.lengths, 0).astype(np.float64)
    return baselines.Pool(agents.of, weight, sums(weight, agents.of, agents.count))


def spend(u: Array, counted: baselines.Pool) -> Array:
    """Shares as factors whose mean over the tokens of a budget is 1.

        w = u / (Σ_j n_j u_j / Σ_j n_j)

    Args:
        u: share of each *token* of a turn, at least 0, [N].
        counted: the budgets, n in them.

    Returns:
        w, [N]. 1 where a turn does not count, where its tokens share equally, and where all shares
        of the budget are 0.
    """
    middle = baselines.mean(u, counted)[counted.cell]
    some = (counted.weight > 0) & (middle > 0)
    return np.divide(u, middle, out=np.ones(len(u)), where=some)
