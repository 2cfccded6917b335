"""Corrections of a first error, as demonstrations."""

from __future__ import annotations

import pytest

from marl_llm.errors import EpisodeError
from marl_llm.learn.corrections import corrected_pairs
from marl_llm.learn.rows import pack
from marl_llm.types import Finish, Observation, Turn


def said(prompt, ids):
    """A turn with this prompt and this reply."""
    return Turn(
        observation=Observation("player_0", "player", "", "", None, "start"),
        policy="main",
        player="self",
        prompt_ids=prompt,
        ids=ids,
        logprobs=(-0.1,) * len(ids),
        versions=((0, 0, len(ids)),),
        reply="",
        action="bet",
        fault=None,
        finish=Finish.STOP,
        reward=0.0,
        shaping=0.0,
    )


TURNS = [said((1,), (2, 3)), said((1, 2, 3, 4), (5, 6)), said((1, 2, 3, 4, 5, 6, 7), (8,))]


@pytest.mark.parametrize(
    ("first_error", "expected"),
    [
        (0, [((1,), (9, 6))]),
        (1, [((1,), (2, 3)), ((1, 2, 3, 4), (9, 6))]),
    ],
)
def test_own_turns_up_to_the_error_then_the_correction_and_nothing_after(first_error, expected):
    assert corrected_pairs(TURNS, first_error, (9, 6)) == expected


def test_a_turn_without_tokens_teaches_nothing():
    turns = [said((1,), ()), *TURNS[1:]]
    assert corrected_pairs(turns, 1, (9,)) == [((1, 2, 3, 4), (9,))]


def test_they_pack_as_demonstrations_of_which_only_replies_are_learnt():
    rows = pack(corrected_pairs(TURNS, 1, (9, 6)))
    assert [row.tolist() for row in rows.ids] == [[1, 2, 3, 4, 9, 6]]
    assert rows.slot_target.tolist() == [2, 3, 9, 6]


@pytest.mark.parametrize(
    ("first_error", "reply", "message"),
    [
        (3, (9,), "turn 3, but there are 3 turns"),
        (-1, (9,), "turn -1, but there are 3 turns"),
        (1, (), "turn 1 is empty"),
        (1, (5, 6), "turn 1 is the wrong one itself"),
    ],
)
def test_nonsense_is_refused(first_error, reply, message):
    with pytest.raises(EpisodeError, match=message):
        corrected_pairs(TURNS, first_error, reply)
