"""Columns that hold together, and credit to tokens."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.batch import (
    COLUMNS,
    Credit,
    ledger,
    per_token,
    token_credit,
    turn_credit,
)
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def test_malformed_columns_are_named(make_batch):
    batch = make_batch([1, 2], lengths=[2, 1])
    for change, message in [
        ({"role": np.zeros(3, dtype=int)}, r"column role has shape \(3,\), expected \(2,\)"),
        ({"offsets": np.array([0, 2, 1])}, "ascending"),
        ({"offsets": np.array([1, 2, 3])}, "start at 0"),
        ({"logprobs": np.zeros(4)}, "4 log-probs for 3 sampled tokens"),
        ({"signals": {"value": np.zeros(5)}}, "signal value has shape"),
    ]:
        with pytest.raises(EpisodeError, match=message):
            replace(batch, **change)


def test_per_token(make_batch):
    batch = make_batch([1, 2, 3], lengths=[2, 0, 1])
    weight = np.ones(3)
    credit = Credit(np.array([0.5, 9.0, -1.0]), weight)
    assert per_token(credit, batch).tolist() == [0.5, 0.5, -1]
    credit = Credit(np.array([1.0, 2.0, 4.0]), weight, level="token")
    assert per_token(credit, batch).tolist() == [1, 2, 4]
    with pytest.raises(EpisodeError, match=r"asks for \(3,\)"):
        per_token(Credit(np.zeros(2), weight), batch)


def test_credit_is_finite():
    with pytest.raises(EpisodeError, match="advantage 1 is nan"):
        Credit(np.array([0.0, np.nan]), np.ones(2))


def test_turn_credit_leaves_silent_turns_out(make_batch):
    batch = make_batch([1, 2, 3], lengths=[2, 0, 1], episode=[0, 0, 0], agent=[0, 0, 1])
    credit = turn_credit(batch, np.array([-1.0, 8, 3]), components={}, stats={"groups": 1.0})
    assert credit.advantage.tolist() == [-1, 0, 3]
    assert credit.weight.tolist() == [1, 0, 1]
    assert credit.stats == {"groups": 1, "adv_abs_mean/alice": 1, "adv_abs_mean/bob": 3}


def test_a_signal_is_found_or_named(make_batch):
    batch = make_batch([1, 2], lengths=[2, 1], signals={"value": [1, 2], "entropy": [1, 2, 3]})
    assert batch.signal("value").tolist() == [1, 2]
    assert batch.token_signal("entropy").tolist() == [1, 2, 3]
    with pytest.raises(EpisodeError, match="no signal 'valu': did you mean 'value'"):
        batch.signal("valu")
    with pytest.raises(EpisodeError, match=r"no signal 'judge_good': it is 1 = .* from judge_good"):
        batch.signal("judge_good")
    with pytest.raises(EpisodeError, match=r"no signal 'logit': it is raw logit .* from token_"):
        batch.token_signal("logit")
    with pytest.raises(EpisodeError, match="'entropy' has 3 values; one per turn is needed, 2"):
        batch.signal("entropy")
    with pytest.raises(EpisodeError, match=r"'value' has 2 values; one per sampled token .*, 3"):
        batch.token_signal("value")


def test_a_label_that_could_not_be_had_is_missing_and_not_0(make_batch):
    batch = make_batch([1, 2, 3]).with_signals({"judge_good": np.array([1.0, np.nan, 0.0])})
    assert batch.signal("judge_good").tolist() == [1, 0, 0]
    assert batch.known("judge_good").tolist() == [True, False, True]
    assert batch.take(np.array([1, 2])).known("judge_good").tolist() == [False, True]
    # Without a companion everything is known; with new labels the old companion is gone.
    assert batch.known("value").all()
    again = batch.with_signals({"judge_good": np.ones(3)})
    assert again.known("judge_good").all()
    assert sorted(again.signals) == ["judge_good"]


def test_new_signals_leave_the_others(make_batch):
    batch = make_batch([1, 2], signals={"value": [1, 2]})
    more = batch.with_signals({"cited": np.array([0, 1]), "node": np.array([7, 9])})
    assert more.signal("value").tolist() == [1, 2]
    assert more.column("node").dtype.kind == "i", "a key stays an integer"
    assert sorted(batch.signals) == ["value"], "the batch itself is not touched"


def test_only_turns_can_lack_a_label(make_batch):
    batch = make_batch([1, 2], lengths=[1, 1])
    with pytest.raises(EpisodeError, match="signal entropy of turn 0 of episode 1 is nan"):
        batch.with_signals({"entropy": np.array([0.5, np.nan])})


def test_a_key_of_a_signal_can_be_pooled_by(make_batch):
    batch = make_batch([1, 2], signals={"tree": [4, 4]})
    assert batch.column("tree").tolist() == [4, 4]
    with pytest.raises(ConfigError, match=r"no column 'node' .* it is equal = .* a tree rollout"):
        batch.column("node")


def test_taken_rows_bring_their_tokens_signals_and_parents(make_batch):
    # Five turns, 12 tokens; the last turn was called by row 3, row 3 by row 0.
    batch = replace(
        make_batch(
            [1, 2, 3, 4, 5],
            episode=[0, 0, 1, 1, 1],
            lengths=[2, 3, 0, 4, 3],
            signals={"value": [10, 20, 30, 40, 50], "token_id": range(12), "tree": [0, 0, 1, 1, 1]},
        ),
        parent=np.array([-1, 0, -1, 0, 3]),
        logprobs=-np.arange(12.0),
    )
    got = batch.take(np.array([4, 3, 1]))
    assert got.reward.tolist() == [5, 4, 2]
    assert got.agent_turn.tolist() == [2, 1, 1]
    assert got.offsets.tolist() == [0, 3, 7, 10]
    assert got.token_signal("token_id").tolist() == [9, 10, 11, 5, 6, 7, 8, 2, 3, 4]
    assert (-got.logprobs).tolist() == got.token_signal("token_id").tolist()
    assert got.signal("value").tolist() == [50, 40, 20]
    assert got.column("tree").tolist() == [1, 1, 0]
    # Row 3 is row 1 now; row 0 is not there, and nobody else takes its place.
    assert got.parent.tolist() == [1, -1, -1]
    assert len(batch.take(np.array([], dtype=np.int64))) == 0


def test_a_signal_over_tokens_stays_so_where_turns_and_tokens_are_as_many(make_batch):
    # Two turns of 2 and 0 tokens: only the meaning of a name says what the two values are over.
    batch = make_batch([1, 2], lengths=[2, 0], signals={"value": [1, 2], "entropy": [3, 4]})
    got = batch.take(np.array([0]))
    assert got.signal("value").tolist() == [1]
    assert got.token_signal("entropy").tolist() == [3, 4]


@LAW
@given(SEEDS)
def test_taking_twice_is_taking_once(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    order = rng.permutation(len(batch))
    back = batch.take(order).take(np.argsort(order))
    assert pickle.dumps(back.signals) == pickle.dumps(dict(batch.signals))
    for name in COLUMNS:
        np.testing.assert_array_equal(back.column(name), batch.column(name), err_msg=name)
    np.testing.assert_array_equal(back.offsets, batch.offsets)


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"value": [0, np.inf, 0]}, "signal value of turn 1 of episode 7 is inf"),
        # Tokens 0 and 1 are of the first row, 2 of the second, 3 to 6 of the third.
        ({"entropy": [0, 0, 0, 0, np.nan, 0, 0]}, "signal entropy of turn 0 of episode 9 is nan"),
        ({"entropy": [0, 0, np.nan, 0, 0, 0, 0]}, "signal entropy of turn 1 of episode 7 is nan"),
    ],
)
def test_a_signal_that_is_no_number_is_named(make_batch, signals, message):
    with pytest.raises(EpisodeError, match=message):
        make_batch([1, 2, 3], episode=[7, 7, 9], lengths=[2, 1, 4], signals=signals)


@pytest.mark.parametrize(
    ("turn", "agent_turn", "message"),
    [
        ([0, 0, 0], [0, 0, 0], "turn 0 of episode 7 and the agent's next one are out of order"),
        ([4, 3, 0], [0, 1, 0], "turn 4 of episode 7 and the agent's next one are out of order"),
        ([3, 3, 0], [0, 1, 0], "turn 3 of episode 7 .*turn and agent_turn must rise"),
    ],
)
def test_turns_out_of_order_are_named(make_batch, turn, agent_turn, message):
    batch = make_batch([1, 2, 3], episode=[7, 7, 9])
    with pytest.raises(EpisodeError, match=message):
        replace(batch, turn=np.array(turn), agent_turn=np.array(agent_turn))


def test_rows_may_stand_in_any_order(make_batch):
    batch = make_batch([1, 2, 3], episode=[7, 7, 7])
    late_first = replace(batch, turn=np.array([5, 0, 2]), agent_turn=np.array([2, 0, 1]))
    assert late_first.agents().order.tolist() == [1, 2, 0]


@pytest.mark.parametrize("parent", [-2, 2])
def test_a_parent_that_is_not_there_is_named(make_batch, parent):
    batch = make_batch([1, 2], episode=[3, 4])
    with pytest.raises(EpisodeError, match=f"turn 0 of episode 4 was called by row {parent}, .* 2"):
        replace(batch, parent=np.array([-1, parent]))


def test_groups_of_unlike_games_are_named(make_batch):
    with pytest.raises(EpisodeError, match=r"group 5 mixes the games go and dice \(episode 1\)"):
        make_batch([1, 2, 3], group=[4, 5, 5], game=[0, 0, 1])


def test_token_credit_counts_tokens(make_batch):
    # alice has tokens of |A| 1 and 3 in one turn and 5 in another: mean 3 over tokens, not 3.5.
    batch = make_batch([1, 2, 3], lengths=[2, 0, 1], agent=[0, 1, 0])
    credit = token_credit(batch, np.array([1.0, -3, 5]), components={}, stats={})
    assert credit.level == "token"
    assert credit.weight.tolist() == [1, 0, 1]
    assert credit.stats == {"adv_abs_mean/alice": 3}


def test_a_ledger_adds_up():
    raw, centred, scaled = np.array([3.0, 5]), np.array([-1.0, 1]), np.array([-2.0, 2])
    parts = ledger(raw, centred, scaled)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "return": [3, 5], "baseline": [-4, -4], "scaling": [-1, 1]
    }  # fmt: skip
    assert sorted(ledger(raw, centred)) == ["baseline", "return"]
