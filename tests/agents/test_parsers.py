import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.agents.parsers import Boxed, Tags
from marl_llm.agents.plan_execute import PlanExecute
from marl_llm.errors import ConfigError
from marl_llm.types import FORFEITS, Finish, Move, Outcome

PARSERS = (
    Tags(),
    Tags(think="required"),
    Tags(think="none"),
    Tags(opened=True),
    Tags(think_tag="t", answer_tag="a"),
    Boxed(),
    PlanExecute(),
    PlanExecute(copied=True),
    PlanExecute(think="optional"),
    PlanExecute(think="required", copied=True),
    PlanExecute(switch_tag="s", subgoal_tag="g", action_tag="a"),
)
THOUGHTLESS = (
    Tags(think="none"),
    *(parser for parser in PARSERS if isinstance(parser, PlanExecute) and parser.think == "none"),
)
FRAGMENTS = (
    "<think>", "</think>", "<answer>", "</answer>", "<t>", "</a>", r"\boxed{", "{", "}", "\x00",
    "\ufffd", "bet", "Bet", " ", "\n", "<", ">", "/", "\\", "<switch>", "</switch>", "<subgoal>",
    "</subgoal>", "<action>", "</action>", "KEEP", "SWITCH", "<s>", "</s>", "<g>", "</g>", "<a>",
)  # fmt: skip

words = st.text(st.characters(exclude_characters="<>{}\\"), min_size=1).map(
    lambda text: " ".join(text.split())
)
actions = words.filter(bool)
hostile = st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))


@pytest.mark.parametrize("parser", PARSERS)
@given(thought=st.none() | words, action=actions)
def test_a_rendered_action_is_read_back(parser, thought, action):
    if parser in THOUGHTLESS:
        thought = None
    reply = parser.render(thought, action)
    assert parser.parse(reply, Finish.STOP) == Move(action)
    assert reply == parser.before_action(thought) + parser.action_text(action)
    assert (parser.thought(reply) or None) == (thought or None)


@pytest.mark.parametrize("parser", PARSERS)
@given(reply=hostile, finish=st.sampled_from(Finish))
def test_any_text_is_a_move_and_what_is_read_can_be_written(parser, reply, finish):
    move = parser.parse(reply, finish)
    parser.thought(reply)
    if move.fault is not None:
        assert move.fault in FORFEITS
    else:
        assert parser.parse(parser.render(None, move.action), Finish.STOP) == move


@pytest.mark.parametrize(
    "reply",
    [
        "<think>x</think><answer>bet</answer>",
        "  <think>\n x \n</think>\n\n<answer>\n bet\t</answer>\n",
        "<think></think><answer>bet</answer>",
        "<answer>bet</answer>",
        "<think>if a < b > c </ think></think><answer>bet</answer>",
    ],
)
def test_tags_accepts(reply):
    assert Tags().parse(reply, Finish.STOP) == Move("bet")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "bet",
        "<answer></answer>",
        "<answer> \n </answer>",
        "<answer>bet",
        "bet</answer>",
        "<answer>bet</answer>.",  # anchored at both ends
        "I will <answer>bet</answer>",
        "<answer>bet</answer><answer>bet</answer>",  # exactly one action
        "<answer>bet</answer></answer>",
        "<think><answer>pass</answer></think><answer>bet</answer>",
        "<think>a</think><think>b</think><answer>bet</answer>",
        "<think>a</think> and so <answer>bet</answer>",
        "<answer><think>a</think>bet</answer>",
        "<answer>bet</answer><think>a</think>",
        "<think>a<answer>bet</answer>",
        "a</think><answer>bet</answer>",
        "<Answer>bet</Answer>",  # tags are read as spelled
    ],
)
def test_tags_refuses(reply):
    assert Tags().parse(reply, Finish.STOP) == Move(None, Outcome.FORMAT)


def test_the_thought_rule():
    bare, thoughtful = "<answer>bet</answer>", "<think>x</think><answer>bet</answer>"
    assert Tags(think="required").parse(bare, Finish.STOP).fault is Outcome.FORMAT
    assert Tags(think="required").render(None, "bet") == "<think></think><answer>bet</answer>"
    assert Tags(think="none").parse(thoughtful, Finish.STOP).fault is Outcome.FORMAT
    with pytest.raises(ConfigError, match="leave the thought out"):
        Tags(think="none").render("x", "bet")


def test_a_thought_that_the_prompt_opened():
    parser = Tags(opened=True)
    assert parser.render("x", "bet") == "x</think><answer>bet</answer>"
    assert parser.parse("x</think><answer>bet</answer>", Finish.STOP) == Move("bet")
    # Opened twice, or never closed.
    for reply in ("<think>x</think><answer>bet</answer>", "<answer>bet</answer>"):
        assert parser.parse(reply, Finish.STOP).fault is Outcome.FORMAT


def test_case_and_spaces_of_an_action():
    assert Tags().parse("<answer> Discard   CARD\n0 </answer>", Finish.STOP) == Move(
        "Discard CARD 0"
    )
    assert Boxed().parse(r"\boxed{ Discard   CARD 0}", Finish.STOP) == Move("Discard CARD 0")


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (r"\boxed{bet}", "bet"),
        (r"I could \boxed{pass}, but no: \boxed{bet}. Done.", "bet"),  # the last one counts
        (r"\boxed{f{x{1}}{2}} {", "f{x{1}}{2}"),  # nested braces belong to the action
        (r"\boxed{pass} \boxed{bet", None),  # ... and none takes the place of an open one
        (r"\boxed{pass} \boxed{}", None),
        (r"boxed{bet}", None),
        ("bet", None),
        ("", None),
    ],
)
def test_boxes(reply, action):
    expected = Move(action) if action else Move(None, Outcome.FORMAT)
    assert Boxed().parse(reply, Finish.STOP) == expected


def test_thought_before_a_box():
    assert Boxed().thought("let me see\n\\boxed{a} no \\boxed{b}") == "let me see\n\\boxed{a} no"
    assert Boxed().thought(r"\boxed{b}") is None
    assert Boxed().thought("nothing") is None


@pytest.mark.parametrize("parser", [Tags(), Boxed(), PlanExecute(think="optional")])
def test_how_sampling_ended(parser):
    whole = parser.render("x", "bet")
    cut = whole[:-3]
    for finish, fault in (
        (Finish.LENGTH, Outcome.LENGTH),
        (Finish.CONTEXT, Outcome.CONTEXT),
        (Finish.STOP, Outcome.FORMAT),
    ):
        # A complete reply counts even if a limit fell on its last token; a cut one is a fault.
        assert parser.parse(whole, finish) == Move("bet")
        assert parser.parse(cut, finish) == Move(None, fault)
        assert parser.parse("", finish) == Move(None, fault)
    # Late is late.
    assert parser.parse(whole, Finish.TIME) == Move(None, Outcome.TIME)


def test_a_cut_reply_with_text_after_its_box_might_have_gone_on_to_another():
    reply = r"\boxed{pass} or rather"
    assert Boxed().parse(reply, Finish.STOP) == Move("pass")
    assert Boxed().parse(reply, Finish.LENGTH) == Move(None, Outcome.LENGTH)


@pytest.mark.parametrize(
    ("parser", "thought", "action"),
    [
        (Tags(), None, "a</answer>"),
        (Tags(), "</think>", "a"),
        (Tags(), "<answer>", "a"),
        (Tags(), None, "a  b"),
        (Tags(), None, " a"),
        (Tags(), None, ""),
        (Boxed(), None, "a}"),
        (Boxed(), None, "{a"),
        (Boxed(), None, r"\boxed{a}"),
        (Boxed(), None, ""),
        (PlanExecute(), None, "a</action>"),
        (PlanExecute(), None, "<switch>"),
        (PlanExecute(), None, "a  b"),
        (PlanExecute(), None, ""),
        (PlanExecute(think="optional"), "<action>", "a"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(parser, thought, action):
    with pytest.raises(ConfigError, match="rename it in the game"):
        parser.render(thought, action)


@pytest.mark.parametrize(
    "parser", [Tags(), Tags(opened=True), Boxed(), PlanExecute(think="optional")]
)
@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 150_000,
        "<answer>" * 150_000 + "</answer>",
        "</answer>" * 120_000,
        "<think>" + "</think" * 150_000 + "<answer>a</answer>",
        "<answer>" + " \n" * 500_000 + "a</answer>",
        "\\boxed{" * 150_000,
        "\\boxed{" + "{" * 1_000_000,
        "\\boxed{" + "{}" * 500_000,
        "\x00" * 1_000_000,
        "<switch>" * 150_000,
        "<switch>KEEP</switch>" + " \n" * 500_000 + "<action>a</action>",
        "<think>" + "<action" * 150_000 + "</think><switch>KEEP</switch><action>a</action>",
    ],
)
def test_a_megabyte_of_tags_takes_linear_time(parser, text):
    # Well under a second on an idle core; a quadratic scan of these texts would take minutes.
    start = time.process_time()
    assert isinstance(parser.parse(text, Finish.LENGTH), Move)
    assert time.process_time() - start < 5.0


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="'required', 'optional' or 'none'"):
        Tags(think="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="opened"):
        Tags(think="none", opened=True)
    with pytest.raises(ConfigError, match="a tag's name"):
        Tags(think_tag="<think>")
    with pytest.raises(ConfigError, match="different tags"):
        Tags(think_tag="x", answer_tag="x")


def test_instructions_show_the_form_and_no_action():
    assert "<think>your thoughts</think><answer>your action</answer>" in Tags().instructions
    assert "think" not in Tags(think="none").instructions
    assert r"\boxed{your action}" in Boxed().instructions
    assert Tags().stop == ("</answer>",)
    assert Boxed().stop == ()
