"""The house: a plain state machine, without agents, turns or errands.

Rooms open on to a corridor. In a room stand receptacles, in which things lie; some have a door. A
body is in one room, at one receptacle or in the middle, with at most one thing in its hand. It sees
what lies in the receptacle where it is if that is open, and remembers what it saw.

Commands are known by their names, which are the actions of the games. Only commands that change
something, be it what the body knows, are possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

NOWHERE = -1  # no receptacle: in the middle of the room, or in a hand
CORRIDOR = -1  # the room of a receptacle that is at hand in every room
HOT, COLD, CLEAN, LIT = 1, 2, 4, 8  # states of a thing
TOOLS = {"clean": "sink", "heat": "oven", "cool": "fridge", "light": "table"}  # where it is done
DOORS = frozenset({"fridge", "oven", "drawer", "cabinet", "cupboard", "wardrobe", "chest"})
_STATE = {"clean": CLEAN, "heat": HOT, "cool": COLD, "light": LIT}


def state_of(verb: str) -> int:
    """The state into which clean, heat, cool and light bring a thing."""
    return _STATE[verb]


@dataclass(frozen=True, slots=True)
class Command:
    """What a command's name means; numbers are -1 where they do not apply."""

    verb: str
    thing: int = -1
    place: int = -1  # a receptacle; of "enter", a room


@dataclass(frozen=True)
class Layout:
    """What every house of a level has; numbers stand for names in these orders.

    Attributes:
        rooms: names.
        places: names of the receptacles.
        room_of: the room of each receptacle, or `CORRIDOR`.
        things: names.
    """

    rooms: tuple[str, ...]
    places: tuple[str, ...]
    room_of: tuple[int, ...]
    things: tuple[str, ...]

    @classmethod
    def of(
        cls, rooms: Mapping[str, Iterable[str]], things: Iterable[str], corridor: str | None = None
    ) -> Layout:
        """A layout from the receptacles of each room, by name.

        Args:
            rooms: room -> receptacles in it.
            things: that lie about.
            corridor: a receptacle that is at hand in every room; None = there is none.
        """
        places = [(place, number) for number, some in enumerate(rooms.values()) for place in some]
        if corridor is not None:
            places.append((corridor, CORRIDOR))
        return cls(
            tuple(rooms),
            tuple(place for place, _ in places),
            tuple(room for _, room in places),
            tuple(things),
        )

    @cached_property
    def has_door(self) -> tuple[bool, ...]:
        """Which receptacles can be opened and closed; the others are always open."""
        return tuple(place in DOORS for place in self.places)

    @cached_property
    def tools(self) -> Mapping[str, int]:
        """The receptacle at which a thing is cleaned, heated, cooled or held under the lamp."""
        return {verb: self.places.index(place) for verb, place in TOOLS.items()}

    @cached_property
    def verb_at(self) -> tuple[str | None, ...]:
        """What the tool at each receptacle does."""
        verbs = {place: verb for verb, place in self.tools.items()}
        return tuple(verbs.get(place) for place in range(len(self.places)))

    @cached_property
    def meanings(self) -> Mapping[str, Command]:
        """All commands by name."""
        found: dict[str, Command] = {}
        if len(self.rooms) > 1:
            for n, room in enumerate(self.rooms):
                found[f"go to {room}"] = Command("enter", place=n)
        for n, place in enumerate(self.places):
            found[f"go to {place}"] = Command("go", place=n)
        for n, place in enumerate(self.places):
            if self.has_door[n]:
                found[f"open {place}"] = Command("open", place=n)
                found[f"close {place}"] = Command("close", place=n)
        for k, thing in enumerate(self.things):
            for n, place in enumerate(self.places):
                found[f"take {thing} from {place}"] = Command("take", k, n)
                found[f"put {thing} in {place}"] = Command("put", k, n)
            for verb in ("clean", "heat", "cool"):
                found[f"{verb} {thing}"] = Command(verb, k)
        found["use lamp"] = Command("light")
        found["look"] = Command("look")
        found["inventory"] = Command("inventory")
        return found

    @cached_property
    def take(self) -> tuple[tuple[str, ...], ...]:
        """Names of "take", by thing and receptacle."""
        return tuple(tuple(f"take {k} from {n}" for n in self.places) for k in self.things)

    @cached_property
    def put(self) -> tuple[tuple[str, ...], ...]:
        """Names of "put", by thing and receptacle."""
        return tuple(tuple(f"put {k} in {n}" for n in self.places) for k in self.things)

    @cached_property
    def use(self) -> tuple[Mapping[str, str], ...]:
        """Names of what tools do, by thing."""
        return tuple(
            {"light": "use lamp"} | {verb: f"{verb} {k}" for verb in ("clean", "heat", "cool")}
            for k in self.things
        )

    def within(self, room: int) -> tuple[int, ...]:
        """The receptacles at hand in a room."""
        return self._within[room]

    @cached_property
    def _within(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(n for n, room in enumerate(self.room_of) if room in (number, CORRIDOR))
            for number in range(len(self.rooms))
        )

    @cached_property
    def surfaces(self) -> tuple[tuple[int, ...], ...]:
        """The receptacles without a door at hand in each room."""
        return tuple(tuple(n for n in some if not self.has_door[n]) for some in self._within)

    @cached_property
    def ways(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Names of "go to" that lead elsewhere within a room, by room and receptacle.

        The last one of a room is that of its middle, so that `NOWHERE` finds it.
        """
        return tuple(
            tuple(
                tuple(f"go to {self.places[n]}" for n in some if n != place)
                for place in (*range(len(self.places)), NOWHERE)
            )
            for some in self._within
        )

    @cached_property
    def exits(self) -> tuple[tuple[str, ...], ...]:
        """Names of "go to" that lead into other rooms, by room."""
        return tuple(
            tuple(f"go to {name}" for name in self.rooms if name != own) for own in self.rooms
        )


@dataclass(slots=True)
class Body:
    """Someone in the house, and what it knows."""

    room: int
    seen: list[bool]  # receptacles whose contents it knows
    place: int = NOWHERE
    hand: int = -1  # the thing in it
    leaves: bool = True  # may go into other rooms
    known: set[int] = field(default_factory=set)  # things of which it knows whether they are clean


class House:
    """Where things are and what state they are in.

    Attributes:
        layout: what it has.
        where: the receptacle of each thing; `NOWHERE` = in a hand.
        inside: the things in each receptacle, in ascending order.
        opened: whether the contents of each receptacle are in reach.
        state: of each thing, a sum of `HOT`, `COLD`, `CLEAN` and `LIT`.
        found: whether anybody has seen each thing.
    """

    __slots__ = ("found", "inside", "layout", "opened", "state", "where")

    def __init__(self, layout: Layout, where: list[int], state: list[int]) -> None:
        """All doors are closed.

        Args:
            layout: what the house has.
            where: the receptacle of each thing.
            state: of each thing.
        """
        self.layout, self.where, self.state = layout, where, state
        self.opened = [not door for door in layout.has_door]
        self.found = [False] * len(where)
        self.inside: list[list[int]] = [[] for _ in layout.places]
        for thing, place in enumerate(where):
            self.inside[place].append(thing)

    def enter(self, room: int, leaves: bool = True) -> Body:
        """Someone in the middle of a room, who has seen nothing but what stands in the corridor."""
        return Body(room, [own == CORRIDOR for own in self.layout.room_of], leaves=leaves)

    def possible(self, body: Body) -> list[str]:
        """Names of the commands that change something."""
        layout, place, hand = self.layout, body.place, body.hand
        names = list(layout.ways[body.room][place])
        if body.leaves:
            names += layout.exits[body.room]
        if place >= 0:
            opened = self.opened[place]
            if layout.has_door[place]:
                names.append(f"{'close' if opened else 'open'} {layout.places[place]}")
            if hand >= 0:
                if opened:
                    names.append(layout.put[hand][place])
                verb = layout.verb_at[place]
                if verb is not None and not self._idle(body, verb):
                    names.append(layout.use[hand][verb])
            elif opened:
                names += [layout.take[thing][place] for thing in self.inside[place]]
        seen = body.seen
        for surface in layout.surfaces[body.room]:
            if not seen[surface]:
                names.append("look")
                break
        if hand >= 0 and hand not in body.known:
            names.append("inventory")
        return names

    def _idle(self, body: Body, verb: str) -> bool:
        """Whether a tool would change nothing on the thing in the hand."""
        done = bool(self.state[body.hand] & _STATE[verb])
        return done and (verb != "clean" or body.hand in body.known)

    def carry_out(self, body: Body, name: str) -> None:
        """Do what a possible command says."""
        command = self.layout.meanings[name]
        verb, thing, place = command.verb, command.thing, command.place
        if verb == "go":
            body.place = place
            if self.opened[place]:
                self._see(body, place)
        elif verb == "enter":
            body.room, body.place = place, NOWHERE
        elif verb == "open":
            self.opened[place] = True
            self._see(body, place)
        elif verb == "close":
            self.opened[place] = False
        elif verb == "take":
            self.inside[place].remove(thing)
            self.where[thing], body.hand = NOWHERE, thing
        elif verb == "put":
            self.lay(body, place)
        elif verb == "look":
            for surface in self.layout.surfaces[body.room]:
                self._see(body, surface)
        elif verb == "inventory":
            body.known.add(body.hand)
        else:
            self._treat(body, verb)

    def lay(self, body: Body, place: int) -> None:
        """Put what is in the hand into a receptacle."""
        thing = body.hand
        self.where[thing], body.hand = place, -1
        self.inside[place].append(thing)
        self.inside[place].sort()

    def _see(self, body: Body, place: int) -> None:
        body.seen[place] = True
        for thing in self.inside[place]:
            self.found[thing] = True

    def _treat(self, body: Body, verb: str) -> None:
        thing = body.hand
        state = self.state[thing] | _STATE[verb]
        if verb == "heat":
            state &= ~COLD
        elif verb == "cool":
            state &= ~HOT
        elif verb == "clean":
            body.known.add(thing)
        self.state[thing] = state

    def described(self, body: Body, thing: int) -> tuple[str, ...]:
        """What a body knows of the state of a thing that it sees or saw, in words."""
        state, words = self.state[thing], []
        if state & HOT:
            words.append("hot")
        if state & COLD:
            words.append("cold")
        if state & LIT:
            words.append("lit")
        if thing in body.known:
            words.append("clean" if state & CLEAN else "dirty")
        return tuple(words)

    def told(self, body: Body) -> str:
        """All that a body knows of the house, in sentences."""
        layout, place = self.layout, body.place
        at = ""
        if place >= 0:
            at = f", at the {layout.places[place]}"
            if not self.opened[place]:
                at += ", which is closed"
        held = "nothing" if body.hand < 0 else self._named(body, body.hand)
        sentences = [f"You are in the {layout.rooms[body.room]}{at}. In your hand: {held}."]
        open_to = range(len(layout.places)) if body.leaves else layout.within(body.room)
        if seen := [self._contents(body, n) for n in open_to if body.seen[n]]:
            sentences.append(f"Seen: {'; '.join(seen)}.")
        if unseen := [layout.places[n] for n in open_to if not body.seen[n]]:
            sentences.append(f"Not seen yet: {', '.join(unseen)}.")
        return " ".join(sentences)

    def brief(self, body: Body) -> str:
        """The same in a few words: where it is and what lies there first, then what else it saw."""
        layout, place = self.layout, body.place
        words = ["at"] if len(layout.rooms) == 1 else ["at", layout.rooms[body.room]]
        if place >= 0:
            words.append(self._brief_contents(body, place))
        parts = [" ".join(words), " ".join(["hand", *self._brief_of(body, body.hand)])]
        parts += [
            self._brief_contents(body, n) for n, seen in enumerate(body.seen) if seen and n != place
        ]
        return "; ".join(parts)

    def _named(self, body: Body, thing: int) -> str:
        states = self.described(body, thing)
        name = self.layout.things[thing]
        return f"{name} ({', '.join(states)})" if states else name

    def _brief_of(self, body: Body, thing: int) -> tuple[str, ...]:
        return () if thing < 0 else (self.layout.things[thing], *self.described(body, thing))

    def _brief_contents(self, body: Body, place: int) -> str:
        words = [self.layout.places[place]]
        if not body.seen[place]:
            return f"{words[0]} unopened"
        if not self.opened[place]:
            words.append("shut")
        for thing in self.inside[place]:
            words += self._brief_of(body, thing)
        return " ".join(words)

    def _contents(self, body: Body, place: int) -> str:
        closed = "" if self.opened[place] else " (closed)"
        things = ", ".join(self._named(body, thing) for thing in self.inside[place])
        return f"{self.layout.places[place]}{closed}: {things or 'nothing'}"
