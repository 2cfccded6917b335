"""Errands: what is to be done in a house, in which steps, and when it is done.

An errand is done when a predicate on the house is true, whoever did what in which order. Its
sub-goals have predicates of their own:

    find THING                        it has been seen
    clean, heat, cool, light THING    it is clean, hot, cold; it has been held under the lamp
    place THING                       it lies in the receptacle of its errand

The errands of a chain have different things, so all of them can be done at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from marl_llm.errors import GameError, nearest
from marl_llm.games.household.house import CLEAN, House, Layout, state_of

FAMILIES = ("place", "light", "clean", "heat", "cool", "two")
TREATS = ("clean", "heat", "cool", "light")
_MOST_DRAWS = 64

THINGS = ("apple", "cup", "plate", "book", "egg", "towel", "bottle", "pen", "spoon", "knife")
_HEATED = frozenset({"apple", "cup", "plate", "egg", "bottle"})
_CLEANED = frozenset({"apple", "cup", "plate", "towel", "bottle", "spoon", "knife"})
_ONLY = {"clean": _CLEANED, "heat": _HEATED, "cool": _HEATED}  # other families take any thing


@dataclass(frozen=True, slots=True)
class Level:
    """How hard a level is."""

    rooms: Mapping[str, tuple[str, ...]]  # room -> receptacles
    things: int
    shortest: int  # errands
    longest: int
    turns: int  # limit of an episode

    def layout(self, corridor: str | None = None) -> Layout:
        """What every house of this level has."""
        return Layout.of(self.rooms, THINGS[: self.things], corridor)


_KITCHEN = ("counter", "table", "sink", "fridge", "oven")
_TWO = {"kitchen": _KITCHEN, "bedroom": ("bed", "drawer")}
_THREE = _TWO | {"bathroom": ("shelf", "cabinet")}
_FULL = {
    "kitchen": (*_KITCHEN, "cupboard"),
    "bedroom": ("bed", "drawer", "wardrobe"),
    "bathroom": ("shelf", "cabinet"),
}
LEVELS = {
    1: Level({"kitchen": _KITCHEN}, 2, 1, 1, 20),
    2: Level(_TWO, 3, 1, 1, 30),
    3: Level(_THREE, 5, 1, 2, 60),
    4: Level(_FULL, 7, 2, 3, 90),
    5: Level(_FULL | {"lounge": ("sofa", "chest", "bookcase")}, 10, 3, 5, 150),
}


@dataclass(frozen=True, slots=True)
class SubGoal:
    """A step of an errand."""

    verb: str
    thing: int
    place: int = -1  # of "place": where to

    def text(self, layout: Layout) -> str:
        """As it is written: the receptacle is that of the errand and left out."""
        return f"{self.verb} {layout.things[self.thing]}"

    def met(self, house: House) -> bool:
        """Whether its predicate is true."""
        if self.verb == "find":
            return house.found[self.thing]
        if self.verb == "place":
            return house.where[self.thing] == self.place
        return bool(house.state[self.thing] & state_of(self.verb))


@dataclass(frozen=True, slots=True)
class Errand:
    """One of the six kinds of tasks."""

    family: str
    things: tuple[int, ...]
    place: int = -1  # where the things are to be in the end; -1 = anywhere

    def steps(self) -> tuple[SubGoal, ...]:
        """Its sub-goals in order."""
        found: list[SubGoal] = []
        for thing in self.things:
            found.append(SubGoal("find", thing))
            if self.family in TREATS:
                found.append(SubGoal(self.family, thing))
            if self.place >= 0:
                found.append(SubGoal("place", thing, self.place))
        return tuple(found)

    def done(self, house: House) -> bool:
        """Whether it is done: everything holds but that things were found, which follows."""
        return all(step.met(house) for step in self.steps() if step.verb != "find")

    def text(self, layout: Layout) -> str:
        """In words, without a full stop."""
        things = " and ".join(f"the {layout.things[thing]}" for thing in self.things)
        if self.family == "light":
            return f"hold {things} under the lamp"
        into = f"in the {layout.places[self.place]}"
        if self.family in TREATS:
            return f"{self.family} {things} and put it {into}"
        return f"put {things} {into}"

    def brief(self, layout: Layout) -> str:
        """In a few words."""
        words = [self.family, *(layout.things[thing] for thing in self.things)]
        return " ".join(words if self.place < 0 else [*words, layout.places[self.place]])


Record = tuple[tuple[SubGoal, int | None], ...]


class Steps:
    """The sub-goals of all errands in order, and after how many turns each was reached.

    A sub-goal is reached at the first moment at which it is met and all before it are reached.
    """

    __slots__ = ("_reached", "_steps")

    def __init__(self, errands: Sequence[Errand]) -> None:
        self._steps = [step for errand in errands for step in errand.steps()]
        self._reached: list[int] = []

    def look(self, house: House, turns: int) -> None:
        """Write down what is reached after so many turns."""
        while len(self._reached) < len(self._steps):
            if not self._steps[len(self._reached)].met(house):
                return
            self._reached.append(turns)

    def record(self) -> Record:
        """Each sub-goal with its turns; None = not reached so far."""
        missing = [None] * (len(self._steps) - len(self._reached))
        return tuple(zip(self._steps, [*self._reached, *missing], strict=True))


def drawn(
    level: Level, layout: Layout, rng: np.random.Generator, family: str | None = None
) -> tuple[House, list[Errand], int]:
    """A house, a chain of errands, and the room to start in.

    Args:
        level: how hard.
        layout: of the level.
        rng: the only source of chance.
        family: of all errands; None = drawn, all equally likely that are possible.

    Raises:
        GameError: there is no such family.
    """
    if family is not None and family not in FAMILIES:
        raise GameError(f"no family of errands is called {family!r}; {nearest(family, FAMILIES)}")
    numbers = iter(rng.random(_MOST_DRAWS).tolist())
    many, inside = level.things, [n for n, room in enumerate(layout.room_of) if room >= 0]

    def pick(options: Sequence[int]) -> int:
        return options[int(next(numbers) * len(options))]

    where = [pick(inside) for _ in range(many)]
    state = [CLEAN * (next(numbers) < 0.5) for _ in range(many)]
    ranks = list(islice(numbers, many))
    left = sorted(range(many), key=ranks.__getitem__)
    chain = []
    count = pick(range(level.shortest, level.longest + 1))
    for number in range(count):
        spare = len(left) - (count - 1 - number)  # the later ones need one thing each
        kind = pick(range(len(FAMILIES)))
        for turned in range(len(FAMILIES)):
            name = family or FAMILIES[(kind + turned) % len(FAMILIES)]
            allowed = _ONLY.get(name, THINGS)
            things = [k for k in left if layout.things[k] in allowed][: 1 + (name == "two")]
            if len(things) == 1 + (name == "two") <= spare:
                break
        else:
            break  # this family has no more things
        left = [k for k in left if k not in things]
        taken = {where[k] for k in things} | ({layout.tools[name]} if name in TREATS else set())
        place = -1 if name == "light" else pick([n for n in inside if n not in taken])
        if name == "clean":
            state[things[0]] = 0
        chain.append(Errand(name, tuple(things), place))
    house = House(layout, where, state)
    return house, chain, pick(range(len(layout.rooms)))
