"""`Delegation`: a task that an agent solves by calling others, and who called whom.

The agent at the top (the planner) is asked a question. In one action an agent may call any number
of sub-agents, which then work side by side, each on its own task, until all have reported; a
sub-agent may call others in turn, down to any depth. An agent sees its task, what its own tools
told it and what its own calls reported, and nothing else. Every call is a new agent, since nobody
revives: `searcher_0`, `searcher_1` and so on, in the order in which they are called.

A call ends when its agent reports, makes a fault, or has used up its turns. A fault ends that call
and no other: its caller reads that there is no report, and why. When an agent ends, its open calls
end with it.

A subclass states its facts in `__init__` and supplies

    question(rng, options)   set up the episode
    read(call, action)       what an action would do: an `Ask`, a `Use`, a `Report`; None = nothing
    use(call, step)          carry out a `Use` and note on the call what came of it
    right(call)              how right a report is, 0 to 1: the main answer, or a sub-task's
    told(call)               all that the agent of a call may know, in words
    rules(), instructions(role)

and, for players that need no model, `solve` (a best action), `guess` (an action that ends a call
at once, without knowing) and `wander` (any action that does not). A game with a `worth` (how right
an answer some of the reports alone allow) also has `call_values`, the exact credit of every call.
One with a `preserved` says of a call whether it asks for what its caller knew to be needed.

Tools may fail, by the rates of `faults.Faults`. An infra fault makes the episode void: it ends at
once, `void` says why, and what it paid counts for nothing. ``reset(options={"attempt": n})`` draws
other faults. A content fault is in `Use.fault`, for `use` to heed.

The pay is that of M-GRPO (arXiv 2511.13288): see `Pay`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.call_values import CallValue, call_values
from marl_llm.games.faults import INFRA, Fault, Faults
from marl_llm.games.outcomes import Scoring
from marl_llm.games.text_game import TextGame, View
from marl_llm.types import FORFEITS, Outcome


@dataclass(frozen=True, slots=True)
class Pay:
    """What the agents of a delegation get. Any fault, or an end without a report, pays nothing.

        planner     format + correct · (the answer is right)             - price · calls
        sub-agent   sub_format + sub_main · (the answer is right) + sub_own · (its report is right)

    The defaults are M-GRPO's (arXiv 2511.13288, equations 4 and 5), which has no price.
    """

    format: float = 0.1
    correct: float = 0.9
    sub_format: float = 0.1
    sub_main: float = 0.4
    sub_own: float = 0.5
    price: float = 0.0  # of each call, to the agent that makes it

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise GameError(f"pay.{name} must be a number of at least 0, got {value}")


@dataclass(frozen=True, slots=True)
class Ask:
    """Call sub-agents, all at once: (role, task) each."""

    calls: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Use:
    """Use a tool."""

    tool: str
    argument: str = ""
    fault: Fault | None = None  # of content, that this use meets


@dataclass(frozen=True, slots=True)
class Report:
    """End the call with this text; at the top it is the answer."""

    text: str


Step = Ask | Use | Report


@dataclass(slots=True, eq=False)
class Call:
    """One agent's work on one task."""

    agent: str
    role: str
    task: str
    path: tuple[int, ...] = ()  # (0, 2): the third call of the first call
    caller: Call | None = None
    turn: int | None = None  # the episode's turn that made the call
    turns: int = 0  # taken so far
    calls: list[Call] = field(default_factory=list)  # it made, in order
    notes: list[Any] = field(default_factory=list)  # what its tools told it: the game's own
    report: str | None = None
    ended: Outcome | None = None  # WIN once it has reported, right or wrong; else why not

    @property
    def open(self) -> bool:
        """Whether it goes on."""
        return self.ended is None

    @property
    def waits(self) -> bool:
        """Whether a call of its own is still open."""
        return any(call.open for call in self.calls)

    def tree(self) -> Iterator[Call]:
        """This call and all below it, callers first, in the order of their paths."""
        yield self
        for call in self.calls:
            yield from call.tree()


class Delegation(TextGame):
    """A task with calls. The first role is the planner's; it has one agent and is never called."""

    def __init__(
        self,
        *,
        name: str,
        seats: Mapping[str, int],
        turns: Mapping[str, int],
        pay: Pay | None = None,
        actions: Sequence[str] = (),
        list_legal: bool = True,
        faults: Faults | None = None,
    ):
        """Facts that hold for every episode.

        Args:
            name: of the game, also in records.
            seats: role -> how many agents of it an episode can have, the planner's first.
            turns: role -> turns that one call of it can have.
            pay: what they get.
            actions: names of all actions of all roles; empty = free text.
            list_legal: say in each observation which actions are legal.
            faults: how often tools fail; None = never.
        """
        planner = next(iter(seats))
        if seats[planner] != 1:
            raise GameError(f"{name} has one {planner}, who is called by nobody; got {seats}")
        for what, numbers in (("seats", seats), ("turns", turns)):
            if low := [role for role in seats if numbers.get(role, 0) < 1]:
                raise GameError(f"{what} of {low[0]} in {name} must be at least 1, got {numbers}")
        self.pay, self._seats, self._turns = pay or Pay(), dict(seats), dict(turns)
        self.faults = faults or Faults()
        self._void: str | None = None
        roles = {planner: planner}
        for role, count in list(seats.items())[1:]:
            roles |= {f"{role}_{number}": role for number in range(count)}
        pay_of = self.pay
        top, sub = pay_of.format + pay_of.correct, pay_of.sub_format + pay_of.sub_main
        super().__init__(
            name=name,
            actions=actions,
            natural_turns=sum(count * turns[role] for role, count in seats.items()),
            scoring=Scoring(
                len(roles),
                "mixed",
                "points",
                {
                    Outcome.WIN: (top, sub + pay_of.sub_own, pay_of.sub_format + pay_of.sub_own),
                    Outcome.LOSS: (pay_of.format, sub, pay_of.sub_format, 0.0),
                },
            ),
            list_legal=list_legal,
            roles=roles,
        )
        self.planner = planner

    # The task, supplied by a subclass.

    @abstractmethod
    def question(self, rng: np.random.Generator, options: Mapping[str, Any]) -> str:
        """Set up an episode and say the planner's task; `rng` is its only source of chance."""

    @abstractmethod
    def read(self, call: Call, action: str) -> Step | None:
        """What this action of a call's agent would do; None = it is none. Changes nothing."""

    @abstractmethod
    def use(self, call: Call, step: Use) -> None:
        """Carry out the use of a tool and note on the call what came of it."""

    @abstractmethod
    def right(self, call: Call) -> float:
        """How right the report of a call is, 0 to 1; only asked for when it has one."""

    @abstractmethod
    def told(self, call: Call) -> View:
        """All that the agent of a call may know."""

    def leave(self, call: Call) -> None:
        """What the end of a call changes in the world, before its report is judged: nothing."""

    def solve(self, call: Call, rng: np.random.Generator) -> str:
        """A best action for the agent of a call, who may know the truth."""
        raise GameError(f"{self.name} has no solver; give it a `solve`")

    def guess(self, call: Call, rng: np.random.Generator) -> str:
        """An action that ends the call at once, with a report that nobody has looked for."""
        raise GameError(f"{self.name} has no `guess`, which hasty players need")

    def wander(self, call: Call, rng: np.random.Generator) -> str:
        """Any action that does not end the call, likely or not to be of use."""
        raise GameError(f"{self.name} has no `wander`, which hasty players need")

    # What players and evaluations ask.

    def ends(self, call: Call, action: str) -> bool:
        """Whether an action ends the call."""
        return isinstance(self.read(call, action), Report)

    def call_of(self, agent: str) -> Call | None:
        """The call that an agent works on, or worked on; None = it was not called."""
        self.player(agent)  # refuses names that are none
        return self._calls.get(agent)

    def all_calls(self) -> list[Call]:
        """The planner's own and all below it, callers first."""
        return list(self._root.tree())

    def right_answer(self) -> float:
        """How right the planner's answer is, 0 without one."""
        return self._rightness(self._root)

    def found_right(self, agent: str) -> float:
        """How right the report of an agent was when its call ended, 0 without one."""
        return self._rights.get(agent, 0.0)

    def turns_left(self, call: Call) -> int:
        """Turns that the agent of a call can still have."""
        return self._turns[call.role] - call.turns

    def worth(self, kept: Set[int]) -> float:
        """How right an answer these calls' reports alone would have made possible, 0 to 1.

        Args:
            kept: numbers of calls below the planner in the order of `all_calls`, from 0. A call
                whose caller is left out counts for nothing.
        """
        raise GameError(f"{self.name} cannot say what calls are worth; give it a `worth`")

    @property
    def has_worth(self) -> bool:
        """Whether the game can say what calls are worth."""
        return type(self).worth is not Delegation.worth

    @property
    def has_preserved(self) -> bool:
        """Whether the game can say of calls what `preserved` says."""
        return type(self).preserved is not Delegation.preserved

    def preserved(self, call: Call) -> bool | None:
        """Whether what a call was asked keeps what its caller knew to be needed then.

        What the caller was told counts, true or not, so that a wrong report is not its fault. None
        = the game cannot say.
        """
        return None

    def call_values(self) -> dict[str, CallValue]:
        """The exact credit of every call below the planner, by its agent; see `call_values.py`."""
        calls = self.all_calls()[1:]
        values = call_values(self.worth, len(calls))
        return {call.agent: value for call, value in zip(calls, values, strict=True)}

    def void(self) -> str | None:
        """Which tool failed and how, if that voided the episode; None = it counts."""
        return self._void

    def spoil(self, why: str) -> None:
        """End the episode as void: something failed, and no agent is to blame."""
        self._void = why
        self._close(self._root, Outcome.TRUNCATED)

    # The hooks of TextGame.

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """A planner with a question, and nobody called."""
        self._attempt, self._void = int(options.get("attempt", 0)), None
        task = self.question(rng, options)
        self._root = Call(self.planner, self.planner, task)
        self._calls = {self.planner: self._root}
        self._rights: dict[str, float] = {}

    def movers(self) -> tuple[str, ...]:
        """Who has an open call and waits for none of its own, in the order of the paths."""
        return tuple(call.agent for call in self._root.tree() if call.open and not call.waits)

    def legal(self, agent: str) -> tuple[str, ...]:
        """The listed actions that would do something now."""
        return tuple(action for action in self.actions if self.accepts(agent, action))

    def accepts(self, agent: str, action: str) -> bool:
        """Whether an action does something, and the calls that it makes can be had."""
        call = self._calls.get(agent)
        if call is None or not call.open:
            return False
        step = self.read(call, action)
        return step is not None and (not isinstance(step, Ask) or self.can_call(step))

    def can_call(self, step: Ask) -> bool:
        """Whether there are enough agents left for these calls."""
        wanted: dict[str, int] = {}
        for role, _ in step.calls:
            wanted[role] = wanted.get(role, 0) + 1
        return bool(wanted) and all(
            role in self._seats and role != self.planner and count <= self.free(role)
            for role, count in wanted.items()
        )

    def free(self, role: str) -> int:
        """How many more agents of a role can be called."""
        taken = sum(call.role == role for call in self._calls.values())
        return self._seats[role] - taken

    def play(self, moves: Mapping[str, str]) -> None:
        """Each agent's step, in the order of the paths; then calls end that have run out."""
        order = {agent: turn for turn, (agent, *_) in enumerate(self._log)}  # the latest of each
        for call in [each for each in self._root.tree() if each.agent in moves]:
            call.turns += 1
            fault = _FAULTS.get(moves[call.agent])
            step = None if fault else self.read(call, moves[call.agent])
            if fault is not None:
                self._close(call, fault)
            elif isinstance(step, Report):
                call.report = step.text
                self._close(call, Outcome.WIN)
            elif isinstance(step, Ask):
                for role, task in step.calls:
                    if self.free(role):  # others of this round may have called the last one
                        self._call(call, role, task, order[call.agent])
            elif isinstance(step, Use):
                self._use(call, step)
            if self._void is not None:
                return
            self._run_out(call)

    def stand_in(self, agent: str, fault: Outcome) -> str:
        """A fault ends the call of its agent and nothing else."""
        return f"({fault.value})"

    def caller(self, agent: str) -> int | None:
        """The turn that called this agent."""
        call = self._calls.get(agent)
        return None if call is None else call.turn

    def earnings(self) -> Sequence[float]:
        """What everybody has earned: its own part when a call ends, the main part at the end."""
        return [self._earned_by(agent) for agent in self.possible_agents]

    def result(self, agent: str) -> Outcome:
        """Whether its report was right, the fault that it made, or that it was never called.

        All who were called are cut short by a void episode.
        """
        call = self._calls.get(agent)
        if call is None:
            return Outcome.ABSENT
        if self._void is not None:
            return Outcome.TRUNCATED
        if call.ended in FORFEITS:
            return call.ended
        return Outcome.WIN if self._rightness(call) >= 1.0 else Outcome.LOSS

    def view(self, agent: str) -> View:
        """What the agent of a call may know; others know nothing."""
        call = self._calls.get(agent)
        if call is None:
            return View("You have not been called.", "", "")
        seen = self.told(call)
        return View(seen.text, seen.brief, f"{call.role} {seen.key}")

    # Inside.

    def _finish(self, before: Sequence[float]) -> None:
        """A fault is part of play here, so every ending is paid by `earnings`."""
        self._outcomes = {agent: self.result(agent) for agent in self.possible_agents}
        self._pay([now - then for now, then in zip(self._earned, before, strict=True)])
        self._end(self.terminations if self._void is None else self.truncations)

    def _use(self, call: Call, step: Use) -> None:
        """Use a tool, unless that fails for a reason that is none of the agents' doing."""
        fault = self.faults.draw(self._seed or 0, self._attempt, call.path, call.turns)
        if fault is not None and fault.kind in INFRA:
            where = f"the {step.tool} of {call.agent} in its turn {call.turns}"
            self.spoil(f"attempt {self._attempt}: {where} {INFRA[fault.kind]}")
        else:
            self.use(call, step if fault is None else replace(step, fault=fault))

    def _call(self, caller: Call, role: str, task: str, turn: int) -> None:
        number = self._seats[role] - self.free(role)
        path = (*caller.path, len(caller.calls))
        call = Call(f"{role}_{number}", role, task, path, caller, turn)
        caller.calls.append(call)
        self._calls[call.agent] = call

    def _close(self, call: Call, ended: Outcome) -> None:
        """End a call, and with it all that are open below it."""
        for each in call.tree():
            if each.open:
                each.ended = ended if each is call else Outcome.TRUNCATED
                self.leave(each)
                self._rights[each.agent] = self._found_right(each)

    def _run_out(self, call: Call) -> None:
        """End a call whose turns are used up, unless calls of its own are still to report."""
        if call.open and not call.waits and call.turns >= self._turns[call.role]:
            self._close(call, Outcome.TRUNCATED)
        caller = call.caller
        if caller is not None and caller.open and not caller.waits:
            self._run_out(caller)

    def _found_right(self, call: Call) -> float:
        return self.right(call) if call.report is not None else 0.0

    def _rightness(self, call: Call) -> float:
        return self._rights.get(call.agent, 0.0)

    def _earned_by(self, agent: str) -> float:
        call, pay = self._calls.get(agent), self.pay
        if call is None:
            return 0.0
        spent = pay.price * len(call.calls)
        if call.report is None:
            return -spent
        right = self._rightness(call)
        if call is self._root:
            return pay.format + pay.correct * right - spent
        return (
            pay.sub_format
            + pay.sub_own * right
            + pay.sub_main * self._rightness(self._root)
            - spent
        )


_FAULTS = {f"({fault.value})": fault for fault in FORFEITS}
