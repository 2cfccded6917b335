"""Ways: the next command towards a sub-goal, for players who know where everything is."""

from __future__ import annotations

from marl_llm.games.household.errands import SubGoal
from marl_llm.games.household.house import CORRIDOR, NOWHERE, Body, House


def towards(house: House, body: Body, goal: SubGoal) -> str | None:
    """The next command of a shortest way to a sub-goal.

    Args:
        house: as it is.
        body: who goes; if it may not leave its room, all that is needed must be at hand.
        goal: what for.

    Returns:
        A possible command; None = it is reached, or cannot be reached from here.
    """
    if goal.met(house):
        return None
    layout = house.layout
    if goal.verb == "find":
        return _reach(house, body, house.where[goal.thing])
    if body.hand != goal.thing:
        return fetch(house, body, goal.thing)
    if goal.verb == "place":
        step = _reach(house, body, goal.place)
        return step or (None if body.place != goal.place else layout.put[goal.thing][goal.place])
    tool = layout.tools[goal.verb]
    step = _walk(house, body, tool)
    return step or (None if body.place != tool else layout.use[goal.thing][goal.verb])


def fetch(house: House, body: Body, thing: int) -> str | None:
    """The next command towards having a thing in the hand; None = it is there, or not to be had."""
    place = house.where[thing]
    if body.hand == thing or place == NOWHERE or not at_hand(house, body, place):
        return None
    if body.hand >= 0:
        return _lay_down(house, body)
    return _reach(house, body, place) or house.layout.take[thing][place]


def at_hand(house: House, body: Body, place: int) -> bool:
    """Whether a body can get to a receptacle."""
    return body.leaves or house.layout.room_of[place] in (body.room, CORRIDOR)


def _walk(house: House, body: Body, place: int) -> str | None:
    """The next step to a receptacle; None = there, or it cannot be got to."""
    layout = house.layout
    if body.place == place or place == NOWHERE or not at_hand(house, body, place):
        return None
    room = layout.room_of[place]
    return f"go to {layout.places[place] if room in (body.room, CORRIDOR) else layout.rooms[room]}"


def _reach(house: House, body: Body, place: int) -> str | None:
    """The next step to the contents of a receptacle; None = they are in reach, or never will be."""
    step = _walk(house, body, place)
    if step is None and body.place == place and not house.opened[place]:
        return f"open {house.layout.places[place]}"
    return step


def _lay_down(house: House, body: Body) -> str:
    """Get rid of what is in the hand, in the receptacle where the body is or in one near it."""
    place = body.place
    if place == NOWHERE:
        place = house.layout.within(body.room)[0]
    return _reach(house, body, place) or house.layout.put[body.hand][place]
