"""Replies with a sub-goal: what counts, what is a fault, and what a seat remembers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.plan_execute import NO_SUBGOAL, PlanExecute
from marl_llm.agents.role import Role, Seat
from marl_llm.errors import ConfigError
from marl_llm.serve.tiny import build_tokenizer
from marl_llm.types import Completion, Finish, Move, Observation, Outcome

KEEP = "<switch>KEEP</switch><action>open fridge</action>"
SWITCH = "<switch>SWITCH</switch><subgoal>find apple</subgoal><action>go to fridge</action>"
COPY = "<switch>KEEP</switch><subgoal>find apple</subgoal><action>open fridge</action>"
FAULT = Move(None, Outcome.FORMAT)

words = (
    st.text(st.characters(exclude_characters="<>"), min_size=1)
    .map(lambda text: " ".join(text.split()))
    .filter(bool)
)


def parsed(reply, parser=None):
    return (parser or PlanExecute()).parse(reply, Finish.STOP)


@given(st.booleans(), st.booleans(), st.none() | words, words, words)
def test_what_is_written_is_read_back(copied, switch, thought, subgoal, action):
    parser = PlanExecute(copied=copied, think="optional")
    reply = parser.render_plan(thought, subgoal, action, switch=switch)
    plan = parser.plan(reply)
    assert parsed(reply, parser) == Move(action)
    assert (plan.switch, plan.subgoal) == (switch, subgoal if switch or copied else None)
    assert parser.go_on(subgoal, reply, Finish.STOP) == (Move(action), plan)
    assert plan.then("before") == (subgoal if switch else "before")
    assert reply[plan.action_at :] == f"<action>{action}</action>"
    block = reply[plan.subgoal_at : plan.action_at]
    assert block == (f"<subgoal>{subgoal}</subgoal>" if switch or copied else "")


def test_the_form():
    parser = PlanExecute()
    assert parser.render(None, "open fridge") == KEEP
    assert parser.render_plan(None, "find apple", "open fridge", switch=False) == KEEP
    assert parser.render_plan(None, "find apple", "go to fridge", switch=True) == SWITCH
    copying = PlanExecute(copied=True)
    assert copying.render_plan(None, "find apple", "open fridge", switch=False) == COPY
    # What there is to copy at the start.
    assert f"<subgoal>{NO_SUBGOAL}</subgoal>" in copying.render(None, "open fridge")


@pytest.mark.parametrize(
    "reply",
    [
        "open fridge",
        "<action>open fridge</action>",  # no word on the sub-goal is no KEEP
        "<switch></switch><action>open fridge</action>",
        "<switch>keep</switch><action>open fridge</action>",
        "<switch>KEEP SWITCH</switch><action>open fridge</action>",
        "<switch>maybe</switch><action>open fridge</action>",
        "<switch>KEEP<action>open fridge</action>",
        "KEEP</switch><action>open fridge</action>",
        "<switch>SWITCH</switch><action>open fridge</action>",  # to what?
        "<switch>SWITCH</switch><subgoal> </subgoal><action>open fridge</action>",
        "<switch>SWITCH</switch><subgoal>find apple<action>open fridge</action>",
        COPY,  # a sub-goal that is kept is not written
        "<switch>KEEP</switch>",
        "<switch>KEEP</switch><action></action>",
        "<switch>KEEP</switch><action>open fridge",
        "<switch>KEEP</switch> so <action>open fridge</action>",
        "<switch>KEEP</switch><action>open fridge</action>.",
        "<action>open fridge</action><switch>KEEP</switch>",
        "<subgoal>x</subgoal><switch>SWITCH</switch><action>open fridge</action>",
        "<switch>KEEP</switch><switch>KEEP</switch><action>open fridge</action>",
        "<switch>KEEP</switch><action>open <switch>fridge</action>",
        "<switch>SWITCH</switch><subgoal>x<action>y</subgoal><action>open fridge</action>",
        "<think>hm</think><switch>KEEP</switch><action>open fridge</action>",
    ],
)
def test_what_is_missing_or_out_of_place_is_a_fault(reply):
    assert parsed(reply) == FAULT
    assert PlanExecute().plan(reply) is None
    assert PlanExecute().go_on("find apple", reply, Finish.STOP) == (FAULT, None)


def test_white_space_is_free():
    reply = (
        " \n<switch> SWITCH\n</switch> <subgoal> find \n apple </subgoal>\n<action> go  </action> "
    )
    assert parsed(reply) == Move("go")
    assert PlanExecute().plan(reply).subgoal == "find apple"


def test_a_copy_must_be_one():
    parser = PlanExecute(copied=True)
    assert parsed(KEEP, parser) == FAULT  # nothing is copied
    assert parsed(COPY, parser) == Move("open fridge")
    move, plan = parser.go_on("find apple", COPY, Finish.STOP)
    assert move == Move("open fridge") and not plan.switch
    assert parser.go_on("find cup", COPY, Finish.STOP) == (FAULT, None)
    # To write another one is to switch.
    switched = COPY.replace("KEEP", "SWITCH")
    assert parser.go_on("find cup", switched, Finish.STOP)[1].then("find cup") == "find apple"


def test_a_thought_comes_first_where_one_is_allowed():
    parser = PlanExecute(think="optional")
    assert parsed(f"<think>hm</think>{KEEP}", parser) == Move("open fridge")
    assert parser.thought(f"<think> hm </think>{KEEP}") == "hm"
    assert parsed(KEEP.replace("<action>", "<think>hm</think><action>"), parser) == FAULT
    needed = PlanExecute(think="required")
    assert parsed(KEEP, needed) == FAULT
    assert needed.render(None, "open fridge") == f"<think></think>{KEEP}"
    with pytest.raises(ConfigError, match="leave the thought out"):
        PlanExecute().render("hm", "open fridge")


def test_a_late_reply_changes_no_sub_goal():
    assert PlanExecute().go_on("none", SWITCH, Finish.TIME) == (Move(None, Outcome.TIME), None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"think": "maybe"}, "'required', 'optional' or 'none'"),
        ({"switch_tag": "<s>"}, "a tag's name"),
        ({"switch_tag": "action"}, "different tags"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        PlanExecute(**settings)


def test_instructions_show_both_forms_and_no_action():
    told = PlanExecute().instructions
    assert "<switch>KEEP</switch><action>your action</action>" in told
    assert "<switch>SWITCH</switch><subgoal>your new sub-goal</subgoal><action>" in told
    assert "think" not in told
    assert "<subgoal>the same sub-goal</subgoal>" in PlanExecute(copied=True).instructions
    assert "<think>your thoughts</think><switch>" in PlanExecute(think="optional").instructions
    assert PlanExecute().stop == ("</action>",)


# What a seat remembers.

CHAT = Chat(build_tokenizer(["The goal is find apple", SWITCH, KEEP] * 3, 400))
USER = "{brief}; goal {subgoal}"


def seen(text="at fridge"):
    return Observation("player_0", "player", text, text, None, text)


def said(text, finish=Finish.STOP):
    ids = CHAT.encode(text)
    return Completion(0, ids, (0.0,) * len(ids), (), finish)


def prompt(seat):
    return CHAT.tokenizer.decode(seat.prompt(seen()), skip_special_tokens=False)


def test_a_sub_goal_is_shown_until_it_is_switched():
    seat = Seat(Role("player", user=USER, parser=PlanExecute()), CHAT, "")
    shown = []
    for reply in (KEEP, SWITCH, KEEP, KEEP, "nonsense", SWITCH.replace("apple", "cup"), KEEP):
        shown.append(prompt(seat).partition("goal ")[2].partition("<|im_end|>")[0])
        seat.read(said(reply))
    assert shown == ["none", "none", *["find apple"] * 4, "find cup"]
    assert seat.subgoal == "find cup"


def test_a_copy_that_differs_is_a_fault_of_the_reply():
    role = Role("player", user=USER, parser=PlanExecute(copied=True))
    seat = Seat(role, CHAT, "")
    seat.prompt(seen())
    assert seat.read(said(COPY))[0] == FAULT  # the sub-goal is "none" yet
    seat.prompt(seen())
    assert seat.read(said(SWITCH))[0] == Move("go to fridge")
    seat.prompt(seen())
    assert seat.read(said(COPY))[0] == Move("open fridge")
    assert seat.subgoal == "find apple"


@given(st.lists(st.sampled_from([KEEP, SWITCH, SWITCH.replace("apple", "cup"), "?"]), max_size=6))
def test_what_is_recalled_is_what_was_read(replies):
    role = Role("player", user=USER, parser=PlanExecute())
    read, told = Seat(role, CHAT, ""), Seat(role, CHAT, "")
    for reply in replies:
        read.prompt(seen())
        read.read(said(reply))
        told.recall(seen(), said(reply))
        assert told.subgoal == read.subgoal
        assert told.prompt(seen()) == read.prompt(seen())


def test_stripped_replies_keep_their_sub_goals():
    parser = PlanExecute(think="optional")
    role = Role("player", user=USER, parser=parser, memory="dialogue", thought="strip")
    seat = Seat(role, CHAT, "")
    for reply in (f"<think>hm</think>{SWITCH}", f"<think>hm</think>{KEEP}"):
        seat.prompt(seen())
        seat.read(said(reply))
    told = prompt(seat)
    assert SWITCH in told and KEEP in told and "hm" not in told


def test_a_role_shows_the_sub_goal_if_and_only_if_it_has_one():
    with pytest.raises(ConfigError, match="PlanExecute"):
        Role("player", user="{brief}", parser=PlanExecute())
    with pytest.raises(ConfigError, match="the parser is Tags"):
        Role("player", user=USER, parser=Tags())


def test_long_replies_are_read_like_short_ones():
    seat = Seat(Role("player", user=USER, parser=PlanExecute(think="optional")), CHAT, "")
    seat.prompt(seen())
    assert seat.read(said(f"<think>{'h' * 3000}</think>{SWITCH}"))[0] == Move("go to fridge")
    assert seat.subgoal == "find apple"
