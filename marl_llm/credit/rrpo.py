"""RRPO and SRPO: fresh episodes and replays of one failure, each against its own kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, ledger, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.grouped import Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class RRPO(Grouped):
    """Random-reset policy optimisation: suffixes of a failed episode are a group of their own.

        A = (R - mean_cell R) / std_cell R;   0 where std < floor, 0 and weight 0 in the prefix

    R [N] is the whole return of the turn's agent in its episode. Half of a group's episodes are
    fresh; the others were forked from one that failed, at a random turn. They start further on, so
    their returns say nothing about the fresh ones: the key "suffix_of" [N], the number of the reset
    group or -1 = fresh, keeps the two apart. The failed episode itself counts among the fresh ones.
    The turns that a fork copied have 1 in the signal "replayed" [N]; they were sampled once already
    and are not trained again. Without any fork this is GRPO.

    Source: Samanta et al., arXiv 2605.25507, and its public code. The authors later clipped the
    loss, since the plain one collapsed.
    """

    card: ClassVar[Card] = Card(
        name="rrpo",
        title="RRPO",
        source="arXiv 2605.25507",
        evidence="code",
        granularity="segment",
        methodology="monte carlo",
        needs=frozenset({"suffix_of", "replayed"}),
        cost="half of the episodes are replayed from a turn on",
    )

    by: tuple[str, ...] = ("group", "agent", "suffix_of")  # equal values make a cell
    ddof: int = 0  # 0 = divide the squares by n
    floor: float = 1e-8  # a smaller standard deviation is none, in units of reward

    def __post_init__(self) -> None:
        Grouped.__post_init__(self)
        name = self.card.name
        checks.one_of(f"{name}.ddof", self.ddof, (0, 1))
        checks.within(f"{name}.floor", self.floor, 0.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        total = returns.totals(batch.reward, agents)
        pool = self.pool(batch, agents)
        centred, spread = baselines.centre(total, pool), baselines.std(total, pool, self.ddof)
        spread = spread[pool.cell]
        scaled = np.zeros(len(batch))
        np.divide(centred, spread, out=scaled, where=(spread > 0) & (spread >= self.floor))
        replayed = batch.signal("replayed") > 0
        advantage = np.where(replayed, 0.0, self.settle(scaled, total, pool, batch))
        weight = ((batch.lengths > 0) & ~replayed).astype(np.float64)
        copied = float(np.sum((batch.lengths > 0) & replayed))
        return turn_credit(
            batch,
            advantage,
            components=ledger(total, centred, advantage),
            stats={**baselines.pool_statistics(total, pool), "replayed_turns": copied},
            weight=weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SRPO(RRPO):
    """Self-localised reset: RRPO whose forks start where a judge saw the first mistake.

        A = (R - mean_cell R) / std_cell R;   0 where std < floor, 0 and weight 0 in the prefix

    The credit is that of `rrpo`, and reads the same "suffix_of" and "replayed"; only the place of
    the reset is not drawn at random. Where the judge fails, it is the first turn.

    Source: Samanta et al., arXiv 2605.25507, and its public code.
    """

    card: ClassVar[Card] = Card(
        name="srpo",
        title="SRPO",
        source="arXiv 2605.25507",
        evidence="code",
        granularity="segment",
        methodology="monte carlo",
        needs=frozenset({"suffix_of", "replayed"}),
        cost="half of the episodes are replayed from a turn on; 1 judge call per group",
    )
