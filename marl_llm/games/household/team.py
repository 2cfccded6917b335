"""A planner who sees nothing of the house, and executors who see one room each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Call, Delegation, Pay, Report, Step, Use
from marl_llm.games.household.errands import LEVELS, TREATS, Errand, Record, Steps, SubGoal, drawn
from marl_llm.games.household.house import CORRIDOR, NOWHERE, Body, House
from marl_llm.games.household.ways import at_hand, fetch, towards
from marl_llm.games.text_game import View

HALL = "hall table"
DONE, FAILED, FINISH = "done", "failed", "finish"
REPORTS = (f"report {DONE}", f"report {FAILED}")
VERBS = ("find", "bring", *TREATS)  # of sub-tasks, with a thing behind them; and "place"
TEAM_LEVELS = LEVELS | {1: replace(LEVELS[2], things=2)}  # one room would be no team
CALLS = {1: 8, 2: 12, 3: 16, 4: 24, 5: 40}  # by level: about twice what the solver needs


class HouseholdTeam(Delegation):
    """Errands in a house of at least two rooms; who sees does not know the whole task.

    The planner knows the errands. It sends executors into rooms with a sub-task each, several at
    once into different rooms, and reads of each whether it reports done or failed, and no more. An
    executor sees its own room and the table in the hall, which is the one place from where a thing
    gets into another room: what an executor still carries when its call ends is left there too.

    A report of "done" is right if the sub-task is done, one of "failed" if it could not be done in
    that room: the thing is not there, or what the task needs is not.
    """

    def __init__(
        self,
        *,
        level: int = 1,
        calls: int | None = None,
        turns: int = 10,
        pay: Pay | None = None,
        list_legal: bool = True,
    ):
        """A game of one level.

        Args:
            level: 1 to 5, see `TEAM_LEVELS`.
            calls: executors that an episode has; None = by level. A planner has one turn more.
            turns: of one executor.
            pay: what the agents get.
            list_legal: say in each observation of an executor which commands are possible.
        """
        if level not in TEAM_LEVELS:
            raise GameError(f"level of household_team is one of {list(TEAM_LEVELS)}, got {level}")
        self.level = TEAM_LEVELS[level]
        self.layout = self.level.layout(corridor=HALL)
        executors = CALLS[level] if calls is None else calls
        super().__init__(
            name="household_team",
            seats={"planner": 1, "executor": executors},
            turns={"planner": executors + 1, "executor": turns},
            pay=pay,
            list_legal=list_legal,
        )

    def rules(self) -> str:
        """All of the rules."""
        return f"{self.instructions('planner')}\n\n{self.instructions('executor')}"

    def instructions(self, role: str) -> str:
        """What this role is told."""
        layout = self.layout
        rooms = [
            f"The {room} has: {', '.join(p for p, r in self._placed() if r == number)}."
            for number, room in enumerate(layout.rooms)
        ]
        house = f"{' '.join(rooms)} In the hall between the rooms stands the {HALL}."
        things = f"Things: {', '.join(layout.things)}."
        if role == self.planner:
            return (
                "You have errands done in a house that you cannot see, by executors. "
                f"{house} {things} An executor works on one sub-task in one room and reports done "
                f"or failed. It has the {HALL} at hand too, and leaves there what it still "
                "carries. Things can be cleaned at the sink, heated at the oven, cooled at the "
                "fridge and held under the lamp at the table.\n"
                "To send one: send ROOM: SUB-TASK. Several are sent at once with ; in between, "
                "into different rooms. Sub-tasks: "
                f"{', '.join(f'{verb} THING' for verb in VERBS)}, place THING in RECEPTACLE.\n"
                f"You may send {self._seats['executor']} in all. When everything is done: {FINISH}."
            )
        return (
            f"You are sent into a room with a sub-task. {house} {things} You see what lies in a "
            f"receptacle when you stand at it and it is open, and always what lies on the {HALL}. "
            "You can carry one thing. You clean what you carry at the sink, heat it at the oven, "
            "cool it at the fridge, and hold it under the lamp at the table. To find a thing is "
            f"to see it, to bring it is to carry it or put it in the {HALL}. What you still carry "
            f"at the end is left in the {HALL}. You have {self._turns['executor']} turns; then "
            "report done, or failed.\n"
            "Commands: go to RECEPTACLE, open RECEPTACLE, close RECEPTACLE, take THING from "
            "RECEPTACLE, put THING in RECEPTACLE, clean THING, heat THING, cool THING, use lamp, "
            f"look, inventory, {', '.join(REPORTS)}."
        )

    # The hooks of Delegation.

    def question(self, rng: np.random.Generator, options: Mapping[str, Any]) -> str:
        """A house and a chain of errands; the option "family" fixes the kind of all of them."""
        self.house, self.errands, _ = drawn(self.level, self.layout, rng, options.get("family"))
        self._steps = Steps(self.errands)
        self._rounds = 0
        return "; then ".join(errand.text(self.layout) for errand in self.errands)

    def read(self, call: Call, action: str) -> Step | None:
        """Send and finish for the planner, commands and reports for an executor."""
        if call.caller is None:
            return Report(FINISH) if action == FINISH else self._sent(action)
        if action in REPORTS:
            return Report(action.removeprefix("report "))
        return Use("house", action) if action in self.house.possible(self._body(call)) else None

    def use(self, call: Call, step: Use) -> None:
        """Carry out a command."""
        self.house.carry_out(self._body(call), step.argument)

    def play(self, moves: Mapping[str, str]) -> None:
        """All movers' steps, and a look at what is reached after them."""
        super().play(moves)
        self._rounds += 1
        self._steps.look(self.house, self._rounds)

    def leave(self, call: Call) -> None:
        """What an executor carries goes to the table in the hall."""
        if call.caller is not None and self._body(call).hand >= 0:
            self.house.lay(self._body(call), self.layout.places.index(HALL))

    def right(self, call: Call) -> float:
        """Whether all errands are done, or the report is true."""
        if call.caller is None:
            return float(self.done)
        done = self._reached(call)
        return float(done if call.report == DONE else not done and not self._can(call))

    def told(self, call: Call) -> View:
        """The errands and the reports, or the sub-task and what the executor sees."""
        if call.caller is None:
            ended = [each for each in call.calls if not each.open]
            said = [f"{each.task}: {each.report or 'no report'}." for each in ended]
            errands = ", ".join(errand.brief(self.layout) for errand in self.errands)
            brief = "; ".join([errands, *(f"{each.task} {each.report or '?'}" for each in ended)])
            return View(" ".join([f"Your task: {call.task}.", *said]), brief, brief)
        body = self._body(call)
        room, _, task = call.task.partition(": ")
        text = f"Your task in the {room}: {task}. {self.house.told(body)}"
        if self.list_legal and call.open:
            commands = ", ".join([*self.house.possible(body), *REPORTS])
            text = f"{text}\nCommands: {commands}."
        brief = f"{task}; {self.house.brief(body)}"
        return View(text, brief, brief)

    # Players that need no model.

    def solve(self, call: Call, rng: np.random.Generator) -> str:
        """Knows where everything is."""
        if call.caller is not None:
            if self._reached(call):
                return f"report {DONE}"
            return self._next(call) or f"report {FAILED}"
        rooms: dict[str, str] = {}
        for errand in self.errands:
            for thing in errand.things:
                wanted = self._wanted(errand, thing)
                if wanted is not None and len(rooms) < self.free("executor"):
                    rooms.setdefault(*wanted)
        return self._in_words(rooms) if rooms else FINISH

    def guess(self, call: Call, rng: np.random.Generator) -> str:
        """Finish, or some report."""
        return FINISH if call.caller is None else REPORTS[int(rng.integers(len(REPORTS)))]

    def wander(self, call: Call, rng: np.random.Generator) -> str:
        """Some sub-task for some room, or some command."""
        if call.caller is None:
            return self._in_words({self._some(rng, self.layout.rooms): self._some_task(rng)})
        return self._some(rng, self.house.possible(self._body(call)))

    def sample(self, agent: str, rng: np.random.Generator) -> str:
        """Any action; a planner sends one or two executors, or now and then finishes."""
        call = self.call_of(agent)
        assert call is not None  # it is to move
        if call.caller is not None:
            return self._some(rng, [*self.house.possible(self._body(call)), *REPORTS])
        many = min(2 if rng.random() < 1 / 3 else 1, self.free("executor"))
        if many == 0 or rng.random() < 0.1:
            return FINISH
        rooms = rng.permutation(len(self.layout.rooms))[:many].tolist()
        return self._in_words({self.layout.rooms[room]: self._some_task(rng) for room in rooms})

    # What evaluations ask.

    @property
    def done(self) -> bool:
        """Whether all errands are done."""
        return all(errand.done(self.house) for errand in self.errands)

    def subgoals(self) -> Record:
        """The sub-goals of all errands in order, and after how many rounds each was reached."""
        return self._steps.record()

    # Inside.

    def _placed(self) -> list[tuple[str, int]]:
        return list(zip(self.layout.places, self.layout.room_of, strict=True))

    def _body(self, call: Call) -> Body:
        """Of an executor; it enters its room when it is first asked for."""
        if not call.notes:
            room, _, _ = call.task.partition(":")
            call.notes.append(self.house.enter(self.layout.rooms.index(room), leaves=False))
        return call.notes[0]

    def _sent(self, action: str) -> Ask | None:
        """The calls of "send ROOM: SUB-TASK; send ROOM: SUB-TASK", all in different rooms."""
        rooms: dict[str, str] = {}
        for part in action.split(";"):
            order, _, task = part.strip().partition(": ")
            word, _, room = order.partition(" ")
            if word != "send" or room not in self.layout.rooms or room in rooms:
                return None
            if self._task(task) is None:
                return None
            rooms[room] = task
        return Ask(tuple(("executor", f"{room}: {task}") for room, task in rooms.items()))

    def _task(self, task: str) -> SubGoal | None:
        """A sub-task; None = it is none."""
        verb, _, rest = task.partition(" ")
        thing, _, place = rest.partition(" in ")
        if thing not in self.layout.things:
            return None
        number = self.layout.things.index(thing)
        if verb == "place":
            places = self.layout.places
            return SubGoal(verb, number, places.index(place)) if place in places else None
        return SubGoal(verb, number) if verb in VERBS and not place else None

    def _goal(self, call: Call) -> SubGoal:
        _, _, task = call.task.partition(": ")
        goal = self._task(task)
        assert goal is not None  # it was checked when the call was made
        return goal

    def _reached(self, call: Call) -> bool:
        """Whether the predicate of a sub-task is true."""
        goal, body = self._goal(call), self._body(call)
        place = self.house.where[goal.thing]
        if goal.verb == "find":
            return body.hand == goal.thing or (place != NOWHERE and body.seen[place])
        if goal.verb == "bring":
            return body.hand == goal.thing or self._in_hall(place)
        return goal.met(self.house)

    def _can(self, call: Call) -> bool:
        """Whether a sub-task that is not done could be done in its room."""
        goal, body, layout = self._goal(call), self._body(call), self.layout
        place = self.house.where[goal.thing]
        if body.hand != goal.thing and (place == NOWHERE or not at_hand(self.house, body, place)):
            return False
        needed = layout.tools[goal.verb] if goal.verb in TREATS else goal.place
        return needed == NOWHERE or at_hand(self.house, body, needed)

    def _next(self, call: Call) -> str | None:
        """The next command of a sub-task that is not done; None = it cannot be done."""
        goal, body = self._goal(call), self._body(call)
        if not self._can(call):
            return None
        if goal.verb == "bring":
            return fetch(self.house, body, goal.thing)
        if goal.verb == "find":  # somebody may have seen it before, and this one has not
            return _first_sight(self.house, body, goal.thing)
        return towards(self.house, body, goal)

    def _wanted(self, errand: Errand, thing: int) -> tuple[str, str] | None:
        """The room and the sub-task that bring a thing of an errand on; None = nothing is to do."""
        layout, house = self.layout, self.house
        name = layout.things[thing]
        steps = [s for s in errand.steps() if s.thing == thing and s.verb != "find"]
        left = [step for step in steps if not step.met(house)]
        if not left:
            return None
        step, room = left[0], layout.room_of[house.where[thing]]
        place = step.place if step.verb == "place" else layout.tools[step.verb]
        target = layout.room_of[place]
        if room not in (target, CORRIDOR):
            return layout.rooms[room], f"bring {name}"
        into = f" in {layout.places[place]}" if step.verb == "place" else ""
        return layout.rooms[target], f"{step.verb} {name}{into}"

    def _in_hall(self, place: int) -> bool:
        return place != NOWHERE and self.layout.room_of[place] == CORRIDOR

    @staticmethod
    def _in_words(rooms: Mapping[str, str]) -> str:
        return "; ".join(f"send {room}: {task}" for room, task in rooms.items())

    @staticmethod
    def _some(rng: np.random.Generator, options: Any) -> str:
        return options[int(rng.integers(len(options)))]

    def _some_task(self, rng: np.random.Generator) -> str:
        thing = self._some(rng, self.layout.things)
        verb = self._some(rng, (*VERBS, "place"))
        into = f" in {self._some(rng, self.layout.places)}" if verb == "place" else ""
        return f"{verb} {thing}{into}"


def _first_sight(house: House, body: Body, thing: int) -> str | None:
    """The next command towards seeing a thing that lies in reach."""
    place = house.where[thing]
    if body.place != place:
        return f"go to {house.layout.places[place]}"
    return None if house.opened[place] else f"open {house.layout.places[place]}"
