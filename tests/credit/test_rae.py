"""The remembering baseline: worked values, order, and what it remembers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.given import Given
from marl_llm.credit.rae import RAE, moving_averages
from marl_llm.errors import CheckpointError, ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Episode by episode in the order of the batch; no discount, subtracted first."""
    lengths = batch.lengths
    total, first = {}, {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        if lengths[i]:
            first.setdefault((batch.episode[i], batch.agent[i]), i)
    average, baseline = {}, {}
    for me, i in sorted(first.items(), key=lambda item: item[1]):
        key = (batch.game[i], batch.role[i], batch.agent[i])
        baseline[me] = average.get(key, 0.0)
        average[key] = estimator.decay * baseline[me] + (1 - estimator.decay) * total[me]
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        if lengths[i]:
            out[i] = total[me] - baseline[me]
    return out


PLAIN = {"rae": plain}


def test_worked_values(make_batch):
    # b: 0, then .05*1 = .05, then .95*.05 + .05*(-1) = -.0025; A = R - b before.
    got = RAE().estimate(make_batch([1, -1, 1]))
    np.testing.assert_allclose(got.advantage, [1, -1.05, 1.0025])
    # b after: .95 * -.0025 + .05 = .047625.
    assert got.state == {
        "by": ["game", "role", "agent"],
        "averages": {"go": {"alice": {"a_0": pytest.approx(0.047625)}}},
    }
    assert got.stats["average/go/alice/a_0"] == pytest.approx(0.047625)


def test_each_game_and_player_has_its_own(make_batch):
    batch = make_batch([1, 3, 10, 20], agent=[0, 1, 0, 0], group=[0, 0, 1, 1], game=[0, 0, 1, 1])
    got = RAE(decay=0.5).estimate(batch)
    # Only the fourth row has a predecessor: 20 - .5*10 = 15.
    assert got.advantage.tolist() == [1, 3, 10, 15]
    assert got.state["averages"] == {
        "dice": {"alice": {"a_0": 12.5}},
        "go": {"alice": {"a_0": 0.5}, "bob": {"b_0": 1.5}},
    }


def test_every_turn_gets_the_whole_return(make_batch):
    batch = make_batch([1, 2, 4], episode=[0, 0, 0], agent=[0, 1, 0])
    assert RAE().estimate(batch).advantage.tolist() == [5, 2, 5]
    # γ counts from the agent's last turn, and applies to R - b.
    assert RAE(gamma=0.5).estimate(batch).advantage.tolist() == [2.5, 2, 5]
    state = {"by": ["role"], "averages": {"alice": 1.0, "bob": 0.0}}
    got = RAE(by=("role",), gamma=0.5).estimate(batch, Given(state=state))
    assert got.advantage.tolist() == [2, 2, 4]


@LAW
@given(SEEDS, st.floats(0, 1))
def test_updating_first_scales_by_the_decay(random_batch, seed, decay):
    batch = random_batch(np.random.default_rng(seed))
    first = RAE(decay=decay).estimate(batch)
    second = RAE(decay=decay, order="update_first").estimate(batch)
    np.testing.assert_allclose(second.advantage, decay * first.advantage, atol=1e-9)
    assert second.state == first.state


@LAW
@given(SEEDS, st.floats(0, 1))
def test_it_equals_the_loop(random_batch, seed, decay):
    batch = random_batch(np.random.default_rng(seed))
    estimator = RAE(decay=decay)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS, st.floats(0, 1), st.integers(1, 40))
def test_averages_equal_the_loop(seed, decay, n):
    rng = np.random.default_rng(seed)
    x, cell, start = rng.normal(size=n), rng.integers(0, 3, n), rng.normal(size=3)
    average, before, after = start.copy(), [], []
    for value, c in zip(x, cell, strict=True):
        before.append(average[c])
        average[c] = decay * average[c] + (1 - decay) * value
        after.append(average[c])
    got = moving_averages(x, cell, start, decay)
    np.testing.assert_allclose(got, [before, after], atol=1e-12)


@LAW
@given(SEEDS, st.integers(0, 12))
def test_two_batches_in_turn_equal_one(random_batch, take_rows, seed, cut):
    """What a checkpoint must keep: a run that resumes goes on as if it had not stopped."""
    batch = random_batch(np.random.default_rng(seed), groups=3, episodes=4)
    whole = RAE().estimate(batch)
    early, late = np.flatnonzero(batch.episode < cut), np.flatnonzero(batch.episode >= cut)
    first = RAE().estimate(take_rows(batch, early))
    state = json.loads(json.dumps(first.state))
    second = RAE().estimate(take_rows(batch, late), Given(state=state))
    joined = np.concatenate((first.advantage, second.advantage))
    np.testing.assert_allclose(joined, whole.advantage[np.concatenate((early, late))], atol=1e-9)
    assert json.dumps(state) == json.dumps(first.state), "the state given is not touched"
    for game, roles in whole.state["averages"].items():
        for role, agents in roles.items():
            assert second.state["averages"][game][role] == pytest.approx(agents)


def test_the_state_keeps_who_is_absent(make_batch):
    state = {"by": ["role"], "averages": {"bob": 7.0}}
    got = RAE(by=("role",)).estimate(make_batch([1.0]), Given(state=state))
    assert got.state["averages"] == {"alice": pytest.approx(0.05), "bob": 7.0}


def test_no_decay_is_the_start_and_full_decay_the_last(make_batch):
    batch = make_batch([3, 5, 8])
    assert RAE(decay=1.0).estimate(batch).advantage.tolist() == [3, 5, 8]
    assert RAE(decay=0.0).estimate(batch).advantage.tolist() == [3, 2, 3]


def test_a_settled_average_is_the_mean(make_batch):
    # From the mean 2 and with a decay near 1, one batch barely moves it.
    batch = make_batch([1, 2, 3])
    state = {"by": ["role"], "averages": {"alice": 2.0}}
    got = RAE(by=("role",), decay=1.0).estimate(batch, Given(state=state)).advantage
    np.testing.assert_allclose(got, DrGRPO(by=()).estimate(batch).advantage)


def test_unlike_roles_do_not_share_an_average_unawares(make_batch):
    batch = make_batch([1, 10], episode=[0, 0], agent=[0, 1])
    with pytest.raises(ConfigError, match=r"by=\['game'\] pools roles 'alice' and 'bob'"):
        RAE(by=("game",)).estimate(batch)
    state = RAE(by=("game",), mix_roles=True, decay=0.5).estimate(batch).state
    assert state["averages"] == {"go": 5.25}


def test_who_only_kept_silent_is_not_remembered(make_batch):
    got = RAE().estimate(make_batch([9, 1], lengths=[0, 1]))
    assert got.advantage.tolist() == [0, 1]
    assert got.state["averages"]["go"]["alice"]["a_0"] == pytest.approx(0.05)


def test_a_state_of_other_keys_is_refused(make_batch):
    state = RAE(by=("role",)).estimate(make_batch([1.0])).state
    with pytest.raises(CheckpointError, match=r"by \['role'\], rae.by asks for"):
        RAE().estimate(make_batch([1.0]), Given(state=state))
    with pytest.raises(CheckpointError, match="'by' and 'averages', got"):
        RAE().estimate(make_batch([1.0]), Given(state={"go": 1.0}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": ()}, "rae.by"),
        ({"by": ("state_key",)}, "rae.by has no option 'state_key'"),
        ({"decay": 1.5}, "rae.decay"),
        ({"order": "update"}, "did you mean 'update_first'"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        RAE(**options)
