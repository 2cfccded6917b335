"""The values in a report, and how well they fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.games.departments.reports import answers, f1, reported, values, wanted

ROWS = [("w12", 210050), ("w31", 180050)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("w12 210050; w31 null", ["w12", "210050", "w31", "null"]),
        ("W12 earns 210050.0 cents, W31 is unknown.", ["w12", "210050", "w31", "null"]),
        ("a welder in lund, -3.50 and 1e5", ["welder", "lund", "-3.5", "1", "e5"]),
        ("", []),
        ("nothing of use here", []),
        ("9" * 500, ["inf"]),
    ],
)
def test_values(text, found):
    assert values(text) == found


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("w12 210050; w31 180050", 1.0),
        ("w31 earns 180050 cents and w12 earns 210050.", 1.0),
        # Wanted are two codes and two values. Here are one code and one value of them: 2 * 2 / 6.
        ("w12 210050", 2 / 3),
        # Both codes, and the values belong to the wrong ones: 2 * 2 / 8.
        ("w12 180050; w31 210050", 0.5),
        ("w12, w31: 210050, 180050", 0.75),  # both belong to w31: one right, 2 * 3 / 8
        ("w12 210050; w31 180050; w40 150050", 0.8),  # 2 * 4 / 10
        ("w12; w31", 2 / 3),
        ("none", 0.0),
    ],
)
def test_a_value_belongs_to_the_code_before_it(text, score):
    assert f1(reported(text, "w"), wanted(ROWS, keyed=True)) == pytest.approx(score)


def test_values_without_codes_and_nothing_at_all():
    assert f1(reported("390100 in all", "w"), wanted([(390100,)], keyed=False)) == 1.0
    assert f1(reported("390100.5", "w"), wanted([(390100,)], keyed=False)) == 0.0
    assert f1(reported("h3", "w"), wanted([("h3",)], keyed=False)) == 1.0
    assert f1(reported("none", "w"), wanted([], keyed=True)) == 1.0
    assert f1(reported("w12 null", "w"), wanted([("w12", None)], keyed=True)) == 1.0


@given(st.text(max_size=200), st.sampled_from("wih"))
def test_any_text_has_a_score_between_none_and_all(text, letter):
    assert 0.0 <= f1(reported(text, letter), wanted(ROWS, keyed=True)) <= 1.0
    assert f1(reported(text, letter), reported(text, letter)) == 1.0


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        ("12.35", 12.345, True),
        ("12.34 kg", 12.345, True),
        ("12.33", 12.345, False),
        ("12.345 or 12.346", 12.345, False),
        ("it is 7, yes: 7.0", 7, True),
        ("8", 7, False),
        ("w12", "w12", True),
        ("W12.", "w12", True),
        ("w12 or w13", "w12", False),
        ("w12 with 7", "w12", False),
        ("w12", 12, False),
        ("none", 0, False),
        ("", 0, False),
    ],
)
def test_an_answer_is_one_value(text, truth, right):
    assert answers(text, truth) is right
