"""The card of an estimator: what it is, where it comes from, what it costs, and what it promises.

Lists, documentation, the bench and the tests that all estimators must pass read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_llm.errors import ConfigError

Level = Literal["turn", "token"]
Evidence = Literal["paper", "code", "notes", "reading"]
Granularity = Literal["response", "agent", "turn", "segment", "token"]
Methodology = Literal[
    "monte carlo",  # returns of sampled play
    "temporal difference",  # differences of values, learned or counted
    "counterfactual",  # what would have come without, or of another action
    "game-theoretic",  # shares of a coalition's worth
    "information",  # what a probe of the answer, of certainty or of entropy says
    "judge",  # labels of another model
    "redistribution",  # a fitted or fixed split of one return
]
Law = Literal[
    "zero",  # no rewards, and signals that say nothing, give exactly 0
    "groups",  # what another group earns changes nothing here
    "shift",  # a constant for every agent's episode changes nothing
    "order",  # the rows may stand in any order
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of an estimator. One per class, as the class variable `card`."""

    name: str  # of its settings in messages; the YAML of its defaults has it too
    title: str  # as people call it
    source: str  # the paper or the code, or "our reading of ..."
    evidence: Evidence  # paper and code: read there; notes: second hand; reading: our own
    granularity: Granularity  # the smallest unit that gets a number of its own
    methodology: Methodology
    level: Level = "turn"  # what `Credit.advantage` runs over
    needs: frozenset[str] = frozenset()  # signals, see `signals.py`
    resamples: bool = False  # plays on from turns, through `Given.resample`
    draws: bool = False  # uses `Given.rng`
    remembers: bool = False  # `Given.state` comes in, `Credit.state` goes out
    cost: str = ""  # beyond the rollouts, per episode of T turns: "T judge calls"
    breaks: frozenset[Law] = frozenset()  # laws that it does not keep as its YAMLs have it

    def __post_init__(self) -> None:
        if self.evidence == "reading" and "reading" not in self.source:
            raise ConfigError(f"{self.name}: the source of a reading says so: 'our reading of ...'")
