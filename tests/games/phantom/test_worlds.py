"""Worlds and their pages: what the pages say is what holds, and the newer edition is right."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from marl_llm.errors import GameError
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.games.phantom.library import library_of
from marl_llm.games.phantom.names import numbers_of, words_of
from marl_llm.games.phantom.pages import Pages
from marl_llm.games.phantom.relations import DISTRACTORS, RELATIONS, YEAR
from marl_llm.games.phantom.world import World

SMALL = LEVELS[5].changed({"people": 60, "places": 20, "firms": 20, "works": 40})  # but as hard
CASES = [LEVELS[1], LEVELS[2], LEVELS[3], SMALL]
every_case = pytest.mark.parametrize("level", CASES, ids=["1", "2", "3", "small 5"])
SEEDS = range(6)


def facts_of(world):
    return {(f.subject, f.relation, f.value, f.start, f.end) for f in world.facts()}


@every_case
def test_the_newest_pages_say_what_holds_and_nothing_else(level, read):
    for seed in SEEDS:
        world = World(level, seed)
        assert read(Pages(world)).facts == facts_of(world)


def test_so_do_those_of_the_largest_world(read):
    world = World(LEVELS[5], 0)
    assert read(Pages(world)).facts == facts_of(world)


@every_case
def test_an_old_edition_is_older_and_contradicts(level, read):
    met = 0
    for seed in SEEDS:
        world = World(level, seed)
        pages = Pages(world)
        holds, reader = facts_of(world), read(pages)
        for thing, (year, held) in world.former.items():
            new, old = [pages.page(p) for p in pages.places(world.things[thing].name)]
            assert new == pages.newest(thing)
            assert old.edition == year < new.edition == world.edition[thing]
            assert old.title != new.title
            said = set(reader._facts(old))
            against = said - holds
            assert {(s, r, v) for s, r, v, *_ in against} == {
                (thing, relation, value) for relation, value in held.items()
            }
            met += len(against)
    assert (met > 0) == (level.stale > 0)


@every_case
def test_facts_have_their_cardinalities(level):
    for seed in SEEDS:
        world = World(level, seed)
        for relation in world.relations:
            for subject in world.of_kind[relation.of]:
                facts = world.about[subject, relation.name]
                assert len(facts) == (3 if relation.office else 1)
                for fact, after in pairwise(facts):
                    assert fact.start < fact.end == after.start
                for fact in facts:
                    assert fact in world.to[relation.name, fact.value]
                    if relation.to != YEAR:
                        assert world.things[fact.value].kind == relation.to
                        assert fact.value != subject
        founders = [f.value for f in world.facts() if f.relation == "founder"]
        assert len(set(founders)) == len(founders) == level.firms


@every_case
def test_no_two_things_share_a_name(level):
    for seed in SEEDS:
        world = World(level, seed)
        names = [" ".join(words_of(name)) for thing in world.things for name in thing.names]
        assert len(set(names)) == len(names)
        for number, thing in enumerate(world.things):
            for name in thing.names:
                assert world.register.named(f"So {name.upper()}, then.") == [number]


@every_case
def test_names_hold_no_word_that_asks_for_something(level):
    cues = {word for r in RELATIONS for cue in (*r.cues, *r.back_cues) for word in cue}
    for thing in World(level, 0).things:
        for name in thing.names:
            assert cues.isdisjoint(words_of(name))
            assert not numbers_of(words_of(name))


def test_every_sentence_holds_a_word_of_its_relation_and_distractors_are_told_apart():
    for relation in RELATIONS:
        for template, cues in [
            *((says, relation.cues) for says in relation.says),
            *((lists, relation.back_cues) for lists in relation.lists),
        ]:
            assert {word for cue in cues for word in cue} & set(words_of(template)), template
        assert (relation.group != "") <= (relation.lists != ())
    shapes = [re.sub(r"\{\w+\}", "", s) for some in DISTRACTORS.values() for s, _ in some]
    assert len(set(shapes)) == len(shapes)


@every_case
def test_parts_are_the_page_and_not_too_long(level):
    for page in Pages(World(level, 0)).all:
        parts = [page.part(number) for number in range(1, len(page.parts) + 1)]
        assert " ".join(parts) == page.text()
        for (first, end), text in zip(page.parts, parts, strict=True):
            assert len(text) <= level.part or end - first == 1


def test_a_seed_is_a_world_and_two_seeds_share_none():
    for level in CASES:
        first, again, other = Pages(World(level, 4)), Pages(World(level, 4)), Pages(World(level, 5))
        assert first.all == again.all
        assert first.all != other.all
    people = [{t.name for t in World(LEVELS[3], seed).things} for seed in range(8)]
    assert sum(len(a & b) for a in people for b in people if a is not b) < 8 * len(people[0])
    assert facts_of(World(LEVELS[1], 0)) != facts_of(World(LEVELS[1], 1))


def test_a_small_world_draws_from_few_names():
    words = {word for seed in range(50) for t in World(LEVELS[1], seed).things for word in t.names}
    assert len(words) <= 20
    assert all(len(words_of(word)) == 1 for word in words)


def test_a_library_is_kept_for_its_group():
    assert library_of(LEVELS[2], 7) is library_of(LEVELS[2], 7)


@pytest.mark.parametrize(
    ("knobs", "hint"),
    [
        ({"peopel": 3}, "did you mean 'people'"),
        ({"people": "many"}, "people must be int"),
        ({"people": True}, "people must be int"),
        ({"places": 1}, "places must be at least 2"),
        ({"people": 20}, "people must be at least firms"),
        ({"stale": 1.5}, "from 0 to 1"),
        ({"links": [3, 2]}, "range"),
        ({"links": [7, 7]}, "as many calls"),
        ({"questions": ["bridges"]}, "did you mean 'bridge'"),
        ({"questions": []}, "at least one"),
        ({"terse": True}, "bridges only"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(knobs, hint):
    with pytest.raises(GameError, match=hint):
        LEVELS[3].changed(knobs)
