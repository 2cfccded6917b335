import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from marl_llm.errors import ModelError
from marl_llm.serve import attention
from marl_llm.serve.attention import ragged_attention
from marl_llm.serve.kv_store import BLOCK, KVShape, KVStore, blocks_of
from marl_llm.serve.ragged import lay_out

GROUPS, SHARED, DIM, VALUE_DIM = 2, 3, 4, 5
SHAPE = KVShape(1, GROUPS, DIM, VALUE_DIM, torch.float32, torch.device("cpu"))


def case(rows, first, dtype=torch.float32):
    """Random keys and values in slots, and queries for rows of (tokens held, tokens fed)."""
    rows = sorted(rows, key=lambda row: row[1])
    lengths, fed = np.array(rows).T
    draw = torch.Generator().manual_seed(0)
    store = KVStore(SHAPE, first + len(rows) + 1, BLOCK * blocks_of(int((lengths + fed).max())))
    store.keys.normal_(generator=draw)
    store.values.normal_(generator=draw)
    query = torch.randn(1, GROUPS * SHARED, int(fed.sum()), DIM, generator=draw)
    return store, lengths, fed, query


def one_by_one(store, first, lengths, fed, query):
    """The same, token by token and head by head."""
    outs = []
    row = np.repeat(np.arange(len(fed)), fed)
    place = np.concatenate(
        [length + np.arange(new) for length, new in zip(lengths, fed, strict=True)]
    )
    for token in range(len(row)):
        slot, seen = first + row[token], place[token] + 1
        for head in range(GROUPS * SHARED):
            keys = store.keys[0, slot, head // SHARED, :seen]
            scores = keys @ query[0, head, token] / math.sqrt(DIM)
            outs.append(scores.softmax(-1) @ store.values[0, slot, head // SHARED, :seen])
    return torch.stack(outs).view(1, len(row), GROUPS * SHARED, VALUE_DIM)


rows = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(rows=rows, first=st.integers(0, 2), free=st.sampled_from([0, 1 << 16]))
def test_every_row_attends_to_its_own_slot(rows, first, free):
    store, lengths, fed, query = case(rows, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("marl_llm.serve.ragged.FREE", free)  # 0: as many groups as pay
        layout = lay_out(store, first, lengths, fed)
    out, _ = ragged_attention(
        nn.Module(), query, store.keys[0], store.values[0], None, layout=layout
    )
    assert torch.allclose(out, one_by_one(store, first, lengths, fed, query), atol=1e-5)


def test_the_fused_kernel_gives_the_same(monkeypatch):
    store, lengths, fed, query = case([(3, 1), (20, 1), (0, 5), (17, 9)], 1)
    layout = lay_out(store, 1, lengths, fed)
    monkeypatch.setattr(attention, "SMALL", 0)
    out, _ = ragged_attention(
        nn.Module(), query, store.keys[0], store.values[0], None, layout=layout
    )
    assert torch.allclose(out, one_by_one(store, 1, lengths, fed, query), atol=1e-5)


@given(rows=rows, first=st.integers(0, 2))
def test_a_layout_places_every_token_once(rows, first):
    store, lengths, fed, _ = case(rows, first)
    layout = lay_out(store, first, lengths, fed)
    assert len(set(layout.index.tolist())) == GROUPS * fed.sum()
    unit, place = np.divmod(layout.index.numpy()[::GROUPS], GROUPS * store.length)
    assert (unit == first + np.repeat(np.arange(len(fed)), fed)).all()
    assert (place == layout.positions.numpy()).all()
    assert (layout.positions[layout.last].numpy() == lengths + fed - 1).all()
    assert [i for group in layout.groups for i in range(*group.tokens.indices(10**6))] == list(
        range(int(fed.sum()))
    )


def test_long_and_short_rows_are_not_padded_to_each_other():
    store, lengths, fed, _ = case([(0, 2)] * 30 + [(0, 600)], 0)
    groups = lay_out(store, 0, lengths, fed).groups
    assert [(group.rows, group.fed) for group in groups] == [(30, 2), (1, 600)]


def test_attention_of_another_kind_is_refused():
    store, lengths, fed, query = case([(0, 2)], 0)
    layout = lay_out(store, 0, lengths, fed)
    with pytest.raises(ModelError, match="softcap"):
        ragged_attention(
            nn.Module(), query, store.keys[0], store.values[0], None, layout=layout, softcap=30.0
        )
