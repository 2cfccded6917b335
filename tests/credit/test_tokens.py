"""Operations inside turns, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import tokens

LAW = settings(max_examples=30, deadline=None)
LENGTHS = st.lists(st.integers(0, 5), max_size=12)
OFFSETS = np.array([0, 2, 2, 5])  # turns of two, no and three tokens
X = np.array([1.0, 2, 3, 4, 5])


def turns(x, lengths):
    """The tokens of each turn, a list of lists."""
    rest = list(x)
    return [[rest.pop(0) for _ in range(length)] for length in lengths]


def drawn(lengths):
    offsets = np.concatenate(([0], np.cumsum(np.array(lengths, dtype=np.int64))))
    return np.random.default_rng(7).normal(size=offsets[-1]), offsets


def test_worked_values():
    assert tokens.turn_of(OFFSETS).tolist() == [0, 0, 2, 2, 2]
    assert tokens.places(OFFSETS).tolist() == [0, 1, 0, 1, 2]
    assert tokens.sum_turns(X, OFFSETS).tolist() == [3, 0, 12]
    assert tokens.mean_turns(X, OFFSETS).tolist() == [1.5, 0, 4]
    assert tokens.max_turns(X, OFFSETS).tolist() == [2, -np.inf, 5]
    assert tokens.min_turns(X, OFFSETS).tolist() == [1, np.inf, 3]
    assert tokens.spread(np.array([7, 8, 9]), OFFSETS).tolist() == [7, 7, 9, 9, 9]
    # 2, 1 + .5*2 = 2; 5, 4 + .5*5 = 6.5, 3 + .5*6.5 = 6.25: the second turn starts anew.
    assert tokens.sum_ahead(X, OFFSETS, 0.5).tolist() == [2, 2, 6.25, 6.5, 5]


@LAW
@given(LENGTHS)
def test_places_and_owners_equal_the_loop(lengths):
    _, offsets = drawn(lengths)
    assert tokens.turn_of(offsets).tolist() == [i for i, k in enumerate(lengths) for _ in range(k)]
    assert tokens.places(offsets).tolist() == [t for k in lengths for t in range(k)]


@LAW
@given(LENGTHS)
def test_reductions_equal_the_loop(lengths):
    x, offsets = drawn(lengths)
    held = turns(x, lengths)
    for reduced, plain, empty in [
        (tokens.sum_turns, sum, 0.0),
        (tokens.mean_turns, lambda turn: sum(turn) / len(turn), 0.0),
        (tokens.max_turns, max, -np.inf),
        (tokens.min_turns, min, np.inf),
    ]:
        expected = [plain(turn) if turn else empty for turn in held]
        np.testing.assert_allclose(reduced(x, offsets), expected, atol=1e-12)


@LAW
@given(LENGTHS, st.sampled_from([0.0, 0.9, 1.0, -0.5]))
def test_sums_ahead_equal_the_loop(lengths, decay):
    x, offsets = drawn(lengths)
    expected = []
    for turn in turns(x, lengths):
        ahead, carry = [], 0.0
        for value in reversed(turn):
            carry = value + decay * carry
            ahead.insert(0, carry)
        expected += ahead
    np.testing.assert_allclose(tokens.sum_ahead(x, offsets, decay), expected, atol=1e-12)


def test_a_turn_does_not_see_the_rounding_of_another():
    # One long cumulative sum would lose the .1 behind 1e17.
    x, offsets = np.array([1e17, 1.0, 0.1, 0.2]), np.array([0, 2, 4])
    assert tokens.sum_turns(x, offsets)[1] == pytest.approx(0.3, rel=1e-15)
    assert tokens.sum_ahead(x, offsets)[2] == pytest.approx(0.3, rel=1e-15)


def test_what_goes_in_is_not_changed_and_single_precision_comes_out_double():
    x = np.array([1.0, 2.0], dtype=np.float32)
    offsets = np.array([0, 2])
    assert tokens.sum_ahead(x, offsets).tolist() == [3, 2]
    assert x.tolist() == [1, 2]
    assert tokens.sum_ahead(x, offsets).dtype == tokens.sum_turns(x, offsets).dtype == np.float64


def test_no_tokens_and_no_turns():
    for offsets in (np.array([0]), np.array([0, 0, 0])):
        n = len(offsets) - 1
        assert tokens.sum_turns(np.zeros(0), offsets).tolist() == [0] * n
        assert tokens.sum_ahead(np.zeros(0), offsets).shape == (0,)
        assert tokens.places(offsets).shape == tokens.turn_of(offsets).shape == (0,)
