"""What a task in free words asks for, and how right a report on it is. Nobody judges; words decide.

**What a task asks for.** A look-up of the question is asked for if the task holds a cue of its
relation and names what is known, by any of its names; or if what is known is itself found by a
look-up that is asked for ("the birthplace of the mentor of X" asks for two). Going on by the same
relation takes a cue more. A choice (who is in
both sets, how many, first or last) is asked for if all that it rests on is, and the task has a word
for it. A task that asks for nothing of the question may still ask for facts of one relation of the
things that it names; those then count. Any other task asks for nothing.

**How right a report is.**

    right = min(1, max(0, (reported - unsupported) / asked))

``asked`` is the number of facts of all look-ups asked for, and 0 of them makes any report wrong.
``reported`` are those whose wanted end the report names: the value, or the subject where subjects
are wanted. What a reported fact rests on counts as reported too, and everything that a choice rests
on if the report names, of the candidates, the chosen one only, or their number and no other. So the
end of a chain alone is a right report on the chain, and half of the chain is half right.
``unsupported`` are the things and years that the report names though the task does not, and that
are neither asked for nor known: all of a kind that is asked for, and of other kinds those that no
fact that holds connects with what the task is about. Years after 1999 are taken for editions.

What this cannot see: a report that denies ("not in X") counts as if it said it, and a planner that
writes a whole question as context into a task asks for all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from marl_llm.games.phantom.names import numbers_of, words_of
from marl_llm.games.phantom.questions import Choice, Hop, Step
from marl_llm.games.phantom.relations import BY_NAME, YEAR, Cues
from marl_llm.games.phantom.world import Fact, World

FIRST_YEAR, LAST_YEAR = 1600, 1999  # of what pages tell; later ones are years of editions

_WORDS = {
    "first": {"first", "earliest", "earlier", "oldest", "older", "before"},
    "last": {"last", "latest", "later", "newest", "youngest", "younger", "after"},
    "count": {"many", "number", "count"},
}

Asked = Mapping[int, Step]  # by number; the numbers that a step rests on are among them
Point = tuple[str, int]  # what a text can name: ("thing", its number), ("year", 1950), ("count", 4)


def asked_by(task: str, steps: tuple[Step, ...], world: World) -> Asked:
    """What a task asks for.

    Args:
        task: any text.
        steps: of the question.
        world: whose names and facts.
    """
    words = Counter(words_of(task))
    known = points_of(task, world)
    asked: dict[int, Step] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Hop):
            relation = BY_NAME[step.relation]
            cues = relation.back_cues if step.back else relation.cues
            found = {end for each in step.after if each in asked for end in _ends(asked[each])}
            again = sum(_same(step, each) for each in _beneath(step, asked).values())
            if (
                _given(step) <= known | found
                and _mentions(words, cues) > 0
                and _mentions(words, relation.cues + relation.back_cues, 1 + again) > again
            ):
                asked[number] = step
        elif set(step.after) <= asked.keys() and (
            step.how == "both" or not _WORDS[step.how].isdisjoint(words)
        ):
            asked[number] = step
    return asked or _off_question(words, known, world)


def rightness(report: str, task: str, asked: Asked, world: World) -> float:
    """How right a report on a task is, 0 to 1; see the top of this file.

    Args:
        report: any text.
        task: in whose words the planner asked.
        asked: what the task asks for.
        world: whose names and facts.
    """
    facts = _facts(asked)
    if not facts:
        return 0.0
    said = points_of(report, world)
    reported: set[tuple[int, Fact]] = set()
    for number, step in asked.items():
        if isinstance(step, Choice):
            if _chosen(step, said):
                reported |= _facts(_beneath(step, asked))
            continue
        for fact in step.facts:
            if _end(step, fact) in said:
                reported |= {(number, fact), *_support(step, asked)}
    wrong = _unsupported(said, points_of(task, world), asked, world)
    return min(1.0, max(0.0, (len(reported) - len(wrong)) / len(facts)))


def told_by(asked: Asked, world: World) -> list[str]:
    """What a right report names: the wanted ends of what is asked for, or the choice alone."""
    last = asked[max(asked)] if asked else None
    told = (
        _ends(last)
        if isinstance(last, Choice)
        else [end for step in asked.values() for end in _ends(step)]
    )
    return list(
        dict.fromkeys(
            world.things[value].name if what == "thing" else str(value) for what, value in told
        )
    )


def points_of(text: str, world: World) -> set[Point]:
    """The things, years and small numbers that a text names."""
    points: set[Point] = {("thing", thing) for thing in world.register.named(text)}
    for number in numbers_of(words_of(text)):
        if number <= LAST_YEAR:
            points.add(("year" if number >= FIRST_YEAR else "count", number))
    return points


def _mentions(words: Counter[str], cues: Cues, most: int = 1) -> int:
    """How many cues the words hold, none of them used twice; no more than `most` are counted."""
    if most == 0:
        return 0
    found = 0
    for cue in cues:
        if all(words[word] for word in cue):
            found = max(found, 1 + _mentions(words - Counter(cue), cues, most - 1))
            if found == most:
                break
    return found


def _given(hop: Hop) -> set[Point]:
    """What one must know for a look-up."""
    known: Point = ("thing", hop.known)
    return {known} if hop.year is None else {known, ("year", hop.year)}


def _end(hop: Hop, fact: Fact) -> Point:
    """What a report must name for a fact."""
    return ("year" if hop.kind == YEAR else "thing", hop.wanted(fact))


def _ends(step: Step) -> list[Point]:
    """What a step finds."""
    if isinstance(step, Hop):
        return [_end(step, fact) for fact in step.facts]
    return [("count" if step.how == "count" else "thing", each) for each in step.chosen]


def _facts(asked: Asked) -> set[tuple[int, Fact]]:
    return {
        (number, fact)
        for number, step in asked.items()
        if isinstance(step, Hop)
        for fact in step.facts
    }


def _same(one: Hop, other: Step) -> bool:
    """Whether the same words may ask for both."""
    return isinstance(other, Hop) and one.relation == other.relation


def _beneath(step: Step, asked: Asked) -> dict[int, Step]:
    """All steps that a step rests on, as far as they are asked for."""
    found: dict[int, Step] = {}
    for number in step.after:
        if number in asked:
            found[number] = asked[number]
            found |= _beneath(asked[number], asked)
    return found


def _support(hop: Hop, asked: Asked) -> set[tuple[int, Fact]]:
    """The facts that a look-up rests on: those that find what it must know, and all beneath."""
    found: set[tuple[int, Fact]] = set()
    for number in hop.after:
        step = asked.get(number)
        if isinstance(step, Choice):
            found |= _facts(_beneath(step, asked))
        elif step is not None:
            some = [fact for fact in step.facts if _end(step, fact) in _given(hop)]
            if some:
                found |= {*((number, fact) for fact in some), *_support(step, asked)}
    return found


def _chosen(choice: Choice, said: set[Point]) -> bool:
    """Whether a report makes this choice and no other."""
    if choice.how == "count":
        return {point for point in said if point[0] == "count"} == {*_ends(choice)}
    return said & {("thing", each) for each in choice.candidates} == {*_ends(choice)}


def _unsupported(said: set[Point], known: set[Point], asked: Asked, world: World) -> set[Point]:
    """What a report names without a reason."""
    settled = set(known)
    for step in asked.values():
        settled |= {*_ends(step), *(_given(step) if isinstance(step, Hop) else ())}
    kinds = {step.kind for step in asked.values() if isinstance(step, Hop)}
    counts = any(isinstance(step, Choice) and step.how == "count" for step in asked.values())
    wrong: set[Point] = set()
    for point in said - settled:
        what, value = point
        if what == "count":
            unfounded = counts
        elif (YEAR if what == "year" else world.things[value].kind) in kinds:
            unfounded = True
        else:
            unfounded = not _connected(point, settled, world)
        if unfounded:
            wrong.add(point)
    return wrong


def _connected(point: Point, settled: set[Point], world: World) -> bool:
    """Whether a fact that holds has this at one end and something settled at the other."""
    what, value = point
    for relation in world.relations:
        if (relation.to == YEAR) == (what == "year") and any(
            ("thing", fact.subject) in settled for fact in world.to.get((relation.name, value), ())
        ):
            return True
        if what == "thing" and any(
            ("year" if relation.to == YEAR else "thing", fact.value) in settled
            for fact in world.about.get((value, relation.name), ())
        ):
            return True
    return False


def _off_question(words: Counter[str], known: set[Point], world: World) -> Asked:
    """The facts of one relation of the things that a task names; {} if there are several such."""
    hops: list[Hop] = []
    years = [value for what, value in known if what == "year"]
    for thing in sorted(value for what, value in known if what == "thing"):
        kind = world.things[thing].kind
        for relation in world.relations:
            if relation.of == kind and _mentions(words, relation.cues):
                facts = world.about[thing, relation.name]
                then = tuple(f for f in facts if any(f.start < year < f.end for year in years))
                hops.append(Hop(relation.name, thing, False, then or facts))
            elif relation.to == kind and _mentions(words, relation.back_cues):
                facts = tuple(world.to.get((relation.name, thing), ()))
                hops.append(Hop(relation.name, thing, True, facts))
    alike = {(hop.relation, hop.back) for hop in hops}
    return dict(enumerate(hops)) if len(alike) == 1 else {}
