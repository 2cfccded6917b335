import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.serve.kv_store import BLOCK, KVShape, KVStore, blocks_of
from marl_llm.serve.prefix_cache import PrefixCache

SHAPE = KVShape(2, 3, 4, 5, torch.float32, torch.device("cpu"))


def store_of(*sequences):
    """Slots in which the keys and values of a token are recognisable: the token, everywhere."""
    store = KVStore(SHAPE, len(sequences), BLOCK * blocks_of(max(map(len, sequences))))
    for slot, ids in enumerate(sequences):
        for place, token in enumerate(ids):
            store.keys[:, slot, :, place] = token
            store.values[:, slot, :, place] = -token
    return store


def restored(cache, ids):
    """(tokens known, their keys as tokens) after a round trip into a fresh store."""
    known = cache.find(ids)
    store = KVStore(SHAPE, 2, BLOCK * blocks_of(len(ids) or 1))
    cache.restore([known], store, 1)
    keys = store.keys[:, 1, :, : known.tokens]
    assert torch.equal(keys[..., :1].expand_as(keys), keys)
    assert torch.equal(store.values[:, 1, :, : known.tokens, 0], -keys[..., 0])
    assert bool((keys == keys[:1, :1]).all())
    return known.tokens, tuple(int(t) for t in keys[0, 0, :, 0])


def test_what_is_kept_is_found_whole_and_by_full_blocks():
    ids = tuple(range(1, 41))
    cache = PrefixCache(SHAPE, 1000)
    cache.keep([ids], store_of(ids), [0])
    assert restored(cache, ids) == (40, ids)
    assert restored(cache, (*ids, 7, 7)) == (32, ids[:32])  # the short last block ends elsewhere
    assert restored(cache, (*ids[:20], 99, 99)) == (16, ids[:16])
    assert restored(cache, (99, *ids)) == (0, ())


def test_equal_blocks_after_different_ones_are_not_confused():
    block, one, two = tuple(range(16)), (1,) * 16, (2,) * 16
    cache = PrefixCache(SHAPE, 1000)
    cache.keep([one + block], store_of(one + block), [0])
    assert cache.find(two + block).tokens == 0
    assert cache.find(block).tokens == 0


def test_the_least_recently_used_make_room():
    first, second, third = ((i,) * 32 for i in (1, 2, 3))
    cache = PrefixCache(SHAPE, 64)  # four blocks
    cache.keep([first, second], store_of(first, second), [0, 1])
    cache.find(first)
    cache.keep([third], store_of(third), [0])
    assert len(cache) == 4
    assert [cache.find(ids).tokens for ids in (first, second, third)] == [32, 0, 32]


def test_a_sequence_longer_than_the_cache_is_not_kept():
    ids = tuple(range(100))
    cache = PrefixCache(SHAPE, 64)
    cache.keep([ids], store_of(ids), [0])
    assert len(cache) == 0


def test_off():
    cache = PrefixCache(SHAPE, 0)
    cache.keep([(1, 2, 3)], store_of((1, 2, 3)), [0])
    assert cache.find((1, 2, 3)).tokens == 0


def test_clear_forgets_and_frees():
    ids = tuple(range(64))
    cache = PrefixCache(SHAPE, 64)
    for _ in range(3):
        cache.keep([ids], store_of(ids), [0])
        assert restored(cache, ids) == (64, ids)
        cache.clear()
        assert cache.find(ids).tokens == 0


sequences = st.lists(
    st.integers(1, 3).flatmap(
        lambda a: st.integers(0, 70).map(lambda n: (a,) * (n // 2) + (4,) * n)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(st.lists(sequences, min_size=1, max_size=6), st.sampled_from([32, 64, 160, 1000]))
def test_what_is_found_is_right_and_the_bound_holds(waves, tokens):
    cache = PrefixCache(SHAPE, tokens)
    for wave in waves:
        for ids in wave:
            count, found = restored(cache, ids)
            assert found == ids[:count]
        cache.keep(wave, store_of(*wave, (0,)), range(len(wave)))
        assert len(cache) <= tokens // BLOCK


def test_stores_grow_and_keep_their_contents():
    store = store_of((1, 2, 3), (4, 5))
    before = store.keys.clone()
    store.grow(3, 20, 100)
    assert store.units >= 3
    assert store.length >= 20
    assert store.length % BLOCK == 0
    assert torch.equal(store.keys[:, :2, :, :BLOCK], before)
    assert float(store.keys[:, 2:].abs().sum()) == 0
    assert bool(torch.isfinite(store.values).all())


@pytest.mark.parametrize("most", [4, 100])
def test_growing_ahead_of_need_is_bounded(most):
    store = KVStore(SHAPE, 3, BLOCK)
    store.grow(4, BLOCK, most)
    assert store.units == min(6, most)
