"""Truths: small worlds in which the credit of every turn is known exactly.

    process.py         a world as tables, and its exact values
    play.py            playing it: many episodes, the same luck again, all possible episodes
    sample.py          the turns of episodes as a `TurnBatch`, with their exact advantages
    ideal.py           signals as an ideal annotator would attach them, and then with errors
    counterfactual.py  signals of replays
    bifurcation.py     turns of which few matter, in closed form
    tasks.py           traps: a late lock, a hidden state, a stop, a dummy agent
    turnover.py        teams whose members are replaced
    delegation.py      planners that call others
    coalitions.py      Shapley values of agents

    truth = TRUTHS["and"]
    sample = truth.sample(rng)
    batch = annotate(sample, rng)              # what an estimator may read
    sample.advantage                           # what it should have said, [N]

Nothing here is learned, and nothing is downloaded. A game of one's own becomes a truth by a rule
for `process.expand`, one `Decision` per state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from marl_llm.credit.truth import tasks
from marl_llm.credit.truth.bifurcation import (
    all_good,
    any_good,
    at_least,
    bifurcations,
    even_bad,
    weighted,
)
from marl_llm.credit.truth.delegation import needle_pool, two_level
from marl_llm.credit.truth.process import Process
from marl_llm.credit.truth.sample import Look
from marl_llm.credit.truth.turnover import open_team


@dataclass(frozen=True, slots=True)
class Truth:
    """A world to compare estimators in."""

    what: str  # in one line
    process: Callable[[], Process]
    look: Look = field(default_factory=Look)


TRUTHS: dict[str, Truth] = {
    "and": Truth("two of eight turns matter, both must be good", lambda: bifurcations(all_good)),
    "or": Truth("two of eight turns matter, one good is enough", lambda: bifurcations(any_good)),
    "add": Truth(
        "two of eight turns add .75 and .25", lambda: bifurcations(weighted((0.75, 0.25)))
    ),
    "noisy": Truth(
        "as and, a fifth of the outcomes turned round", lambda: bifurcations(all_good, flip=0.2)
    ),
    "unique": Truth(
        "as and, nine of ten states seen once only",
        lambda: bifurcations(all_good),
        Look(unique=0.9),
    ),
    "long": Truth(
        "four of 24 turns matter, two must be good",
        lambda: bifurcations(at_least(2), turns=24, at=(3, 9, 15, 20)),
    ),
    "team": Truth("planner, executor and an agent that only talks", tasks.dummy_agent),
    "turnover": Truth("two workers; one may be replaced, which costs", lambda: open_team(cost=1.0)),
    "schedule": Truth(
        "as turnover, one schedule of events for each group",
        lambda: open_team(cost=1.0),
        Look(shared_chance=True),
    ),
    "delegation": Truth("a planner calls one to three searchers", needle_pool),
    "two_level": Truth("a planner switches machines, an executor pulls", two_level),
    "parity": Truth("an even number of bad choices", lambda: bifurcations(even_bad)),
    "redundant": Truth("two turns buy the same evidence", tasks.redundant),
    "coupled": Truth("three agents, each alone and all together", tasks.coupled),
    "key_lock": Truth("a choice that pays five turns later", tasks.key_lock),
    "alias": Truth("what matters is in no text", tasks.alias),
    "stopping": Truth("the policy decides when to stop", tasks.stopping),
}
