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
    before = np.concatenate([np.arange(len(word)) for word in words])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "BLOCK", block)
        code = tries.prefixes((flat,), before)
    heads = [word[: k + 1] for word in words for k in range(len(word))]
    numbers = {}
    for head, number in zip(heads, code.tolist(), strict=True):
        assert numbers.setdefault(head, number) == number
    assert sorted(numbers.values()) == list(range(len(numbers)))


def test_prefixes_of_one_long_word_and_of_none():
    word = np.zeros(5000, dtype=np.int64)
    both = np.concatenate((word, word))
    before = np.tile(np.arange(5000), 2)
    code = tries.prefixes((both,), before)
    assert np.array_equal(code[:5000], code[5000:])
    assert len(np.unique(code)) == 5000
    assert tries.prefixes((word[:0],), word[:0]).tolist() == []
