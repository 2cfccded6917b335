"""Deadlines: an episode's time, inherited by the agents of it and divided down the tree of calls.

An episode that may take so many seconds is over by then. Who is called by nobody has all of its
time. An agent that is called has half of the time that its caller has left at that moment; so each
level leaves its caller the other half, to read the report and to go on. Calls made in one action
work side by side and have the same half; calls made later have half of what is then left. So no
agent's deadline is after its caller's.

A reply after its deadline is a fault of its agent (`Outcome.TIME`). In a delegation that ends the
call and all that is open below it, and the caller reads that there is no report.

All times are seconds on one clock that only goes forward. The rule is our reading: there is no
paper that we follow.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

SHARE = 0.5  # of its caller's time that a called agent has


def of_call(now: float, caller: float) -> float:
    """The deadline of an agent that is called: now + `SHARE` · max(caller - now, 0).

    Args:
        now: when it is called.
        caller: the deadline of whoever calls it.

    Returns:
        Never after the caller's, unless that has passed: then it is now.
    """
    return now + SHARE * max(caller - now, 0.0)


def of_agent(
    now: float,
    call: int | None,
    known: MutableMapping[int, float],
    end: float,
    caller: Callable[[int], int | None],
) -> float:
    """The deadline of an agent; of one that is asked for the first time, by `of_call`.

    Args:
        now: when it is asked.
        call: the turn that called it, None = nobody did.
        known: deadlines of calls so far, by the turn that made them; new ones are added.
        end: of the episode.
        caller: the turn that called the agent of a turn.
    """
    if call is None:
        return end
    if call not in known:
        known[call] = of_call(now, of_agent(now, caller(call), known, end, caller))
    return known[call]


def of_reply(now: float, turn_seconds: float | None, agent: float | None) -> float | None:
    """The deadline of a reply: the earlier of what a turn has and what its agent has.

    Args:
        now: when the agent is asked.
        turn_seconds: that one reply may take, None = any number.
        agent: the agent's own deadline, None = none.
    """
    turn = None if turn_seconds is None else now + turn_seconds
    if turn is None or agent is None:
        return agent if turn is None else turn
    return min(turn, agent)
