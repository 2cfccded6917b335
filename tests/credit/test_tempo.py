"""TEMPO: differences of prefix means, over tokens and over turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.batch import per_token
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.tempo import Tempo, TempoTurnsReading
from marl_llm.credit.tokens import sum_turns
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
EXACT = Tempo(epsilon=0.0)


def spoken(batch, lengths, tokens):
    """The batch with these words in the place of its own, and one state for all turns."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return replace(
        batch,
        state_key=0 * batch.state_key,
        offsets=offsets,
        logprobs=np.zeros(offsets[-1]),
        signals={"token_id": tokens},
    )


def split(credit, batch):
    """Credit of each turn's tokens."""
    return np.split(credit.advantage, batch.offsets[1:-1])


def plain(estimator, batch):
    """Walk along every sequence through a tree of dictionaries that knows who came by.

    A symbol is a token, or in the form over turns a whole turn; what was seen has no credit.
    """
    tokens = isinstance(estimator, Tempo)
    lengths = batch.lengths
    total, words, cells = {}, {}, {}
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
        if lengths[i]:
            word = words.setdefault(me, [])
            word.append((("saw", batch.state_key[i]), None))
            if tokens:
                said = batch.signals["token_id"]
                places = range(batch.offsets[i], batch.offsets[i + 1])
                word += [(("said", said[t]), t) for t in places]
            else:
                word.append((("did", batch.action_key[i]), i))
            cells.setdefault((batch.group[i], batch.agent[i]), set()).add(me)
    out = np.zeros(len(batch.logprobs) if tokens else len(batch))
    for cell in cells.values():
        earned = np.array([total[me] for me in sorted(cell)])
        if len(earned) < 2 or np.ptp(earned) == 0:
            continue
        scale = earned.std(ddof=1) + estimator.epsilon if estimator.scale else 1.0
        root = {"sum": sum(earned), "count": len(earned)}
        for me in cell:
            node = root
            for symbol, _ in [*words[me], ("end", None)]:
                node = node.setdefault(symbol, {"sum": 0.0, "count": 0})
                node["sum"] += total[me]
                node["count"] += 1
        for me in cell:
            node, value, where = root, earned.mean(), None
            for symbol, place in words[me]:
                node = node[symbol]
                before, value = value, node["sum"] / node["count"]
                if place is not None:
                    where = place
                    out[place] = (total[me] - earned.mean() + value - before) / scale
            if estimator.credit_end:
                last = node["end"]["sum"] / node["end"]["count"]
                out[where] += (last - value) / scale
    return out


PLAIN = {"tempo": plain, "tempo_turns_reading": plain}


@pytest.fixture
def three(make_batch):
    """Replies 1 2 3, 1 2 4 and 1 5 6, of which the first is right."""
    return make_batch(
        [1, 0, 0], lengths=[3, 3, 3], signals={"token_id": [1, 2, 3, 1, 2, 4, 1, 5, 6]}
    )


def test_worked_values(three):
    # V: 1/3 after "1", 1/2 after "1 2", then 1 and 0; 0 after "1 5". Std √(2/3 / 2) = 1/√3.
    # First reply: (2/3 + 0)√3 = 1.154701, (2/3 + 1/6)√3 = 1.443376, (2/3 + 1/2)√3 = 2.020726.
    # Second: -1/3 √3 = -.577350, (-1/3 + 1/6)√3 = -.288675, (-1/3 - 1/2)√3 = -1.443376.
    # Third: -.577350, (-1/3 - 1/3)√3 = -1.154701, -.577350.
    credit = EXACT.estimate(three)
    expected = [
        [1.154701, 1.443376, 2.020726],
        [-0.577350, -0.288675, -1.443376],
        [-0.577350, -1.154701, -0.577350],
    ]
    np.testing.assert_allclose(split(credit, three), expected, atol=5e-7)
    # Three tokens end the prefix "1" and two the prefix "1 2"; the other four end their own.
    assert credit.stats["shared_share"] == pytest.approx(5 / 9)


def test_without_scale(three):
    credit = Tempo(scale=False).estimate(three)
    np.testing.assert_allclose(split(credit, three)[0], [2 / 3, 5 / 6, 7 / 6])


def test_where_nobody_branches_the_difference_is_exactly_zero(three):
    branch = EXACT.estimate(three).components["branch"].reshape(3, 3)
    assert not branch[:, 0].any()
    assert branch[2, 2] == 0


@pytest.mark.parametrize("options", [{}, {"credit_end": True}, {"scale": False}])
@LAW
@given(SEEDS)
def test_against_plain(random_batch, options, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, episodes=5, max_turns=3)
    batch = replace(batch, state_key=batch.state_key // 2).with_signals(
        {"token_id": rng.integers(0, 2, len(batch.logprobs))}
    )
    for estimator in (Tempo(**options), TempoTurnsReading(**options)):
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_differences_add_up_to_the_centred_return(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, max_turns=1, episodes=6)
    batch = replace(batch, state_key=0 * batch.state_key)
    tokens = rng.integers(0, 2, len(batch.logprobs))
    said = batch.lengths > 0
    tokens[batch.offsets[1:][said] - 1] = 2 + np.arange(said.sum())  # none begins with another
    batch = batch.with_signals({"token_id": tokens})
    branch = Tempo(scale=False).estimate(batch).components["branch"]
    np.testing.assert_allclose(
        sum_turns(branch, batch.offsets)[said], DrGRPO().estimate(batch).advantage[said], atol=1e-9
    )


@LAW
@given(SEEDS)
def test_at_every_place_what_one_gains_the_others_lose(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, max_turns=1, silent=0.0, episodes=6)
    n = len(batch)
    batch = spoken(batch, np.full(n, 3), rng.integers(0, 2, 3 * n))
    branch = Tempo(scale=False).estimate(batch).components["branch"].reshape(n, 3)
    cell = 10 * batch.group + batch.agent
    for place in range(3):
        np.testing.assert_allclose(np.bincount(cell, branch[:, place]), 0.0, atol=1e-9)


def test_equal_replies_are_grpo(random_batch):
    batch = random_batch(np.random.default_rng(3), silent=0.0, max_turns=1)
    n = len(batch)
    batch = spoken(batch, np.full(n, 2), np.zeros(2 * n, dtype=np.int64))
    got = Tempo().estimate(batch)
    assert not got.components["branch"].any()
    assert got.advantage.any()
    np.testing.assert_allclose(got.advantage, per_token(GRPO().estimate(batch), batch), atol=1e-12)


def test_replies_that_share_nothing_have_it_all_at_their_first_token(make_batch):
    batch = make_batch([1, 0, 0.5], lengths=[2, 2, 2], signals={"token_id": [1, 9, 2, 9, 3, 9]})
    whole = GRPO().estimate(batch).advantage
    got = np.array(split(Tempo().estimate(batch), batch))
    np.testing.assert_allclose(got[:, 1], whole)
    np.testing.assert_allclose(got[:, 0], 2 * whole)


def test_a_reply_that_begins_with_another(make_batch):
    # 1 and 1 2, paid 1 and 0, mean .5: going on loses .5; stopping wins .5, which is nobody's
    # unless it is asked for.
    batch = make_batch([1, 0], lengths=[1, 2], signals={"token_id": [1, 1, 2]})
    got = Tempo(scale=False).estimate(batch).components["branch"]
    assert got.tolist() == [0, 0, -0.5]
    got = Tempo(scale=False, credit_end=True).estimate(batch).components["branch"]
    assert got.tolist() == [0.5, 0, -0.5]


def test_what_an_agent_sees_is_not_its_doing(make_batch):
    # Both say 7, then see unlike things, then say 8: the second 8s are not compared, and the luck
    # of what was seen is no token's.
    batch = make_batch(
        [0, 1, 0, 0],
        episode=[0, 0, 1, 1],
        state_key=[1, 2, 1, 3],
        signals={"token_id": [7, 8, 7, 8]},
    )
    assert not Tempo().estimate(batch).components["branch"].any()
    seen_alike = replace(batch, state_key=np.array([1, 2, 1, 2]))
    assert not Tempo().estimate(seen_alike).components["branch"].any()
    said = seen_alike.with_signals({"token_id": np.array([7, 8, 7, 9])})
    assert Tempo(scale=False).estimate(said).components["branch"].tolist() == [0, 0.5, 0, -0.5]


def test_alone_in_a_group(make_batch):
    batch = make_batch([2.0], lengths=[2], signals={"token_id": [1, 2]})
    assert not Tempo().estimate(batch).advantage.any()
    raw = Tempo(singleton="raw", epsilon=0.0).estimate(batch)
    assert raw.advantage.tolist() == [2, 2]


def test_turns_worked_values(make_batch):
    # Histories: action 1 then 3 | 1 then 4 | 2. Paid 1, 0, 0: V is 1/2 after action 1.
    batch = make_batch([0, 1, 0, 0, 0], episode=[0, 0, 1, 1, 2], state_key=[5, 6, 5, 6, 5])
    batch = replace(batch, action_key=np.array([1, 3, 1, 4, 2]))
    got = TempoTurnsReading(scale=False).estimate(batch).components["branch"]
    np.testing.assert_allclose(got, [1 / 6, 1 / 2, 1 / 6, -1 / 2, -1 / 3])


@pytest.mark.parametrize("credit_end", [False, True])
@LAW
@given(SEEDS)
def test_turns_are_tokens_if_every_turn_is_one(random_batch, credit_end, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, episodes=6)
    action = rng.integers(0, 2, len(batch))
    said = batch.lengths > 0
    seen = batch.state_key // 3
    batch = replace(
        spoken(batch, said.astype(np.int64), action[said]), state_key=seen, action_key=action
    )
    turns = TempoTurnsReading(credit_end=credit_end).estimate(batch)
    tokens = Tempo(credit_end=credit_end).estimate(batch)
    np.testing.assert_allclose(per_token(turns, batch), tokens.advantage, atol=1e-12)
    assert turns.stats["shared_share"] == pytest.approx(tokens.stats["shared_share"])


@pytest.mark.parametrize("kind", [Tempo, TempoTurnsReading])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "turn"}, "unit"),
        ({"ddof": 2}, "ddof"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=rf"{kind.card.name}\.{message}"):
        kind(**options)
