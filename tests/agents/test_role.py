import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Boxed, Tags
from marl_llm.agents.role import Role, Seat
from marl_llm.errors import ConfigError, EpisodeError
from marl_llm.types import Completion, Finish, Move, Observation, Outcome, Sampling

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_chat():
    """A chat whose tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = TEMPLATE
    return Chat(tokenizer)


CHAT = byte_chat()


def seen(text, legal=("pass", "bet")):
    return Observation("player_0", "player", text, text[:1], legal, text)


def sampled(ids, finish=Finish.STOP):
    return Completion(0, tuple(ids), (0.0,) * len(ids), (), finish)


def said(text, end=False):
    return sampled(CHAT.encode(text) + ((CHAT.end_id,) if end else ()))


def spelled(ids):
    return CHAT.tokenizer.decode(ids, skip_special_tokens=False)


replies = st.tuples(
    st.lists(st.integers(0, 255), max_size=8), st.booleans(), st.sampled_from(Finish)
).map(lambda drawn: sampled([*drawn[0], *([CHAT.end_id] if drawn[1] else [])], drawn[2]))


@given(st.lists(st.tuples(st.text("JQK pb", min_size=1), replies), min_size=2, max_size=5))
def test_each_prompt_of_a_dialogue_begins_with_the_last_one_and_its_reply(turns):
    seat = Seat(Role("player", system="{rules}", memory="dialogue"), CHAT, "Kuhn")
    before = ()
    for text, completion in turns:
        prompt = seat.prompt(seen(text))
        assert prompt[: len(before)] == before
        seat.read(completion)
        before = prompt + completion.ids


@given(
    st.lists(st.tuples(st.text("JQK pb", min_size=1), replies), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_remembering_the_last_turns_is_a_dialogue_that_began_later(turns, k):
    last = Seat(Role("player", memory=k), CHAT, "")
    for text, completion in turns:
        last.prompt(seen(text))
        last.read(completion)
    dialogue = Seat(Role("player", memory="dialogue"), CHAT, "")
    for text, completion in turns[-k:]:
        dialogue.prompt(seen(text))
        dialogue.read(completion)
    assert last.prompt(seen("now")) == dialogue.prompt(seen("now"))


def test_a_dialogue_spelled_out():
    seat = Seat(Role("player", system="{rules}", memory="dialogue"), CHAT, "Kuhn")
    seat.prompt(seen("K"))
    # Stopped by its closing tag: the turn's end is added.
    seat.read(said("<think>high</think><answer>bet</answer>"))
    seat.prompt(seen("Kpb"))
    # Sampled its own end.
    seat.read(said("<answer>bet</answer>", end=True))
    assert spelled(seat.prompt(seen("Kpbb"))) == (
        "<|im_start|>system\nKuhn<|im_end|>\n"
        "<|im_start|>user\nK<|im_end|>\n"
        "<|im_start|>assistant\n<think>high</think><answer>bet</answer><|im_end|>\n"
        "<|im_start|>user\nKpb<|im_end|>\n"
        "<|im_start|>assistant\n<answer>bet</answer><|im_end|>\n"
        "<|im_start|>user\nKpbb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_stripped_replies_hold_the_action_alone():
    seat = Seat(Role("player", memory="dialogue", thought="strip"), CHAT, "")
    seat.prompt(seen("K"))
    seat.read(said("<think>high</think>\n<answer> bet </answer>", end=True))
    seat.prompt(seen("Q"))
    seat.read(said("<think>I never finis"))  # no action: an empty reply
    assert spelled(seat.prompt(seen("J"))) == (
        "<|im_start|>user\nK<|im_end|>\n"
        "<|im_start|>assistant\n<answer>bet</answer><|im_end|>\n"
        "<|im_start|>user\nQ<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nJ<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_observation_memory_remembers_nothing():
    seat = Seat(Role("player"), CHAT, "")
    first = seat.prompt(seen("K"))
    seat.read(said("<answer>bet</answer>"))
    assert seat.prompt(seen("K")) == first == CHAT.first("", "K")


def test_reading_gives_the_move_and_the_whole_text():
    seat = Seat(Role("player"), CHAT, "")
    seat.prompt(seen("K"))
    text = "<think>high</think><answer>bet</answer>"
    assert seat.read(said(text, end=True)) == (Move("bet"), text)
    seat.prompt(seen("K"))
    assert seat.read(sampled((), Finish.CONTEXT)) == (Move(None, Outcome.CONTEXT), "")
    seat.prompt(seen("K"))
    long = f"<think>{'h' * 5000}</think><answer>bet</answer>"
    assert seat.read(said(long)) == (Move("bet"), long)


def test_asking_again_replaces_the_question():
    seat = Seat(Role("player", memory="dialogue"), CHAT, "")
    seat.prompt(seen("J"))
    seat.prompt(seen("K"))
    seat.read(said("<answer>bet</answer>"))
    assert "J" not in spelled(seat.prompt(seen("Q")))


def test_a_reply_without_a_question_is_refused():
    seat = Seat(Role("player"), CHAT, "")
    with pytest.raises(EpisodeError, match="before its prompt"):
        seat.read(said("<answer>bet</answer>"))
    seat.prompt(seen("K"))
    seat.read(said("<answer>bet</answer>"))
    with pytest.raises(EpisodeError, match="before its prompt"):
        seat.read(said("<answer>bet</answer>"))


def test_templates_are_filled_in():
    role = Role(
        "player",
        system="{agent}: {rules} {{x}}",
        user="{observation} ({brief})\nLegal: {legal}\n{format}",
        parser=Boxed(),
    )
    assert role.system_text("no {braces} read", "player_1") == "player_1: no {braces} read {x}"
    form = Boxed().instructions
    assert role.user_text("", seen("King")) == f"King (K)\nLegal: pass, bet\n{form}"
    # The game gives no list: its line is left out.
    assert role.user_text("", seen("King", legal=None)) == f"King (K)\n{form}"


def test_a_role_may_hide_the_legal_actions():
    role = Role("player", user="{observation}\nLegal: {legal}\n", list_legal=False)
    assert role.user_text("", seen("King")) == "King\n"


def test_stop_texts_of_the_parser_are_added_once():
    role = Role("player", sampling=Sampling(max_tokens=9, stop=("###", "</answer>")))
    assert role.request_sampling == Sampling(max_tokens=9, stop=("###", "</answer>"))
    assert Role("player").request_sampling.stop == ("</answer>",)
    assert Role("player", parser=Boxed()).request_sampling.stop == ()
    assert Role("player", parser=Tags(answer_tag="a")).request_sampling.stop == ("</a>",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"user": "{observatoin}"},
            "unknown placeholder {observatoin}; did you mean 'observation'",
        ),
        ({"system": "{legal}"}, "system: unknown placeholder {legal}"),
        ({"user": "{observation.text}"}, "unknown placeholder"),
        ({"user": "{}"}, "unknown placeholder {}"),
        ({"user": "\\boxed{"}, "write a plain brace twice"),
        ({"memory": "all"}, "memory is 'dialogue', 'observation' or how many"),
        ({"memory": 0}, "at least 1"),
        ({"memory": True}, "got True"),
        ({"thought": "lose"}, "'keep' or 'strip'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        Role("player", **settings)
    assert message in str(caught.value)
