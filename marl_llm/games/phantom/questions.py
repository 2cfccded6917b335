"""Expressions over the facts, and the steps that answer them.

An expression is made of the dataclasses below, from `Named` things up. `unfold` evaluates it on the
graph and writes down its steps on the way: look-ups (`Hop`), each with the facts that it finds, and
choices among what was found (`Choice`). A step knows the steps that it rests on, so steps that do
not rest on each other can be taken side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marl_llm.games.phantom.relations import BY_NAME, PLURALS, YEAR
from marl_llm.games.phantom.world import Fact, World


@dataclass(frozen=True, slots=True)
class Named:
    """A thing that the question names, and how it calls it."""

    thing: int
    name: str


@dataclass(frozen=True, slots=True)
class Of:
    """The value of a relation."""

    relation: str
    subject: Expression
    noun: int = 0  # in which words


@dataclass(frozen=True, slots=True)
class At:
    """The holder of an office in a year, given or to be found."""

    relation: str
    subject: Expression
    year: int | Expression


@dataclass(frozen=True, slots=True)
class Those:
    """All who have a value in a relation."""

    relation: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Both:
    """The one that is among both."""

    one: Those
    other: Those


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are."""

    of: Those


@dataclass(frozen=True, slots=True)
class Pick:
    """The first or the last of several by the year of a relation."""

    among: Those | tuple[Expression, ...]
    relation: str
    last: bool


Expression = Named | Of | At | Those | Both | Count | Pick


@dataclass(frozen=True, slots=True)
class Hop:
    """A look-up: what a relation leads to from what is known, or who is led to it."""

    relation: str
    known: int
    back: bool  # the subjects are wanted
    facts: tuple[Fact, ...]
    year: int | None = None  # of an office
    after: tuple[int, ...] = ()  # the steps that find `known` and `year`

    def wanted(self, fact: Fact) -> int:
        """What a report must name for this fact."""
        return fact.subject if self.back else fact.value

    @property
    def kind(self) -> str:
        """The kind of what is wanted."""
        relation = BY_NAME[self.relation]
        return relation.of if self.back else relation.to


@dataclass(frozen=True, slots=True)
class Choice:
    """What follows from look-ups: who is in both sets, how many there are, who is first or last."""

    how: Literal["both", "count", "first", "last"]
    candidates: tuple[int, ...]
    chosen: tuple[int, ...]  # of them; of a count, the number
    after: tuple[int, ...]


Step = Hop | Choice


@dataclass(frozen=True, slots=True)
class Found:
    """What an expression comes to."""

    values: tuple[int, ...]  # things, years or a count; () = it leads nowhere, or not to one
    kind: str  # of thing, YEAR or "count"
    after: tuple[int, ...] = ()  # the steps that found it


NOWHERE = Found((), "nothing")


def unfold(expression: Expression, world: World, steps: list[Step]) -> Found:
    """Evaluate an expression and append its steps.

    Where one value is needed and there is another number of them, it comes to nothing.
    """
    match expression:
        case Named(thing):
            return Found((thing,), world.things[thing].kind)
        case Of(relation, subject):
            return _value(relation, unfold(subject, world, steps), None, world, steps)
        case At(relation, subject, year):
            found = unfold(subject, world, steps)
            if isinstance(year, int):
                return _value(relation, found, Found((year,), YEAR), world, steps)
            when = unfold(year, world, steps)
            return _value(relation, found, when, world, steps)
        case Those(relation, value):
            return _subjects(relation, unfold(value, world, steps), world, steps)
        case Both(one, other):
            left, right = unfold(one, world, steps), unfold(other, world, steps)
            chosen = tuple(each for each in left.values if each in right.values)
            every = tuple(dict.fromkeys(left.values + right.values))
            return _choose("both", every, chosen, left.kind, left.after + right.after, steps)
        case Count(of):
            found = unfold(of, world, steps)
            number = (len(found.values),) if found.values else ()
            return _choose("count", found.values, number, "count", found.after, steps)
        case Pick(among, relation, last):
            return _pick(among, relation, last, world, steps)


def _value(
    relation: str, subject: Found, year: Found | None, world: World, steps: list[Step]
) -> Found:
    if len(subject.values) != 1 or (year is not None and len(year.values) != 1):
        return NOWHERE
    facts = world.about.get((subject.values[0], relation), ())
    when = None if year is None else year.values[0]
    if when is not None:
        facts = tuple(fact for fact in facts if fact.start < when < fact.end)
    if len(facts) != 1:
        return NOWHERE
    after = subject.after + (() if year is None else year.after)
    steps.append(Hop(relation, subject.values[0], False, facts, when, after))
    return Found((facts[0].value,), BY_NAME[relation].to, (len(steps) - 1,))


def _subjects(relation: str, value: Found, world: World, steps: list[Step]) -> Found:
    if len(value.values) != 1:
        return NOWHERE
    facts = tuple(world.to.get((relation, value.values[0]), ()))
    if not facts:
        return NOWHERE
    steps.append(Hop(relation, value.values[0], True, facts, None, value.after))
    return Found(tuple(fact.subject for fact in facts), BY_NAME[relation].of, (len(steps) - 1,))


def _pick(
    among: Those | tuple[Expression, ...],
    relation: str,
    last: bool,
    world: World,
    steps: list[Step],
) -> Found:
    if isinstance(among, Those):
        all_found = unfold(among, world, steps)
        found = [Found((value,), all_found.kind, all_found.after) for value in all_found.values]
    else:
        found = [unfold(each, world, steps) for each in among]
    years = [_value(relation, each, None, world, steps) for each in found]
    if len(found) < 2 or any(not year.values for year in years):
        return NOWHERE
    candidates = tuple(each.values[0] for each in found)
    best = (max if last else min)(year.values[0] for year in years)
    chosen = tuple(
        each for each, year in zip(candidates, years, strict=True) if year.values[0] == best
    )
    after = tuple(dict.fromkeys(step for each in [*found, *years] for step in each.after))
    return _choose("last" if last else "first", candidates, chosen, found[0].kind, after, steps)


def _choose(
    how: Literal["both", "count", "first", "last"],
    candidates: tuple[int, ...],
    chosen: tuple[int, ...],
    kind: str,
    after: tuple[int, ...],
    steps: list[Step],
) -> Found:
    if len(chosen) != 1 or len(set(candidates)) != len(candidates):
        return NOWHERE
    steps.append(Choice(how, candidates, chosen, after))
    return Found(chosen, kind, (len(steps) - 1,))


def stages(steps: Sequence[Step]) -> list[list[int]]:
    """The look-ups, by number: each stage rests on earlier ones only."""
    depth: list[int] = []
    for step in steps:
        below = max((depth[each] for each in step.after), default=0)
        depth.append(below + isinstance(step, Hop))
    return [
        [n for n, step in enumerate(steps) if isinstance(step, Hop) and depth[n] == stage]
        for stage in range(1, max(depth, default=0) + 1)
    ]


def phrase(expression: Expression) -> str:
    """An expression as a noun phrase."""
    match expression:
        case Named(_, name):
            return name
        case Of(relation, subject, noun):
            return "the " + BY_NAME[relation].nouns[noun].format(s=phrase(subject))
        case At(relation, subject, year):
            when = year if isinstance(year, int) else phrase(year)
            return "the " + BY_NAME[relation].nouns[0].format(s=phrase(subject), year=when)
        case Those(relation):
            return f"the {PLURALS[BY_NAME[relation].of]} {clause(expression)}"
        case Both(one, other):
            return f"the {BY_NAME[one.relation].of} {clause(one)} and {clause(other)}"
        case Count(of):
            return f"the number of {PLURALS[BY_NAME[of.relation].of]} {clause(of)}"
        case Pick(among, relation, last):
            which = f"the one with the {'latest' if last else 'earliest'} {relation}"
            if isinstance(among, Those):
                return f"{which} among {phrase(among)}"
            return f"{which} of {' and '.join(map(phrase, among))}"


def clause(those: Those) -> str:
    """A set as a clause behind its noun."""
    return BY_NAME[those.relation].group.format(v=phrase(those.value))


def key_words(expression: Expression) -> str:
    """A chain of relations in key words, outermost first."""
    match expression:
        case Of(relation, subject):
            return f"{relation} {key_words(subject)}"
        case _:
            return phrase(expression)
