"""Questions of a level: expressions drawn from a small grammar, kept if their answer is unique.

bridge        a chain of links from a named thing
comparison    which of two, each at the end of a chain, has the earlier or later year
intersection  who is in two sets
count         how many there are in a set
superlative   who of a set has the earliest or latest year
temporal      who held an office in a year, which may itself be that of something else
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from marl_llm.errors import GameError
from marl_llm.games.phantom.names import words_of
from marl_llm.games.phantom.questions import (
    At,
    Both,
    Choice,
    Count,
    Expression,
    Found,
    Hop,
    Named,
    Of,
    Pick,
    Step,
    Those,
    key_words,
    phrase,
    stages,
    unfold,
)
from marl_llm.games.phantom.relations import BY_NAME, KINDS, YEAR, YEAR_OF, Relation
from marl_llm.games.phantom.world import World
from marl_llm.seeds import derive

TRIES = 400  # draws of a question before giving up
CROWD = 12  # members of a set at most
_ASKS = {"person": "Who is {}?", "count": "How many {} are there?"}


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the steps that answer it, and what counts as its answer."""

    text: str
    brief: str
    kind: str  # of `levels.QUESTIONS`
    expression: Expression
    steps: tuple[Step, ...]
    answers: tuple[str, ...]  # all names of the right one, the usual one first


def question_of(world: World) -> Question:
    """The question that goes with a world.

    Raises:
        GameError: the level's knobs leave no question that can be asked.
    """
    level, chance = world.level, random.Random(derive(world.seed, "question"))
    for _ in range(TRIES):
        kind = chance.choice(level.questions)
        expression = _DRAWS[kind](world, chance)
        question = None if expression is None else accepted(kind, expression, world, chance)
        if question is not None:
            return question
    raise GameError(
        f"no question of {', '.join(level.questions)} could be asked in {TRIES} draws; give the "
        "planner more calls or turns, shorten links, lead and tail, or make the world larger"
    )


def accepted(
    kind: str, expression: Expression, world: World, chance: random.Random
) -> Question | None:
    """The question that an expression makes, if it is a good one.

    Its answer must be unique and not named by the question, nothing may be looked up twice, sets
    must be small, and there must be calls and turns enough.
    """
    steps: list[Step] = []
    found, level = unfold(expression, world, steps), world.level
    hops = [step for step in steps if isinstance(step, Hop)]
    keys = {(hop.relation, hop.known, hop.back, hop.year) for hop in hops}
    if len(found.values) != 1 or len(keys) < len(hops) or len(hops) > level.calls:
        return None
    if len(stages(steps)) >= level.planner_turns or any(len(h.facts) > CROWD for h in hops):
        return None
    answers = _answers(found, world)
    asked = phrase(expression)
    if found.kind in KINDS and found.values[0] in {*world.register.named(asked), *_met(steps)}:
        return None
    if found.kind == YEAR and answers[0] in words_of(asked):
        return None
    if level.terse:
        asked = key_words(expression)
        return Question(f"{asked}?", asked, kind, expression, tuple(steps), answers)
    opening = chance.choice(("Name {}.", "Find {}.", _ASKS.get(found.kind, "What is {}?")))
    text = opening.format(asked.removeprefix("the number of ") if "many" in opening else asked)
    return Question(text, asked, kind, expression, tuple(steps), answers)


def _met(steps: list[Step]) -> set[int]:
    """The things that one has met on the way, but for the candidates of a last choice."""
    apart = steps[-1].after if isinstance(steps[-1], Choice) else ()
    return {
        step.known
        for number, step in enumerate(steps)
        if isinstance(step, Hop) and number not in apart
    }


def _answers(found: Found, world: World) -> tuple[str, ...]:
    (value,) = found.values
    return world.things[value].names if found.kind in KINDS else (str(value),)


# One draw of each kind; None = it led nowhere.


def _bridge(world: World, chance: random.Random) -> Expression | None:
    links = chance.randint(*world.level.links)
    start = chance.randrange(len(world.things))
    return _onward(_named(world, start, chance), start, links, world, chance, years=True)


def _comparison(world: World, chance: random.Random) -> Expression | None:
    kind = chance.choice([kind for kind in YEAR_OF if len(world.of_kind[kind]) > 1])
    pair = chance.sample(world.of_kind[kind], 2)
    links = max(1, chance.randint(*world.level.lead))
    led = tuple(_led(world, thing, links, chance) for thing in pair)
    if any(isinstance(each, Named) for each in led):
        return None  # the answer must not be one of two that are named
    return _tailed(Pick(led, YEAR_OF[kind], chance.random() < 0.5), world, chance)


def _intersection(world: World, chance: random.Random) -> Expression | None:
    kinds = [kind for kind in KINDS if world.of_kind[kind] and len(_grouping(world, kind)) > 1]
    kind = chance.choice(kinds)
    member = chance.choice(world.of_kind[kind])
    one, other = chance.sample(_grouping(world, kind), 2)
    left = _those(world, one, world.about[member, one.name][0].value, 0, chance)
    links = chance.randint(*world.level.lead)
    right = _those(world, other, world.about[member, other.name][0].value, links, chance)
    return _tailed(Both(left, right), world, chance)


def _count(world: World, chance: random.Random) -> Expression | None:
    return None if (those := _crowd(world, chance)) is None else Count(those)


def _superlative(world: World, chance: random.Random) -> Expression | None:
    those = _crowd(world, chance)
    year = None if those is None else YEAR_OF.get(BY_NAME[those.relation].of)
    if those is None or year is None:
        return None
    return _tailed(Pick(those, year, chance.random() < 0.5), world, chance)


def _temporal(world: World, chance: random.Random) -> Expression | None:
    offices = [relation for relation in world.relations if relation.office]
    if not offices:
        return None
    office = chance.choice(offices)
    place = chance.choice(world.of_kind[office.of])
    term = chance.choice(world.about[place, office.name])
    when: int | Expression = chance.randint(term.start + 1, term.end - 1)
    if chance.random() < 0.5:  # a year that must be found itself
        found = [
            (thing, relation)
            for kind, relation in YEAR_OF.items()
            for thing in world.of_kind[kind]
            if term.start < world.about[thing, relation][0].value < term.end
        ]
        if not found:
            return None
        thing, relation = chance.choice(found)
        when = Of(relation, _named(world, thing, chance))
    links = chance.randint(*world.level.lead)
    return _tailed(At(office.name, _led(world, place, links, chance), when), world, chance)


_DRAWS: dict[str, Callable[[World, random.Random], Expression | None]] = {
    "bridge": _bridge,
    "comparison": _comparison,
    "intersection": _intersection,
    "count": _count,
    "superlative": _superlative,
    "temporal": _temporal,
}


# Pieces of them.


def _named(world: World, thing: int, chance: random.Random) -> Named:
    names = world.things[thing].names
    alias = len(names) > 1 and chance.random() < world.level.by_alias
    return Named(thing, names[alias])


def _led(world: World, thing: int, links: int, chance: random.Random) -> Expression:
    """An expression of so many links that comes to a thing, or of fewer where none lead on."""
    if links == 0:
        return _named(world, thing, chance)
    ways = [
        fact
        for relation in world.relations
        if not relation.office
        for fact in world.to.get((relation.name, thing), ())
        if relation.to != YEAR
    ]
    if not ways:
        return _named(world, thing, chance)
    fact = chance.choice(ways)
    before = _led(world, fact.subject, links - 1, chance)
    return Of(fact.relation, before, _noun(world, fact.relation, chance))


def _onward(
    expression: Expression,
    thing: int,
    links: int,
    world: World,
    chance: random.Random,
    *,
    years: bool = False,
) -> Expression | None:
    """A chain of so many links on from an expression that comes to a thing.

    Args:
        expression: the start.
        thing: what it comes to.
        links: how many.
        world: whose facts.
        chance: of the choice.
        years: the last link may lead to a year.
    """
    for left in range(links, 0, -1):
        ways = [
            relation
            for relation in world.relations
            if relation.of == world.things[thing].kind
            and (relation.to != YEAR or (years and left == 1))
        ]
        if not ways:
            return None
        relation = chance.choice(ways)
        fact = chance.choice(world.about[thing, relation.name])
        if relation.office:
            expression = At(relation.name, expression, chance.randint(fact.start + 1, fact.end - 1))
        else:
            expression = Of(relation.name, expression, _noun(world, relation.name, chance))
        thing = fact.value
    return expression


def _tailed(expression: Expression, world: World, chance: random.Random) -> Expression | None:
    """An expression that comes to a thing, with the level's tail behind it."""
    links = chance.randint(*world.level.tail)
    if not links:
        return expression
    found = unfold(expression, world, [])
    if len(found.values) != 1:
        return None
    return _onward(expression, found.values[0], links, world, chance, years=True)


def _those(
    world: World, relation: Relation, value: int, links: int, chance: random.Random
) -> Those:
    return Those(relation.name, _led(world, value, links, chance))


def _crowd(world: World, chance: random.Random) -> Those | None:
    """A set of at least two."""
    grouping = [relation for kind in KINDS for relation in _grouping(world, kind)]
    relation = chance.choice(grouping)
    value = chance.choice(world.of_kind[relation.to])
    if len(world.to.get((relation.name, value), ())) < 2:
        return None
    return _those(world, relation, value, chance.randint(*world.level.lead), chance)


def _grouping(world: World, kind: str) -> list[Relation]:
    """The relations by which things of a kind are grouped."""
    return [each for each in world.relations if each.of == kind and each.group]


def _noun(world: World, relation: str, chance: random.Random) -> int:
    return 0 if world.level.terse else chance.randrange(len(BY_NAME[relation].nouns))


def plainly(step: Hop, world: World) -> str:
    """A look-up as a task in words, with the usual names."""
    known = Named(step.known, world.things[step.known].name)
    if step.back:
        return f"Name {phrase(Those(step.relation, known))}."
    asked: Expression = Of(step.relation, known)
    if step.year is not None:
        asked = At(step.relation, known, step.year)
    if world.level.terse:
        return key_words(asked)
    return f"{'Who' if step.kind == 'person' else 'What'} is {phrase(asked)}?"
