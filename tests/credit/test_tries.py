"""Prefixes of sequences; what is said of their means is in the tests of TEMPO."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import tries

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


@pytest.mark.parametrize("block", [1, 2, tries.BLOCK])
@LAW
@given(SEEDS)
def test_prefixes(block, seed):
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 2, 40)
    words = []
    for _ in range(rng.integers(1, 12)):
        word = common[: rng.integers(1, 41)].copy()
        word[rng.integers(0, len(word)) :] ^= rng.integers(0, 2)
        words.append(tuple(word.tolist()))
    flat = np.concatenate(words)
    ends = np.cumsum([len(word) for word in words])
    start = np.append(0, ends[:-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "BLOCK", block)
        alike = tries.alike_first((flat,), start)
    heads = [word[: k + 1] for word in words for k in range(len(word))]
    assert alike.tolist() == [heads.index(head) for head in heads]


def test_equal_sequences_of_unlike_roots_share_nothing():
    flat = np.array([7, 8, 7, 8, 7, 8])
    alike = tries.alike_first((flat,), np.array([0, 2, 4]), np.array([0, 1, 0]))
    assert alike.tolist() == [0, 1, 2, 3, 0, 1]


def test_all_columns_make_a_symbol():
    one, other = np.array([1, 1, 1, 1]), np.array([0, 0, 0, 5])
    assert tries.alike_first((one, other), np.array([0, 2])).tolist() == [0, 1, 0, 3]


def test_one_long_word_and_none():
    word = np.zeros(5000, dtype=np.int64)
    alike = tries.alike_first((np.concatenate((word, word)),), np.array([0, 5000]))
    assert np.array_equal(alike, np.tile(np.arange(5000), 2))
    assert tries.alike_first((word[:0],), word[:0]).tolist() == []
