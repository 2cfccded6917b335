"""Calls: who asked whom for what in an episode, what came back, and the metrics of it.

Read from the episode alone: a turn's `parent` is the turn that called its agent. An episode is one
of a delegation if somebody was called, or could have been and was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from marl_llm.types import Episode, Outcome


@dataclass(frozen=True, slots=True)
class Call:
    """One agent's work for another."""

    agent: str
    caller: str
    turn: int  # that made the call
    turns: tuple[int, ...]  # of the called agent itself, in playing order
    asked: str  # the action that made the call
    last: str | None  # the called agent's last action, its report if it made one; None = a fault
    outcome: Outcome | None  # WIN = its report was right
    pay: float  # its strategic return

    @property
    def right(self) -> bool:
        """Whether it reported, and rightly."""
        return self.outcome is Outcome.WIN


def is_delegation(episode: Episode) -> bool:
    """Whether somebody was called, or could have been."""
    called = any(turn.parent is not None for turn in episode.turns)
    return called or Outcome.ABSENT in episode.outcomes.values()


def calls_of(episode: Episode) -> list[Call]:
    """The calls of an episode whose agents had a turn, in the order of their first turns."""
    turns: dict[str, list[int]] = {}
    for index, turn in enumerate(episode.turns):
        if turn.parent is not None:
            turns.setdefault(turn.observation.agent, []).append(index)
    return [_call(episode, agent, tuple(own)) for agent, own in turns.items()]


def call_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """How planners delegate: `rollout/<role of the planner>/<quantity>`; empty without delegations.

        calls             sub-agents called, at any depth, mean per episode
        delegation_rate   share of episodes in which the planner itself called somebody
        reports_right     share of the calls whose report was right
        same_task_share   share of the calls that were made by the most frequent action

    The last two need a call; the last also needs at least two different questions, since one
    question may well need one thing only. The planner is who has the first turn.

    Args:
        episodes: of one update.
    """
    by_role: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.turns and is_delegation(episode):
            by_role.setdefault(episode.turns[0].observation.role, []).append(episode)
    return {
        f"rollout/{role}/{quantity}": value
        for role, played in by_role.items()
        for quantity, value in _of_planner(played).items()
    }


def _of_planner(episodes: Sequence[Episode]) -> dict[str, float]:
    calls = [calls_of(episode) for episode in episodes]
    planners = [episode.turns[0].observation.agent for episode in episodes]
    every = [call for made in calls for call in made]
    own = [any(c.caller == who for c in made) for who, made in zip(planners, calls, strict=True)]
    found = {"calls": len(every) / len(episodes), "delegation_rate": sum(own) / len(episodes)}
    if every:
        found["reports_right"] = sum(call.right for call in every) / len(every)
        if len({episode.turns[0].observation.text for episode in episodes}) > 1:
            (_, most), *_ = Counter(call.asked for call in every).most_common(1)
            found["same_task_share"] = most / len(every)
    return found


def _call(episode: Episode, agent: str, turns: tuple[int, ...]) -> Call:
    made_in = episode.turns[turns[0]].parent
    assert made_in is not None, "an agent that was called has a parent in all its turns"
    caller, last = episode.turns[made_in], episode.turns[turns[-1]]
    return Call(
        agent=agent,
        caller=caller.observation.agent,
        turn=made_in,
        turns=turns,
        asked=caller.action or "",
        last=last.action if last.fault is None else None,
        outcome=episode.outcomes.get(agent),
        pay=episode.returns.get(agent, 0.0),
    )
