import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import EpisodeError
from marl_llm.learn.rows import group_by_length, pack

IDS = st.lists(st.integers(0, 3), min_size=0, max_size=6).map(tuple)
PAIRS = st.lists(st.tuples(IDS.filter(len), IDS), min_size=0, max_size=12)


def test_dialogue_merges_and_duplicates_are_shared():
    dialogue = [((1, 2), (3, 4)), ((1, 2, 3, 4, 5), (6,))]  # the second prompt holds the first turn
    again = ((1, 2), (3, 4))
    other = ((1, 2), (3, 9))
    rows = pack([*dialogue, again, other])
    assert sorted(row.tolist() for row in rows.ids) == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 9]]
    assert len(rows.slot) == 2 + 1 + 2 + 2  # sampled tokens
    assert len(rows.slot_row) == 3 + 2  # 3, 4 and 6 in the long row, 3 and 9 in the other
    assert rows.slot[:2].tolist() == rows.slot[3:5].tolist()  # the repeated turn reads the same


def test_the_same_ids_split_otherwise_into_prompt_and_reply():
    # (1)(2 3) and (1 2)(3) are one row; token 3 is one slot, token 2 another.
    rows = pack([((1,), (2, 3)), ((1, 2), (3,))])
    assert [row.tolist() for row in rows.ids] == [[1, 2, 3]]
    assert rows.slot.tolist() == [0, 1, 1]
    assert rows.slot_position.tolist() == [0, 1]
    assert rows.slot_target.tolist() == [2, 3]


def test_temperatures_make_slots_of_their_own_and_zero_is_scored_at_one():
    rows = pack([((1,), (2,))] * 3, np.array([0.5, 0.0, 1.0]))
    assert rows.slot.tolist() == [0, 1, 1]
    assert rows.slot_temperature.tolist() == [0.5, 1.0]


def test_empty_replies_have_no_row():
    rows = pack([((1, 2), ()), ((7,), (8,)), ((), ())])
    assert [row.tolist() for row in rows.ids] == [[7, 8]]
    assert rows.lengths.tolist() == [0, 1, 0]
    assert pack([((1,), ())]).microbatches(8) == []
    assert pack([]).microbatches(8) == []


def test_a_reply_without_prompt_is_refused():
    with pytest.raises(EpisodeError, match="turn 1 of the batch has a reply but an empty prompt"):
        pack([((1,), (2,)), ((), (3,))])


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(1, 20))
def test_every_token_is_predicted_once_from_its_own_past(pairs, budget):
    rows = pack(pairs)
    seen = np.zeros(len(rows.slot), int)
    wanted = [
        (prompt + reply)[: len(prompt) + j + 1]
        for prompt, reply in pairs
        for j in range(len(reply))
    ]
    for batch in rows.microbatches(budget):
        count, width = batch.input_ids.shape
        assert count * width <= budget or count == 1
        flat = batch.input_ids.flatten().tolist()
        for token, slot in zip(batch.tokens.tolist(), batch.slot.tolist(), strict=True):
            position = int(batch.positions[slot])
            start = position // width * width
            past = flat[start : position + 1]
            assert (*past, int(batch.targets[slot])) == wanted[token]
            seen[token] += 1
        assert batch.tokens.tolist() == sorted(batch.tokens.tolist())
        # Whole turns stand side by side.
        lengths = [len(reply) for _, reply in pairs]
        turn_of = np.repeat(np.arange(len(pairs)), lengths)[batch.tokens.numpy()]
        assert np.bincount(turn_of, minlength=len(pairs))[np.unique(turn_of)].tolist() == [
            lengths[turn] for turn in np.unique(turn_of)
        ]
        assert batch.lengths.tolist() == [lengths[turn] for turn in np.unique(turn_of)]
    assert np.all(seen == 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_groups_hold_each_row_once_within_the_budget(sizes, budget):
    sizes = np.array(sizes, np.int64)
    groups = group_by_length(sizes, budget)
    assert sorted(np.concatenate(groups).tolist() if groups else []) == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or len(group) * sizes[group].max() <= budget


def test_rows_hold_no_sequence_that_starts_another():
    rng = np.random.default_rng(0)
    pairs = [
        (tuple(rng.integers(0, 2, rng.integers(1, 5)).tolist()), (int(rng.integers(0, 2)),))
        for _ in range(60)
    ]
    rows = [row.tolist() for row in pack(pairs).ids]
    for i, row in enumerate(rows):
        assert not any(other[: len(row)] == row for j, other in enumerate(rows) if i != j)


def test_a_thousand_turns_pack_in_milliseconds():
    rng = np.random.default_rng(0)
    pairs = [
        (tuple(rng.integers(0, 500, 40).tolist()), tuple(rng.integers(0, 500, 10).tolist()))
        for _ in range(1000)
    ]
    best = np.inf
    for _ in range(10):
        began = time.process_time()
        pack(pairs)
        best = min(best, time.process_time() - began)
    assert best < 0.03  # measured 5 ms on a quiet core
