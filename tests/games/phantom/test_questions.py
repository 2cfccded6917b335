"""Questions: one answer, found again by a reader who knows only the text of the pages."""

from __future__ import annotations

from collections import Counter

import pytest

from marl_llm.errors import GameError
from marl_llm.games.phantom.grammar import CROWD, question_of
from marl_llm.games.phantom.levels import LEVELS, QUESTIONS
from marl_llm.games.phantom.names import words_of
from marl_llm.games.phantom.pages import Pages
from marl_llm.games.phantom.questions import Choice, Hop, phrase, stages
from marl_llm.games.phantom.world import World

SMALL = LEVELS[5].changed({"people": 60, "places": 20, "firms": 20, "works": 40})
CASES = {"1": LEVELS[1], "2": LEVELS[2], "3": LEVELS[3], "4": LEVELS[4], "small 5": SMALL}
every_case = pytest.mark.parametrize("level", CASES.values(), ids=CASES)


def questions(level, count):
    for seed in range(count):
        world = World(level, seed)
        yield world, question_of(world)


def value_of(answer, reader):
    return reader.who.get(answer, int(answer) if answer.isdigit() else None)


@every_case
def test_every_reading_of_the_words_gives_the_one_answer(level, read):
    for world, question in questions(level, 25 if level.people < 60 else 8):
        reader = read(Pages(world))
        if level.terse:
            found = {reader.chain(question.brief)}
        else:
            found = reader.meanings(phrase(question.expression))
        assert found == {frozenset({value_of(question.answers[0], reader)})}, question.text


@every_case
def test_a_question_fits_its_level(level):
    for _, question in questions(level, 12 if level.people > 100 else 60):
        hops = [step for step in question.steps if isinstance(step, Hop)]
        assert 1 <= len(hops) <= level.calls
        assert len(stages(question.steps)) < level.planner_turns
        assert all(len(hop.facts) <= CROWD for hop in hops)
        assert question.kind in level.questions
        if question.kind == "bridge":
            assert level.links[0] <= len(hops) <= level.links[1]


@every_case
def test_the_question_does_not_name_its_answer(level):
    for world, question in questions(level, 12 if level.people > 100 else 60):
        named = world.register.named(question.text)
        things = [n for n, t in enumerate(world.things) if question.answers == t.names]
        assert named
        assert not set(things) & set(named)
        if len(question.answers[0]) == 4 and question.answers[0].isdigit():
            assert question.answers[0] not in words_of(question.text)


def test_stages_rest_on_earlier_ones_only():
    for _, question in questions(LEVELS[4], 20):
        done: set[int] = set()
        for stage in stages(question.steps):
            for number in stage:
                below = list(question.steps[number].after)
                while below:
                    step = below.pop()
                    if isinstance(question.steps[step], Choice):
                        below += question.steps[step].after
                    else:
                        assert step in done
            done |= set(stage)
        assert done == {n for n, s in enumerate(question.steps) if isinstance(s, Hop)}


def test_all_kinds_are_asked():
    kinds = Counter(question.kind for _, question in questions(LEVELS[3], 150))
    assert set(kinds) == set(QUESTIONS)
    assert min(kinds.values()) >= 5


def test_second_names_are_used():
    asked = [
        (world.things[number], question.text)
        for world, question in questions(LEVELS[3], 60)
        for number in world.register.named(question.text)
    ]
    assert sum(t.alias is not None and t.alias in text for t, text in asked) > 3


def test_a_world_without_works_can_be_asked_about():
    level = LEVELS[3].changed({"works": 0})
    kinds = {question.kind for _, question in questions(level, 60)}
    assert kinds == set(QUESTIONS)


def test_a_level_without_questions_says_so():
    level = LEVELS[3].changed({"questions": ["superlative"], "works": 0, "calls": 2})
    with pytest.raises(GameError, match="give the planner more calls"):
        question_of(World(level, 0))
