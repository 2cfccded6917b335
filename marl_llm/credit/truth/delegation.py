"""Delegation: planners that call others, with the exact worth of every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from marl_llm.credit.truth.process import Choice, Decision, Process, expand


def needle_pool(
    *,
    boxes: int = 3,
    needed: Literal["all", "any", "sum"] = "sum",
    calls: Sequence[float] = (0.2, 0.3, 0.5),
    p: float = 0.6,
    skill: tuple[float, float] = (0.3, 0.9),
    price: float = 0.05,
) -> Process:
    """A planner sends searchers to boxes, and answers from what they found.

    It first chooses how many boxes to have opened, at a price each. Every searcher works carelessly
    or carefully, and finds its box's needle with the probability of that. The planner's answer adds
    nothing. The return is what was found, as a share of all boxes ("sum"), or 1 if every opened box
    held it ("all") or one of them did ("any"), less the price of the calls.

    Args:
        boxes: how many there are.
        needed: what makes a success.
        calls: probability of opening 1, 2, ... boxes.
        p: probability of careful work.
        skill: probability of finding the needle, careless and careful.
        price: of each call.
    """
    agents = {"planner": "planner", **{f"searcher_{k}": "searcher" for k in range(boxes)}}

    def outcome(count: int, found: int) -> float:
        won = {"sum": found / boxes, "all": float(found == count), "any": float(found > 0)}[needed]
        return won - price * count

    def decide(state: tuple[int, int, int]) -> Decision:
        count, call, found = state
        if count == 0:
            opened = tuple(
                Choice(chance, ((1.0, 0.0, (k, 0, 0)),)) for k, chance in enumerate(calls, start=1)
            )
            return Decision(agent="planner", choices=opened)
        if call == count:
            answer = ((1.0, outcome(count, found), None),)
            return Decision(agent="planner", choices=(Choice(0.5, answer), Choice(0.5, answer)))

        def work(finds: float) -> tuple[tuple[float, float, object], ...]:
            after = (count, call + 1, found + 1), (count, call + 1, found)
            return ((finds, 0.0, after[0]), (1 - finds, 0.0, after[1]))

        return Decision(
            agent=f"searcher_{call}",
            choices=(Choice(1 - p, work(skill[0])), Choice(p, work(skill[1]))),
            default=(1.0, 0.0),
        )

    return expand(
        "needle_pool",
        {(0, 0, 0): 1.0},
        decide,  # type: ignore[arg-type]
        agents=agents,
        calls={f"searcher_{k}": "planner" for k in range(boxes)},
    )


def two_level(
    *,
    segments: int = 4,
    pulls: int = 2,
    switch: float = 0.4,
    p: float = 0.6,
    good: float = 0.9,
    bad: float = 0.1,
) -> Process:
    """A planner keeps a machine or switches, an executor pulls its arms; the best machine changes.

    Machine 0 pays in the first half of the segments and machine 1 in the second, so that the best
    planner switches once, half-way (or at the start, if it begins with the wrong one). A pull of
    the right arm pays 1 with probability `good` on the machine that pays and `bad` on the other,
    a pull of the wrong arm half of that.

    Args:
        segments: turns of the planner.
        pulls: turns of the executor in each.
        switch: probability of a switch.
        p: probability of the right arm.
        good: of the machine that pays.
        bad: of the other one.
    """

    def decide(state: tuple[int, int, int]) -> Decision:
        segment, pull, machine = state
        if pull == 0:
            each = tuple(((1.0, 0.0, (segment, 1, m)),) for m in (machine, 1 - machine))
            return Decision(
                agent="planner", choices=(Choice(1 - switch, each[0]), Choice(switch, each[1]))
            )
        pays = good if machine == (2 * segment >= segments) else bad
        after: object = (segment, pull + 1, machine)
        if pull == pulls:
            after = (segment + 1, 0, machine) if segment + 1 < segments else None

        def arm(chance: float) -> tuple[tuple[float, float, object], ...]:
            return ((chance, 1.0, after), (1 - chance, 0.0, after))

        return Decision(
            agent="executor", choices=(Choice(1 - p, arm(pays / 2)), Choice(p, arm(pays)))
        )

    return expand(
        "two_level",
        {(0, 0, 0): 0.5, (0, 0, 1): 0.5},
        decide,  # type: ignore[arg-type]
        agents={"planner": "planner", "executor": "executor"},
        calls={"executor": "planner"},
    )
