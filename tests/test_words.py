"""What stands behind a command, sorted."""

import pytest

from marl_llm.commands.words import read
from marl_llm.errors import ConfigError


def sorted_words(*words, names=True):
    return read(words, "show", keys=("pairs", "json"), flags=("json", "all"), names=names)


def test_a_key_is_given_in_three_ways():
    for words in (["pairs=3"], ["--pairs=3"], ["--pairs", "3"]):
        assert sorted_words(*words).values == {"pairs": "3"}


def test_a_flag_that_is_a_key_too_takes_a_value_only_behind_an_equals_sign():
    found = sorted_words("--json", "here", "--all")
    assert (found.flags, found.values, found.names) == ({"json", "all"}, {}, ("here",))
    found = sorted_words("--json=here")
    assert (found.flags, found.values) == (frozenset(), {"json": "here"})


def test_a_path_may_hold_an_equals_sign():
    assert sorted_words("runs/lr=3", "--pairs", "a=b").names == ("runs/lr=3",)
    assert sorted_words("--pairs", "a=b").values == {"pairs": "a=b"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--pairs"], "show: --pairs needs a value, as in --pairs VALUE"),
        (["--pairs", "3", "pairs=4"], "pairs is given twice"),
        (["--piars", "3"], "unknown option '--piars'; did you mean '--pairs'?"),
        (["--al"], "did you mean '--all'?"),
        (["piars=3"], "unknown key 'piars'; did you mean 'pairs'?"),
    ],
)
def test_what_is_refused(words, hint):
    with pytest.raises(ConfigError) as caught:
        sorted_words(*words)
    assert hint in str(caught.value)


def test_a_path_where_no_names_are_welcome_is_no_key():
    with pytest.raises(ConfigError, match="unknown key 'runs/lr'"):
        sorted_words("runs/lr=3", names=False)
