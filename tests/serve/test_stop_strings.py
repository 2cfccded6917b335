import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.serve.stop_strings import ALWAYS, NEVER, PERHAPS, StopScan, StopTable, TokenTexts


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


WORDS = [
    "a",
    "go</answer> on",
    "</think>",
    "er> now",
    "x>",
    "\N{REPLACEMENT CHARACTER}",
    "<",
    "> b",
]


def word_texts():
    return TokenTexts(lambda ids: "".join(WORDS[i] for i in ids), [0])


def test_a_table_knows_which_tokens_can_complete_a_stop_string():
    kinds = StopTable(("</answer>",), word_texts(), len(WORDS)).kinds(np.arange(len(WORDS)))
    # "</think>" and "x>" start with no end of "</answer>"; "er> now" and "> b" do; bytes may.
    assert kinds.tolist() == [NEVER, ALWAYS, NEVER, PERHAPS, NEVER, PERHAPS, NEVER, PERHAPS]


@given(
    st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=12),
    st.lists(st.text(alphabet="ab<é", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_reading_on_only_at_tokens_that_may_end_finds_what_reading_all_finds(words, ids, stops):
    words = [b"a", *words]
    texts = TokenTexts(lambda ids: b"".join(words[i] for i in ids).decode("utf-8", "replace"), [0])
    table = StopTable(stops, texts, len(words))
    every, few, seen = table.scan(), table.scan(), []
    for token in (i % len(words) for i in ids):
        seen.append(token)
        (kind,) = table.kinds(np.array([token]))
        found = kind == ALWAYS
        if kind == PERHAPS:
            found = any(few.found(one) for one in seen[few.taken :])
        expected = every.found(token)
        assert found == expected
        if expected:
            break
