"""Cells, chains and the scan, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.segments import (
    cells,
    chains,
    chains_as_they_stand,
    disagreeing,
    extremes,
    first_of,
    firsts,
    following,
    last_of,
    scan_back,
    sums,
    turned,
)

LAW = settings(max_examples=30, deadline=None)
KEYS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), min_size=1, max_size=40)


def columns(pairs):
    first, second = zip(*pairs, strict=True)
    return np.array(first), np.array(second)


@LAW
@given(KEYS, st.sampled_from([1, 10**9, 2**40]))
def test_cells_are_equal_keys_numbered_in_their_order(pairs, stretch):
    # Stretched keys leave the counting path, and at 2**40 two columns would overflow int64.
    first, second = columns(pairs)
    code, count = cells((first * stretch, second * stretch), len(pairs))
    numbers = {pair: i for i, pair in enumerate(sorted(set(pairs)))}
    assert code.tolist() == [numbers[pair] for pair in pairs]
    assert count == len(numbers)


def test_no_key_is_one_cell_and_no_row_is_none():
    assert cells((), 3)[0].tolist() == [0, 0, 0]
    assert cells((np.zeros(0, dtype=np.int64),), 0)[1] == 0


def test_sums_and_extremes_worked_by_hand():
    # Cell 0 holds 1 and 3, cell 1 nothing, cell 2 holds -2.
    x, cell = np.array([1.0, -2.0, 3.0]), np.array([0, 2, 0])
    assert sums(x, cell, 3).tolist() == [4, 0, -2]
    low, high = extremes(x, cell, 3)
    assert low.tolist() == [1, np.inf, -2]
    assert high.tolist() == [3, -np.inf, -2]


def test_the_first_row_of_a_cell_and_rows_that_disagree_with_the_last():
    # Cell 0 holds rows 1 and 3, cell 1 nothing, cell 2 rows 0 and 2.
    cell = np.array([2, 0, 2, 0])
    assert firsts(cell, 3).tolist() == [1, 4, 0]
    assert disagreeing(np.array([7, 5, 8, 5]), cell, 3).tolist() == [0]
    assert disagreeing(np.array([8, 5, 8, 5]), cell, 3).tolist() == []


def test_chains_follow_the_rank_wherever_the_rows_stand():
    # Episode 7 has ranks 2, 0, 1 in rows 0, 2, 3; episode 5 has row 1 alone.
    links = chains((np.array([7, 5, 7, 7]),), np.array([2, 0, 0, 1]))
    assert links.order.tolist() == [1, 2, 3, 0]
    assert links.after.tolist() == [0, 0, 2, 1]
    assert links.before.tolist() == [2, 0, 0, 1]
    assert following(np.array([10.0, 20, 30, 40]), links, -1.0).tolist() == [-1, -1, 40, 10]


@LAW
@given(KEYS, st.sampled_from([1, 2**17]))
def test_chains_as_they_stand_are_ranked_by_row(pairs, spare):
    cell, count = cells(columns(pairs), len(pairs))
    expected = chains((cell,), np.arange(len(cell)))
    got = chains_as_they_stand(cell, count + spare)  # cells without rows do no harm
    for name in ("of", "order", "after", "before"):
        assert getattr(got, name).tolist() == getattr(expected, name).tolist()
    back = turned(got)
    x = np.arange(len(cell)) * 1.0
    previous = [next((j for j in range(i)[::-1] if cell[j] == cell[i]), -1) for i in range(len(x))]
    assert following(x, back, -1.0).tolist() == previous


def test_scan_worked_by_hand():
    # One chain: y3 = 4, y2 = 2 + .5*4 = 4, y1 = 1 + .5*4 = 3. The other: 8 alone.
    links = chains((np.array([0, 1, 0, 0]),), np.arange(4))
    assert scan_back(np.array([1.0, 8, 2, 4]), 0.5, links).tolist() == [3, 8, 4, 4]


@LAW
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4))
def test_scan_equals_the_loop(seed, n, chain_count):
    rng = np.random.default_rng(seed)
    key, rank = rng.integers(0, chain_count, n), rng.permutation(n)
    x, decay = rng.normal(size=n), rng.uniform(-1, 1.2, n)
    expected = np.zeros(n)
    for c in range(chain_count):
        rows = sorted(np.flatnonzero(key == c), key=lambda i: -rank[i])
        carry = 0.0
        for i in rows:
            expected[i] = carry = x[i] + decay[i] * carry
    np.testing.assert_allclose(scan_back(x, decay, chains((key,), rank)), expected, atol=1e-9)


@LAW
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_equal_chains_are_bitwise_equal_whatever_stands_beside_them(seed, length):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=length)
    x = np.concatenate((rewards, 1e9 * rng.normal(size=7), rewards))
    key = np.repeat([2, 0, 1], [length, 7, length])
    y = scan_back(x, 0.9, chains((key,), np.arange(len(x))))
    assert y[:length].tobytes() == y[-length:].tobytes()


@LAW
@given(KEYS, st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0]))
def test_the_first_and_the_last_of_some_rows(pairs, seed, share):
    key, rank = columns(pairs)
    chosen = np.random.default_rng(seed).random(len(key)) < share
    links = chains((key,), rank)
    rows = [i for i in links.order.tolist() if chosen[i]]
    last = {int(key[i]): i for i in rows}  # a later one takes the place of an earlier one
    first = {int(key[i]): i for i in rows[::-1]}
    assert np.flatnonzero(last_of(chosen, links)).tolist() == sorted(last.values())
    assert np.flatnonzero(first_of(chosen, links)).tolist() == sorted(first.values())
