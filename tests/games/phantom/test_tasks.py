"""What tasks ask for and how right reports are: a world made by hand, and all worlds by law."""

from __future__ import annotations

import pytest

from marl_llm.games.phantom.grammar import plainly, question_of
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.games.phantom.names import normalised, numbers_of
from marl_llm.games.phantom.questions import (
    At,
    Both,
    Choice,
    Count,
    Hop,
    Named,
    Of,
    Pick,
    Those,
    unfold,
)
from marl_llm.games.phantom.relations import BY_NAME, YEAR
from marl_llm.games.phantom.tasks import asked_by, rightness, told_by
from marl_llm.games.phantom.world import Fact, Thing, World

THINGS = (
    Thing("Vexu Zor", "person", "Ulqor"),
    Thing("Jarx Zor", "person"),
    Thing("Quvo Xel", "person"),
    Thing("Zuvek", "place", "Oldzuv"),
    Thing("Qorxa", "place"),
    Thing("Jubqo Press", "firm"),
    Thing("The Salt Wyx", "work"),
    Thing("The Glass Wyx", "work"),
    Thing("The Paper Oxa", "work"),
)
VEXU, JARX, QUVO, ZUVEK, QORXA, JUBQO, SALT, GLASS, PAPER = range(len(THINGS))
FACTS = (
    Fact(SALT, "author", VEXU),
    Fact(GLASS, "author", VEXU),
    Fact(PAPER, "author", QUVO),
    Fact(SALT, "publication year", 1905),
    Fact(GLASS, "publication year", 1950),
    Fact(PAPER, "publication year", 1920),
    Fact(SALT, "publisher", JUBQO),
    Fact(GLASS, "publisher", JUBQO),
    Fact(PAPER, "publisher", JUBQO),
    Fact(VEXU, "birthplace", ZUVEK),
    Fact(JARX, "birthplace", ZUVEK),
    Fact(QUVO, "birthplace", QORXA),
    Fact(VEXU, "birth year", 1860),
    Fact(QUVO, "birth year", 1850),
    Fact(VEXU, "mentor", QUVO),
    Fact(JARX, "mentor", QUVO),
    Fact(QUVO, "mentor", JARX),
    Fact(ZUVEK, "mayor", JARX, 1900, 1920),
    Fact(ZUVEK, "mayor", QUVO, 1920, 1940),
)


class Made(World):
    """The world above; what else holds in it, nobody has written down."""

    def __init__(self):
        self.level, self.seed, self.things = LEVELS[3], 0, THINGS
        self.relations = tuple(BY_NAME[name] for name in {fact.relation for fact in FACTS})
        self.about, self.to = {}, {}
        for fact in FACTS:
            key = (fact.subject, fact.relation)
            self.about[key] = (*self.about.get(key, ()), fact)
            self.to.setdefault((fact.relation, fact.value), []).append(fact)


WORLD = Made()


def named(thing):
    return Named(thing, THINGS[thing].name)


def steps_of(expression):
    steps = []
    assert unfold(expression, WORLD, steps).values
    return tuple(steps)


BORN = Of("birthplace", Of("author", named(SALT)))
TWICE = Of("mentor", Of("mentor", named(VEXU)))
EARLIEST = Pick(Those("author", named(VEXU)), "publication year", last=False)
OLDER = Pick((Of("author", named(SALT)), Of("author", named(PAPER))), "birth year", last=False)
PUPIL = Both(Those("birthplace", named(ZUVEK)), Those("mentor", named(QUVO)))
MANY = Count(Those("author", named(VEXU)))
MAYOR = At("mayor", named(ZUVEK), Of("publication year", named(SALT)))
THEN = At("mayor", named(ZUVEK), 1910)

WHICH = "Which of the works by Vexu Zor has the earliest publication year?"
WHOSE = "Whose birth year is earlier: the author's of Salt Wyx or the author's of Paper Oxa?"


@pytest.mark.parametrize(
    ("expression", "task", "report", "right"),
    [
        # One fact is asked for. Any name of the right thing will do, whatever the form.
        (BORN, "Who is the author of The Salt Wyx?", "Vexu Zor", 1),
        (BORN, "Who is the author of The Salt Wyx?", "It was written by  VEXU  ZOR.", 1),
        (BORN, "who wrote the salt wyx", "Ulqor", 1),
        (BORN, "Who is the author of The Salt Wyx?", "Zor", 0),
        (BORN, "Who is the author of The Salt Wyx?", "nobody", 0),
        (BORN, "Who is the author of The Salt Wyx?", "Quvo Xel", 0),
        # (1 reported - 1 unsupported) / 1: a second guess undoes the first.
        (BORN, "Who is the author of The Salt Wyx?", "Vexu Zor or Quvo Xel", 0),
        # A true word more is no harm where it is of another kind; an untrue one is.
        (BORN, "Who is the author of The Salt Wyx?", "Vexu Zor, born in Zuvek in 1860", 1),
        (BORN, "Who is the author of The Salt Wyx?", "Vexu Zor, born in Qorxa", 0),
        (BORN, "Who is the author of The Salt Wyx?", "Vexu Zor, born in 1850", 0),
        (BORN, "Who is the author of The Salt Wyx?", "Vexu Zor, by the edition of 2015", 1),
        # Two facts are asked for. The end of the chain stands for all of it: 2/2, 1/2, (2-1)/2.
        (BORN, "Where was the author of The Salt Wyx born?", "Zuvek", 1),
        (BORN, "Where was the author of The Salt Wyx born?", "Oldzuv", 1),
        (BORN, "Where was the author of The Salt Wyx born?", "Vexu Zor, in Zuvek", 1),
        (BORN, "Where was the author of The Salt Wyx born?", "Vexu Zor", 0.5),
        (BORN, "Where was the author of The Salt Wyx born?", "Zuvek or Qorxa", 0.5),
        (BORN, "Where was the author of The Salt Wyx born?", "Qorxa", 0),
        # The same relation twice is asked for by saying it twice.
        (TWICE, "Who is the mentor of Vexu Zor?", "Quvo Xel", 1),
        (TWICE, "Who is the mentor of Vexu Zor?", "Jarx Zor", 0),
        (TWICE, "Who is the mentor of the teacher of Vexu Zor?", "Jarx Zor", 1),
        (TWICE, "Who is the mentor of the teacher of Vexu Zor?", "Quvo Xel", 0.5),
        # A set: 1/2, 2/2, (2-1)/2.
        (EARLIEST, "List the works written by Vexu Zor.", "The Salt Wyx", 0.5),
        (EARLIEST, "List the works written by Vexu Zor.", "Glass Wyx; Salt Wyx", 1),
        (EARLIEST, "Works by Ulqor?", "Glass Wyx, Salt Wyx, Paper Oxa", 0.5),
        # A choice stands for all it rests on (two members, two years), if it is one.
        (EARLIEST, WHICH, "Salt Wyx", 1),
        (EARLIEST, WHICH, "Glass Wyx", 0.25),
        (EARLIEST, WHICH, "Glass Wyx, Salt Wyx", 0.5),
        (EARLIEST, WHICH, "The Glass Wyx in 1950, The Salt Wyx in 1905", 1),
        # Of two chains: two authors, two years.
        (OLDER, WHOSE, "Quvo Xel", 1),
        (OLDER, WHOSE, "1860; 1850", 1),
        (OLDER, WHOSE, "Ulqor", 0.25),
        (OLDER, "When was Quvo Xel born?", "1850", 1),
        (OLDER, "When was Quvo Xel born?", "1850 or 1860", 0),
        (MANY, "How many works did Vexu Zor write?", "2", 1),
        (MANY, "How many works did Vexu Zor write?", "two: Salt Wyx, Glass Wyx", 1),
        (MANY, "How many works did Vexu Zor write?", "3", 0),
        (MANY, "How many works did Vexu Zor write?", "2 or 3", 0),
        (MANY, "Which works did Vexu Zor write?", "2", 0),
        # An office hangs on its year, named or found: the year and its holder, 2/2 and 1/2.
        (MAYOR, "Who was mayor of Zuvek in the publication year of The Salt Wyx?", "Jarx Zor", 1),
        (MAYOR, "Who was mayor of Zuvek in the publication year of The Salt Wyx?", "1905", 0.5),
        (THEN, "Who was mayor of Zuvek in 1910?", "Jarx Zor", 1),
        (THEN, "Who was mayor of Oldzuv in 1910?", "Quvo Xel", 0),
        # Off the question: the facts of the one relation that is named, or nothing.
        (BORN, "Who is the mentor of Jarx Zor?", "Quvo Xel", 1),
        (BORN, "Who was mayor of Zuvek in 1930?", "Quvo Xel", 1),
        (BORN, "Who are the pupils of Quvo Xel?", "Vexu Zor", 0.5),
        (BORN, "Tell me all about Jarx Zor.", "Quvo Xel", 0),
        (BORN, "Find the answer.", "Zuvek", 0),
        (BORN, "", "Zuvek", 0),
    ],
)  # fmt: skip
def test_rightness_by_hand(expression, task, report, right):
    asked = asked_by(task, steps_of(expression), WORLD)
    assert rightness(report, task, asked, WORLD) == pytest.approx(right)


def test_what_has_several_answers_or_none_comes_to_nothing():
    both_works = Both(Those("author", named(VEXU)), Those("publisher", named(JUBQO)))
    two_at_once = At("mayor", named(ZUVEK), Of("publication year", named(PAPER)))  # terms meet
    no_such = Those("mentor", named(VEXU))
    for expression in (both_works, two_at_once, no_such, Count(no_such), Both(no_such, no_such)):
        assert unfold(expression, WORLD, []).values == ()


def test_a_choice_between_sets_is_asked_for_with_both_sets():
    world = Made()
    world.to["mentor", QUVO] = [Fact(VEXU, "mentor", QUVO)]  # now only one of Zuvek's is a pupil
    steps = []
    assert unfold(PUPIL, world, steps).values == (VEXU,)
    task = "Who was born in Zuvek and taught by Quvo Xel?"
    asked = asked_by(task, tuple(steps), world)
    assert isinstance(asked[2], Choice)
    assert rightness("Vexu Zor", task, asked, world) == 1
    # Three facts are asked for; both of those born in Zuvek are named, and so the pupil: 3/3.
    assert rightness("Vexu Zor and Jarx Zor", task, asked, world) == 1
    assert rightness("Jarx Zor", task, asked, world) == pytest.approx(1 / 3)


@pytest.mark.parametrize("number", LEVELS)
def test_a_plain_task_asks_for_its_look_up_and_can_be_done(number):
    level = LEVELS[number]
    for seed in range({4: 15, 5: 3}.get(number, 60)):
        world = World(level, seed)
        question = question_of(world)
        for place, step in enumerate(question.steps):
            if not isinstance(step, Hop):
                continue
            task = plainly(step, world)
            asked = asked_by(task, question.steps, world)
            assert asked == {place: step}, task
            told = told_by(asked, world)
            assert rightness("; ".join(told), task, asked, world) == 1, task
            assert rightness("nothing", task, asked, world) == 0
            wanted = {str(v) if step.kind == YEAR else world.things[v].name
                      for v in map(step.wanted, step.facts)}  # fmt: skip
            assert set(told) == wanted


@pytest.mark.parametrize("number", LEVELS)
def test_the_whole_question_as_a_task_asks_for_all_and_its_answer_is_right(number):
    level = LEVELS[number]
    for seed in range({4: 15, 5: 3}.get(number, 60)):
        world = World(level, seed)
        question = question_of(world)
        asked = asked_by(question.text, question.steps, world)
        assert asked == dict(enumerate(question.steps)), question.text
        for answer in question.answers:
            assert rightness(answer, question.text, asked, world) == 1, question.text


def test_texts_are_compared_without_case_articles_punctuation_and_spaces():
    assert normalised("  The SALT-Wyx! ") == normalised("salt wyx") == "salt wyx"
    assert normalised("three") == normalised("3.")
    assert normalised("\ud800\x00") == ""
    assert numbers_of(["one", "two", "12345", "1950", "²"]) == {2, 1950}
