from hypothesis import given
from hypothesis import strategies as st

from marl_llm.serve.stop_strings import StopScan, TokenTexts


def byte_texts():
    """A vocabulary of single bytes."""
    return TokenTexts(lambda ids: bytes(ids).decode("utf-8", errors="replace"), [ord("a")])


def stop_at(text, stops):
    """How many tokens (bytes) are read until a stop string is complete, or None."""
    scan = StopScan(stops, byte_texts())
    for count, token in enumerate(text.encode() if isinstance(text, str) else text, 1):
        if scan.found(token):
            return count
    return None


def test_a_stop_string_spans_tokens():
    assert stop_at("go left</answer> now", ("</answer>",)) == len("go left</answer>")
    assert stop_at("go left</answe now", ("</answer>",)) is None


def test_the_earliest_of_several_counts():
    assert stop_at("one two three", ("three", "wo")) == len("one two")


def test_characters_of_several_tokens():
    assert stop_at("aé€😀b", ("😀",)) == len("aé€😀".encode())
    assert stop_at("aé€b", ("é€",)) == len("aé€".encode())


def test_text_before_an_incomplete_character_is_seen_at_once():
    texts = TokenTexts(
        lambda ids: b"".join([b"a", b"stop\xf0", b"x"][i] for i in ids).decode("utf-8", "replace"),
        [0],
    )
    assert StopScan(("stop",), texts).found(1)


def test_bytes_that_are_no_text_do_not_hide_what_follows():
    garbage = bytes([0xFF, 0xF0, 0x80]) * 5
    assert stop_at(garbage + b"END", ("END",)) == len(garbage) + 3


def test_a_decoder_that_drops_the_first_space():
    words = ["a", " stop", "ping"]
    texts = TokenTexts(lambda ids: "".join(words[i] for i in ids).lstrip(" "), [0])
    assert texts.one(1) == " stop"
    assert StopScan((" stop",), texts).found(1)


@given(
    st.text(alphabet="ab<>é", max_size=30),
    st.lists(st.text(alphabet="ab<>é", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_agrees_with_a_search_in_the_whole_text(text, stops):
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    expected = len(text[: min(ends)].encode()) if ends else None
    assert stop_at(text, tuple(stops)) == expected
