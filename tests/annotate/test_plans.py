"""Which tokens belong to which part of a reply, where sub-goals start, and what they are worth."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.plan_execute import PlanExecute
from marl_llm.annotate.plan_blocks import PlanBlocks, first_token_at
from marl_llm.annotate.plan_values import PlanValues
from marl_llm.annotate.plans import stated
from marl_llm.credit.hae import ACTION, HAE, NONE, SUB_GOAL, SWITCH
from marl_llm.errors import EpisodeError
from marl_llm.serve.tiny import build_tokenizer

KEEP = "<switch>KEEP</switch><action>{}</action>"
TO = "<switch>SWITCH</switch><subgoal>{}</subgoal><action>{}</action>"
# One vocabulary in which tags are several tokens that run over the borders, and one in which not.
CORPUS = [TO.format("find red", "look"), KEEP.format("red")] * 5
ROUGH = Chat(build_tokenizer(CORPUS, 330))
TAGS = tuple(f"<{end}{name}>" for name in ("switch", "subgoal", "action") for end in ("", "/"))
SMOOTH = Chat(build_tokenizer(CORPUS, 330, TAGS))

plain = (
    st.text(
        st.characters(exclude_characters="<>", exclude_categories=("Cs",)), min_size=1, max_size=9
    )
    .map(lambda text: " ".join(text.split()))
    .filter(bool)
)


def planner(prompt, seed):
    """Switches to looking, looks, switches to saying what it saw, says it."""
    shown = [colour for colour in ("red", "blue", "green") if f"ball is {colour}" in prompt]
    if shown and "goal say" in prompt:
        return KEEP.format(shown[0])
    if shown:
        return TO.format("say", "look")
    return KEEP.format("look") if "goal look" in prompt else TO.format("look", "look")


@pytest.fixture
def make_plans(make_material, make_table):
    def make(reply=planner, parser=PlanExecute(), **options):  # noqa: B008
        role = {"user": "{observation} goal {subgoal}", "parser": parser}
        return make_material(make_table(reply), **{"count": 4, "size": 4, **options}, **role)

    return make


def test_a_token_that_runs_over_a_border_belongs_to_where_it_begins():
    ids = ROUGH.encode(KEEP.format("red"))
    pieces = [ROUGH.decode((token,)) for token in ids]
    place = KEEP.index("<action>")
    begins = np.cumsum([0, *map(len, pieces)])[:-1]
    first = first_token_at(ROUGH, ids, place)
    assert begins[first] >= place > begins[first - 1]
    assert "><" in pieces[first - 1]  # ">" ends the switch and "<" begins the action


@pytest.mark.parametrize("chat", [ROUGH, SMOOTH], ids=["rough", "smooth"])
@given(st.none() | plain, plain, plain, st.booleans(), st.booleans())
def test_the_parts_cover_the_reply(chat, thought, subgoal, action, switch, copied):
    """Character for character, but for the tokens that run over a border."""
    parser = PlanExecute(think="optional", copied=copied)
    reply = parser.render_plan(thought, subgoal, action, switch=switch)
    plan, ids = parser.plan(reply), chat.encode(reply)
    marks = [
        0,
        *(first_token_at(chat, ids, at) for at in (plan.subgoal_at, plan.action_at)),
        len(ids),
    ]
    assert marks == sorted(marks)
    texts = [chat.decode(ids[start:end]) for start, end in pairwise(marks)]
    assert "".join(texts) == reply
    borders = [plan.subgoal_at, plan.action_at]
    for border, at in zip(borders, np.cumsum([len(text) for text in texts]), strict=False):
        assert border <= at < border + len("><")
    if chat is SMOOTH:
        assert list(np.cumsum([len(text) for text in texts])[:2]) == borders


def test_blocks_and_switches_of_an_episode(make_plans):
    material = make_plans()
    columns = PlanBlocks().annotate(material)
    turns = stated(material)
    # look (new), say (new), say it: three turns, of which two start a sub-goal.
    assert [each.turn.action for each in turns[:3]][:2] == ["look", "look"]
    assert [(each.before, each.after) for each in turns[:3]] == [
        ("none", "look"), ("look", "say"), ("say", "say"),
    ]  # fmt: skip
    assert columns["switch"][:3].tolist() == [1, 1, 0]
    assert len(columns["block"]) == len(material.batch.logprobs)
    start = 0
    for each in turns[:3]:
        blocks = columns["block"][start : start + len(each.turn.ids)]
        start += len(each.turn.ids)
        assert set(blocks) == {SWITCH, ACTION} | ({SUB_GOAL} if each.plan.switch else set())
        assert list(blocks) == sorted(blocks)


def test_a_fault_is_action_from_end_to_end_and_says_nothing_of_its_sub_goal(make_plans):
    def broken(prompt, seed):
        return planner(prompt, seed) if "hidden" in prompt else "<action>red</action>"

    material = make_plans(broken)
    columns = PlanBlocks().annotate(material)
    assert np.isnan(columns["switch"][1]) and columns["switch"][0] == 1
    first = len(material.turns[0].ids)
    assert set(columns["block"][first : first + len(material.turns[1].ids)]) == {ACTION}


def test_keep_at_the_start_starts_a_segment_all_the_same(make_plans):
    columns = PlanBlocks().annotate(make_plans(lambda prompt, seed: KEEP.format("look")))
    assert columns["switch"][:4].tolist() == [1, 0, 0, 0]
    assert SUB_GOAL not in columns["block"]


def test_copied_sub_goals_are_a_part_of_their_own(make_plans):
    def copying(prompt, seed):
        goal = prompt.partition("goal ")[2].partition("<|im_end|>")[0]
        return f"<switch>KEEP</switch><subgoal>{goal}</subgoal><action>look</action>"

    columns = PlanBlocks().annotate(make_plans(copying, PlanExecute(copied=True)))
    assert set(columns["block"]) == {SWITCH, SUB_GOAL, ACTION}
    assert columns["switch"][:2].tolist() == [1, 0]


def test_roles_without_sub_goals_are_refused(make_material, make_table, replies):
    material = make_material(make_table(replies["curious"]))
    for annotator in (PlanBlocks(), PlanValues()):
        with pytest.raises(EpisodeError, match="PlanExecute"):
            annotator.annotate(material)


def test_turns_of_a_seat_with_another_parser_are_none_of_the_parts(make_plans):
    material = make_plans(count=2, size=2)
    seat = material.reach.seats["self"]
    tags = replace(seat, role=replace(seat.role, parser=Tags(), user="{brief}"))
    first, second = material.episodes
    other = replace(first, turns=tuple(replace(turn, player="tags") for turn in first.turns))
    mixed = replace(
        material,
        episodes=(other, second),
        turns=(*other.turns, *second.turns),
        reach=replace(material.reach, seats={"self": seat, "tags": tags}),
    )
    columns, count = PlanBlocks().annotate(mixed), len(first.turns)
    tokens = sum(len(turn.ids) for turn in first.turns)
    assert set(columns["block"][:tokens]) == {NONE} and NONE not in columns["block"][tokens:]
    assert np.isnan(columns["switch"][:count]).all()
    assert not np.isnan(columns["switch"][count:]).any()


def fickle(prompt, seed):
    """One in three gives up at once; the others look and say it, under one of two sub-goals."""
    if "goal none" in prompt:
        if seed % 3 == 0:
            return TO.format("guess", "purple")  # illegal
        return TO.format("look" if seed % 3 == 1 else "see", "look")
    shown = [colour for colour in ("red", "blue", "green") if f"ball is {colour}" in prompt]
    return KEEP.format(shown[0])


def test_values_are_means_over_the_other_episodes(make_plans):
    material = make_plans(fickle, count=12, size=12, seed=2)
    columns, turns, batch = PlanValues().annotate(material), stated(material), material.batch
    paid = {episode.id: episode.returns["player_0"] for episode in material.episodes}
    firsts = [n for n, each in enumerate(turns) if each.first]
    goals = {int(batch.episode[n]): turns[n].after for n in firsts}
    assert set(goals.values()) == {"guess", "look", "see"}
    for n in firsts:
        own = int(batch.episode[n])
        others = [ret for other, ret in paid.items() if other != own]
        same = [paid[other] for other in paid if other != own and goals[other] == goals[own]]
        assert columns["value_high"][n] == pytest.approx(np.mean(others))
        assert columns["value_switch"][n] == pytest.approx(np.mean(others))  # all held "none"
        expected = np.mean(same) if same else np.nan
        assert columns["value"][n] == pytest.approx(expected, nan_ok=True)
    # In a state that nobody else met with that sub-goal nothing is known.
    assert np.isnan(PlanValues(least=99).annotate(material)["value"]).all()


def test_what_follows_a_cut_is_the_value_of_the_state_behind_it(make_plans, riddle):
    class Short(riddle):
        """Cut off after two looks."""

        def __init__(self):
            super().__init__()
            self.max_turns = 2

    def reply(prompt, seed):
        shown = [colour for colour in ("red", "blue", "green") if f"ball is {colour}" in prompt]
        if not shown:
            return TO.format("look", "look")
        return KEEP.format("look" if seed % 2 else shown[0])

    material = make_plans(reply, count=8, size=8, seed=1, makers={"riddle": Short})
    columns, batch = PlanValues().annotate(material), material.batch
    cut = np.flatnonzero(batch.truncated)
    assert 0 < len(cut) < 8
    # Nobody acted in the state with two looks: the mean return-to-go of the others' turns.
    to_go = batch.reward.copy()
    for n in np.flatnonzero(batch.agent_turn == 0):
        to_go[n] += batch.reward[n + 1]
    for n in cut:
        others = to_go[batch.episode != batch.episode[n]]
        assert columns["value_next"][n] == pytest.approx(others.mean())


def test_hae_runs_on_these_signals_and_pays_the_sub_goal_that_won(make_plans):
    material = make_plans(fickle, count=12, size=12, seed=2)
    columns = PlanBlocks().annotate(material) | PlanValues().annotate(material)
    batch = material.batch.with_signals(columns)
    credit = HAE(whiten=False).estimate(batch)
    turn = np.repeat(np.arange(len(batch)), batch.lengths)
    goal_tokens = columns["block"] == SUB_GOAL
    turns = stated(material)
    for n, each in enumerate(turns):
        if each.first:
            (advantage,) = set(credit.advantage[goal_tokens & (turn == n)].tolist())
            assert (advantage > 0) == (each.after != "guess")
