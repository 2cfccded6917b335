"""Who called whom, and how much a call weighs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.calls import call_chains, callers, nested_shares, roots
from marl_llm.credit.segments import cells
from marl_llm.errors import EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain_roots(parent):
    out = []
    for row in range(len(parent)):
        while parent[row] >= 0:
            row = parent[row]
        out.append(row)
    return out


def plain_shares(batch):
    """The weight of each row's call, from the planner down."""
    lengths = batch.lengths
    key = [
        (batch.episode[i], batch.agent[i], batch.parent[i]) for i in range(len(batch))
    ]  # one call: one agent for one caller's turn
    spoken = {key[i] for i in range(len(batch)) if lengths[i] > 0}
    made = {}
    for k in set(key):
        if k in spoken and k[2] >= 0:
            made.setdefault(key[k[2]], set()).add(k)

    def weight(k):
        if k[2] < 0:
            return 1.0
        caller = key[k[2]]
        return weight(caller) / max(len(made.get(caller, ())), 1)

    return [weight(k) for k in key]


@LAW
@given(SEEDS)
def test_against_walking_up(random_calls, seed):
    batch = replace(random_calls(np.random.default_rng(seed)), signals={})
    assert roots(callers(batch)).tolist() == plain_roots(batch.parent)
    np.testing.assert_allclose(nested_shares(batch, call_chains(batch)), plain_shares(batch))


@LAW
@given(SEEDS)
def test_the_calls_of_a_caller_weigh_what_it_weighs(random_calls, seed):
    batch = random_calls(np.random.default_rng(seed))
    batch = replace(
        batch,
        offsets=np.arange(len(batch) + 1),
        logprobs=np.zeros(len(batch)),
        signals={},
    )
    calls = call_chains(batch)
    weight = nested_shares(batch, calls)
    first = np.flatnonzero((calls.before == 0) & (batch.parent >= 0))
    below = np.bincount(calls.of[batch.parent[first]], weight[first], calls.count)[calls.of]
    calling = below > 0
    assert np.any(calling) == np.any(batch.depth > 0)
    np.testing.assert_allclose(below[calling], weight[calling])


def test_a_name_that_is_called_twice_makes_two_calls(make_batch):
    # Planner, searcher, planner, the same searcher again for its second turn.
    batch = make_batch([0, 1, 0, 2], episode=[0] * 4, agent=[0, 1, 0, 1], role=[0, 1, 0, 1])
    batch = replace(
        batch,
        turn=np.arange(4),
        parent=np.array([-1, 0, -1, 2]),
        depth=np.array([0, 1, 0, 1]),
    )
    calls = call_chains(batch)
    assert calls.count == 3
    assert nested_shares(batch, calls).tolist() == [1, 0.5, 1, 0.5]


@LAW
@given(SEEDS)
def test_a_policy_by_itself_makes_the_calls_that_it_makes_in_its_team(random_calls, seed):
    """A searcher who is called twice under one name, seen without its planner."""
    batch = random_calls(np.random.default_rng(seed))
    batch = replace(batch, agent=batch.role, agent_turn=batch.turn)  # one name per role
    batch = batch.with_signals({"caller": np.where(batch.depth, batch.turn[batch.parent], -1)})
    team = call_chains(batch)
    for role in (1, 2):
        rows = np.flatnonzero(batch.role == role)
        alone = call_chains(batch.take(rows))
        together, count = cells((team.of[rows],), len(rows))
        assert alone.count == count
        np.testing.assert_array_equal(alone.of, together)


def test_silent_calls_are_not_counted(make_batch):
    batch = make_batch(
        [0, 1, 1], episode=[0] * 3, agent=[0, 1, 2], role=[0, 1, 1], lengths=[1, 0, 2]
    )
    batch = replace(
        batch, turn=np.arange(3), parent=np.array([-1, 0, 0]), depth=np.array([0, 1, 1])
    )
    assert nested_shares(batch, call_chains(batch))[2] == 1


def test_callers_of_another_policy_count_as_one_per_episode(make_batch):
    batch = make_batch([1, 1, 1], episode=[0, 0, 1], agent=[1, 2, 1], role=[1, 1, 1])
    batch = replace(batch, depth=np.ones(3, dtype=np.int64))
    assert nested_shares(batch, call_chains(batch)).tolist() == [0.5, 0.5, 1]


@pytest.mark.parametrize(
    ("parent", "episode"), [([1, -1], [0, 0]), ([-1, 0], [0, 1]), ([0, -1], [0, 0])]
)
def test_a_caller_stands_before_its_call(make_batch, parent, episode):
    batch = make_batch([0, 0], episode=episode, agent=[0, 1])
    batch = replace(batch, turn=np.array([0, 1]), parent=np.array(parent))
    with pytest.raises(EpisodeError, match="a caller comes before its call"):
        callers(batch)


def test_nothing():
    assert roots(np.zeros(0, dtype=np.int64)).shape == (0,)
