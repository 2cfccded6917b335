"""One agent in the house, who does all errands by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from marl_llm.errors import GameError, nearest
from marl_llm.games.household.errands import LEVELS, TREATS, Record, Steps, SubGoal, drawn
from marl_llm.games.household.ways import towards
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.games.text_game import Legal, TextGame, View
from marl_llm.seeds import generator
from marl_llm.types import Outcome


class Household(TextGame):
    """Errands in a house of which the agent sees only where it stands.

    All errands done pays 1 and ends the episode; anything else pays 0. With a `price`, every turn
    costs that much.
    """

    def __init__(
        self,
        *,
        level: int = 1,
        turns: int | None = None,
        limit: Literal["truncated", "loss"] = "truncated",
        price: float = 0.0,
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
    ):
        """A game of one level.

        Args:
            level: 1 to 5, see `errands.LEVELS`.
            turns: limit of an episode; None = that of the level.
            limit: what the limit is. "truncated": a cut from outside, which the agent is not told
                of, so that what was still to come counts. "loss": a rule of the game, and the agent
                is told how many turns are left.
            price: of a turn.
            table: what each ending pays, or the name of a preset.
            list_legal: say in each observation which commands are possible.
        """
        if level not in LEVELS:
            raise GameError(f"level of household is one of {list(LEVELS)}, got {level}")
        if limit not in ("truncated", "loss"):
            raise GameError(f"limit of household is 'truncated' or 'loss', got {limit!r}")
        if price < 0:
            raise GameError(f"price of a turn must be at least 0, got {price}")
        self.level, self.price, self.limit = LEVELS[level], price, limit
        self.turns = self.level.turns if turns is None else turns
        if self.turns < 1:
            raise GameError(f"turns of household must be at least 1 or null, got {turns}")
        self.layout = self.level.layout()
        spent = sorted({-price * turn for turn in range(1, self.turns + 1)}, reverse=True)
        super().__init__(
            name="household",
            actions=tuple(self.layout.meanings),
            natural_turns=self.turns,
            max_turns=self.turns if limit == "truncated" else None,
            scoring=Scoring(
                1,
                "shared",
                "result",
                {Outcome.WIN: tuple(1.0 + cost for cost in spent), Outcome.LOSS: (spent[-1],)},
            ),
            table=table,
            list_legal=list_legal,
        )

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """A house and a chain of errands; the option "family" fixes the kind of all of them."""
        self.house, self.errands, room = drawn(self.level, self.layout, rng, options.get("family"))
        self.body = self.house.enter(room)
        self.taken = 0  # turns
        self._steps = Steps(self.errands)
        self._look()

    def movers(self) -> tuple[str, ...]:
        """The agent, until all is done or a limit that is a rule is reached."""
        over = self.limit == "loss" and self.taken >= self.turns
        return () if self.done or over else ("player_0",)

    def legal(self, agent: str) -> Legal:
        """The commands that change something."""
        return self._possible

    def play(self, moves: Mapping[str, str]) -> None:
        """Carry the command out."""
        self.house.carry_out(self.body, moves["player_0"])
        self.taken += 1
        self._look()

    def earnings(self) -> Sequence[float]:
        """1 once all is done, minus the price of the turns."""
        return (float(self.done) - self.price * self.taken,)

    def result(self, agent: str) -> Outcome:
        """Whether all is done."""
        return Outcome.WIN if self.done else Outcome.LOSS

    def view(self, agent: str) -> View:
        """The errands, where the agent is, what it carries and what it has seen."""
        layout = self.layout
        text = "; then ".join(errand.text(layout) for errand in self.errands)
        brief = ", ".join(errand.brief(layout) for errand in self.errands)
        text = f"Your task: {text}. {self.house.told(self.body)}"
        brief = f"{brief}; {self.house.brief(self.body)}"
        if self.limit == "loss":
            left = self.turns - self.taken
            text, brief = f"{text} Turns left: {left}.", f"{brief}; left {left}"
        return View(text, brief, brief)

    def rules(self) -> str:
        """Rules and commands."""
        layout = self.layout
        rooms = [
            f"The {room} has: {', '.join(layout.places[n] for n in layout.within(number))}."
            for number, room in enumerate(layout.rooms)
        ]
        doors = [place for place, door in zip(layout.places, layout.has_door, strict=True) if door]
        move = "You go from receptacle to receptacle. "
        if len(layout.rooms) > 1:
            move = (
                "You go from receptacle to receptacle within a room, and from room to room, where "
                "you then stand in the middle. "
            )
        end = (
            f" You lose if it is not done after {self.turns} turns." if self.limit == "loss" else ""
        )
        return (
            f"You do errands in a house. {' '.join(rooms)} You see what lies in a receptacle when "
            f"you stand at it and it is open; these have doors and are closed at first: "
            f"{', '.join(doors)}. You can carry one thing. You clean what you carry at the sink, "
            "heat it at the oven, cool it at the fridge, and hold it under the lamp at the table. "
            "'look' shows what lies in the open of the room that you are in, 'inventory' whether "
            f"what you carry is clean. {move}All of your task must be true in the end.{end}"
            f"\nActions: {', '.join(self.actions)}."
        )

    # What players, demonstrations and evaluations ask.

    @property
    def done(self) -> bool:
        """Whether all errands are done."""
        return self._done

    def subgoals(self) -> Record:
        """The sub-goals in order, each with the turns after which it was reached, None = not yet.

        A sub-goal reached after t turns is where the next one starts, in front of turn t from 0.
        """
        return self._steps.record()

    def subgoal(self, agent: str, hasty: Sequence[bool] = ()) -> str:
        """What is to be done next, in words: the first sub-goal that is not met.

        Args:
            agent: the one that there is.
            hasty: per errand, whether to leave out what changes a thing, as someone would who does
                not mind the task. Where nothing else is left to do, the last sub-goal stays.
        """
        for number, errand in enumerate(self.errands):
            if errand.done(self.house):
                continue
            skips = number < len(hasty) and hasty[number]
            steps = [s for s in errand.steps() if not (skips and s.verb in TREATS)]
            open_steps = [step for step in steps if not step.met(self.house)]
            return (open_steps or steps[-1:])[0].text(self.layout)
        return self.errands[-1].steps()[-1].text(self.layout)

    def toward(self, agent: str, subgoal: str) -> str | None:
        """The next command towards a sub-goal, by one who knows where everything is.

        Returns:
            A possible command; None = the sub-goal is met.

        Raises:
            GameError: there is no such sub-goal.
        """
        return towards(self.house, self.body, self._read(subgoal))

    def solve(self, agent: str, rng: np.random.Generator) -> str:
        """A best command, by one who knows where everything is."""
        command = self.toward(agent, self.subgoal(agent))
        assert command is not None  # the sub-goal is not met, and everything can be reached
        return command

    def luck(self, what: str) -> float:
        """A number in [0, 1) that hangs on the episode and a name alone.

        For players who must not change their mind in the middle of an episode.
        """
        return float(generator(self._seed or 0, "luck", what).random())

    # Inside.

    def _look(self) -> None:
        self._done = all(errand.done(self.house) for errand in self.errands)
        self._possible = tuple(self.house.possible(self.body))
        self._steps.look(self.house, self.taken)

    def _read(self, subgoal: str) -> SubGoal:
        verb, _, name = subgoal.partition(" ")
        if name not in self.layout.things or verb not in ("find", "place", *TREATS):
            raise GameError(
                f"{subgoal!r} is no sub-goal of household; it is one of find, place, "
                f"{', '.join(TREATS)} and a thing; {nearest(name, self.layout.things)}"
            )
        thing = self.layout.things.index(name)
        return SubGoal(verb, thing, self._target(thing) if verb == "place" else -1)

    def _target(self, thing: int) -> int:
        """Where a thing is to be in the end; if no errand says so, where the first errand ends."""
        places = [errand.place for errand in self.errands if errand.place >= 0]
        own = [e.place for e in self.errands if thing in e.things and e.place >= 0]
        return (own or places or [0])[0]
