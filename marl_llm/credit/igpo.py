"""Information gain: what a turn added to the policy's probability of the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.credit import baselines, checks, returns
from marl_llm.credit.batch import Credit, TurnBatch, turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.labels import label, labelled
from marl_llm.credit.outcome import FromOutcome
from marl_llm.credit.segments import Array, last_of


def gold_gain(batch: TurnBatch, *, log: bool = False) -> Array:
    """Information gain of each turn, from the signals "gold_before" and "gold_after".

        gain = p(after) - p(before),   p = exp(mean log-prob of the right answer's tokens)

    Args:
        batch: N turns.
        log: take log p instead of p.

    Returns:
        [N] float64, in [-1, 1] unless `log`; whatever stands where a label is missing.

    Raises:
        EpisodeError: a log-prob above 0.
    """
    before, after = (label(batch, name, -np.inf, 0.0) for name in ("gold_before", "gold_after"))
    return after - before if log else np.exp(after) - np.exp(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class IGPO(FromOutcome):
    """Information-gain policy optimisation.

        r_k = z(p_k - p_{k-1}) for all turns but the agent's last one with tokens,   r_T = z(R)
        A_k = r_k + γ · A_{k+1},   z(x) = (x - mean_cell) / (std_cell + ε)

    p is the policy's probability of the right answer, exp of the mean log-prob of its tokens;
    signals "gold_before" and "gold_after" [N], so that what others found out in between is not
    this agent's gain. R [N] is the whole return. The gains of all turns of a cell are one pool and
    the returns another, each agent counted once; both stds are the population's. A turn without
    gain stays in the pool and stays a turn. A missing probe leaves the pool and gives r = 0.

    The gains sum to p_{T-1} - p_0. Their return, unlike the gain itself (`info_gain_reading`), adds
    a bonus for the whole episode to its early turns; it is no shaping that leaves the best policy
    unchanged.

    Source: arXiv 2510.14967, as the code of another paper has it (dl-m9/SIOP), which leaves turns
    without gain out of the pool. The authors' own code (GuoqingWang1/IGPO) subtracts the mean of
    returns at each token column, which mixes turns of unlike numbers, and divides by nothing.
    """

    card: ClassVar[Card] = Card(
        name="igpo",
        title="IGPO",
        source="arXiv 2510.14967",
        evidence="code",
        granularity="turn",
        methodology="information",
        needs=frozenset({"gold_before", "gold_after"}),
        cost="T + 1 forward passes of the policy, and gold answers",
    )

    ddof: int = 0  # 0 = divide the squares by n
    gain: Literal["probability", "log_probability"] = "probability"  # what a gain is a gain of
    gamma: float = 1.0  # γ, discount per turn of the agent

    def __post_init__(self) -> None:
        FromOutcome.__post_init__(self)
        checks.one_of("igpo.gain", self.gain, ("probability", "log_probability"))
        checks.within("igpo.gamma", self.gamma, 0.0, 1.0)

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        agents = batch.agents()
        last = last_of(batch.lengths > 0, agents)
        known, missing = labelled(batch, "gold_before", "gold_after")
        turns = baselines.pool(batch, agents, self.by, "turn", mix_roles=self.mix_roles)
        gains = baselines.counting(turns, known & ~last)
        gain = baselines.standardise(
            gold_gain(batch, log=self.gain == "log_probability"),
            gains,
            ddof=self.ddof,
            epsilon=self.epsilon,
        )
        gain = np.where(gains.weight > 0, gain, 0.0)
        outcome, stats = self.outcome(batch.reward, batch, agents)
        parts = {
            "gain": returns.to_go(gain, agents, self.gamma),
            "outcome": returns.to_go(np.where(last, outcome, 0.0), agents, self.gamma),
        }
        return turn_credit(
            batch, parts["gain"] + parts["outcome"], components=parts, stats={**stats, **missing}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoGain:
    """The information gain of a turn and nothing else.

        A_k = p_k - p_{k-1}

    p is the policy's probability of the right answer, exp of the mean log-prob of its tokens;
    signals "gold_before" and "gold_after" [N]. No reward is read, nothing is compared, and nothing
    is summed up, so a turn that adds nothing gets exactly 0, in a won episode too. A missing probe
    gives 0. Along an agent that is alone the gains sum to p_T - p_0.

    Source: our reading of IGPO, arXiv 2510.14967, which pools, sums and adds the outcome.
    """

    card: ClassVar[Card] = Card(
        name="info_gain_reading",
        title="Information gain alone",
        source="our reading of arXiv 2510.14967",
        evidence="reading",
        granularity="turn",
        methodology="information",
        needs=frozenset({"gold_before", "gold_after"}),
        cost="T + 1 forward passes of the policy, and gold answers",
    )

    def estimate(self, batch: TurnBatch, given: Given = NOTHING) -> Credit:
        """Credit for every turn of the batch."""
        known, missing = labelled(batch, "gold_before", "gold_after")
        gain = gold_gain(batch)
        gain[~known] = 0.0
        return turn_credit(batch, gain, components={"gain": gain}, stats=missing)
