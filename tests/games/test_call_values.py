"""Exact values of calls: by hand, their laws, and agreement with the credit library."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.shapley import shapley_values
from marl_llm.credit.truth import coalitions
from marl_llm.errors import GameError
from marl_llm.games.call_values import MOST_CALLS, call_values


def table(seed, calls):
    """Any worth of any set of calls, by the bits of an index."""
    return np.random.default_rng(seed).normal(size=2**calls)


def of(worth):
    return lambda kept: float(worth[sum(1 << i for i in kept)])


LAW = settings(max_examples=30, deadline=None)
GAMES = given(st.integers(0, 2**32 - 1), st.integers(1, 6))


def test_two_that_are_both_needed_share_and_either_is_missed_whole():
    both = call_values(lambda kept: float({0, 1} <= kept), 3)
    assert [each.shapley for each in both] == pytest.approx([0.5, 0.5, 0])
    assert [each.left_out for each in both] == [1, 1, 0]


def test_two_that_do_the_same_share_and_neither_is_missed():
    same = call_values(lambda kept: float(bool({0, 1} & kept)), 2)
    assert [each.shapley for each in same] == pytest.approx([0.5, 0.5])
    assert [each.left_out for each in same] == [0, 0]


def test_the_glove_game():
    # A left glove (0) and two right ones: v = 1 with a pair. Of the six orders the left one
    # completes the pair in four, so 2/3; the others share the rest.
    gloves = call_values(lambda kept: float(0 in kept and len(kept) > 1), 3)
    assert [each.shapley for each in gloves] == pytest.approx([2 / 3, 1 / 6, 1 / 6])


@LAW
@GAMES
def test_efficiency(seed, calls):
    worth = table(seed, calls)
    total = sum(each.shapley for each in call_values(of(worth), calls))
    assert total == pytest.approx(worth[-1] - worth[0])


@LAW
@GAMES
def test_a_dummy_gets_nothing_and_changes_nobody(seed, calls):
    worth = table(seed, calls)
    more = call_values(of(np.concatenate((worth, worth))), calls + 1)
    assert (more[-1].shapley, more[-1].left_out) == pytest.approx((0, 0))
    for one, two in zip(call_values(of(worth), calls), more[:-1], strict=True):
        assert one.shapley == pytest.approx(two.shapley)
        assert one.left_out == pytest.approx(two.left_out)


@LAW
@GAMES
def test_agreement_with_the_credit_library(seed, calls):
    worth = table(seed, calls)
    found = [each.shapley for each in call_values(of(worth), calls)]
    np.testing.assert_allclose(found, shapley_values(worth), atol=1e-9)
    np.testing.assert_allclose(found, coalitions.shapley(worth), atol=1e-9)


def test_no_calls_have_no_values():
    assert call_values(lambda kept: 1.0, 0) == []


def test_too_many_calls_are_refused_before_the_work_begins():
    with pytest.raises(GameError, match="16 calls are the most"):
        call_values(lambda kept: pytest.fail("asked"), MOST_CALLS + 1)
