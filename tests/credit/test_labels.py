"""Labels that could not be had, and labels that cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from marl_llm.credit import baselines
from marl_llm.credit.labels import label, labelled, token_label
from marl_llm.errors import EpisodeError


def test_only_sampled_turns_can_lack_a_label(make_batch):
    batch = make_batch([0] * 4, lengths=[1, 1, 0, 1]).with_signals(
        {
            "judge_good": np.array([1, np.nan, np.nan, 0]),
            "cited": np.array([np.nan, np.nan, 1, 1]),
        }
    )
    known, stats = labelled(batch, "judge_good")
    assert known.tolist() == [True, False, False, True]
    assert stats == {"missing_labels": 1}
    known, stats = labelled(batch, "judge_good", "cited")
    assert known.tolist() == [False, False, False, True]
    assert stats == {"missing_labels": 2}


@pytest.mark.parametrize("wrong", [-2, 2])
def test_an_impossible_label_is_named(make_batch, wrong):
    batch = make_batch([0, 0, 0], signals={"judge_credit": [0.5, 0, wrong]})
    with pytest.raises(
        EpisodeError, match=rf"'judge_credit' of turn 0 of episode 2 is {wrong}.*\[0, 1\]"
    ):
        label(batch, "judge_credit", 0.0, 1.0)
    # One that is missing, and one of a turn that sampled nothing, say nothing that can be wrong.
    batch = make_batch([0, 0], lengths=[1, 0], signals={"judge_score": [9, -9]})
    batch = batch.with_signals({"judge_score": np.array([np.nan, -9])})
    assert label(batch, "judge_score", 5.0).tolist() == [0, -9]


@pytest.mark.parametrize("wrong", [-0.5, 1.5])
def test_an_impossible_label_of_a_token_is_named_with_its_turn(make_batch, wrong):
    share = np.array([0.0, 1.0, 0.5, wrong])
    batch = make_batch([0, 0, 0], lengths=[2, 0, 2]).with_signals({"wrong_share": share})
    with pytest.raises(
        EpisodeError, match=rf"'wrong_share' of turn 0 of episode 2 is {wrong}.*\[0, 1\]: share"
    ):
        token_label(batch, "wrong_share", 0.0, 1.0)
    assert token_label(batch, "wrong_share", -0.5, 1.5).tolist() == share.tolist()


def test_the_mean_of_the_known_is_that_of_all_rows(make_batch):
    # Cell 0 has 1, 3 and an unknown 8: mean 2, of which two count. Cell 1 has nothing known.
    batch = make_batch([0] * 4, group=[0, 0, 0, 1])
    turns = baselines.pool(batch, batch.agents(), ["group"], "turn")
    counted = baselines.counting(turns, np.array([True, True, False, False]))
    assert counted.count.tolist() == [2, 0]
    assert baselines.mean(np.array([1.0, 3, 8, 8]), counted).tolist() == [2, 0]
