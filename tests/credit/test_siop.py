"""SIOP: information gain about the group's own answers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.siop import SIOP, outcome_potential
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """Rewards turn by turn, one pool per cell, returns from the end of each agent on."""
    lengths = batch.lengths
    before, after, share = (
        batch.signals[f"answer_{name}"] for name in ("before", "after", "share")
    )
    chains, pools = defaultdict(list), defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    reward = np.zeros(len(batch))
    for rows in chains.values():
        sampled = [i for i in rows if lengths[i] > 0]
        for i in sampled:
            if len(sampled) > 1:
                reward[i] = share[i] * (np.log(after[i] + 1e-8) - np.log(before[i] + 1e-8))
            if i == sampled[-1]:
                reward[i] += (1 - estimator.lam) * share[i]
            pools[batch.group[i], batch.agent[i]].append(i)
    z = np.zeros(len(batch))
    for rows in pools.values():
        if len(rows) > 1:
            x = reward[rows]
            z[rows] = (x - x.mean()) / (x.std(ddof=1) + estimator.epsilon)
    out = np.zeros(len(batch))
    for rows in chains.values():
        later = 0.0
        for i in reversed(rows):
            later = out[i] = z[i] + estimator.gamma * later
    return np.where(lengths > 0, out, 0.0)


PLAIN = {"siop": plain}


@pytest.fixture
def search(make_batch):
    """Log-probs -3 -2 -2 -1 around three turns of an episode whose answer three in four gave."""
    p = np.exp([-3.0, -2.0, -2.0, -1.0])
    signals = {"answer_before": p[:3], "answer_after": p[1:], "answer_share": [0.75] * 3}
    return make_batch([0, 0, 0], episode=[0, 0, 0], signals=signals)


def test_worked_value(search):
    # r = .75 · 1, 0, .75 · 1 + .5 · .75 = .75 0 1.125: mean .625, squares .0156 .3906 .25, std
    # √.3281 = .5728; z = .2182 -1.0911 .8729, summed from the end.
    credit = SIOP().estimate(search)
    np.testing.assert_allclose(credit.components["return"], [1.875, 1.125, 1.125], atol=1e-6)
    np.testing.assert_allclose(credit.advantage, [0, -0.2182, 0.8729], atol=1e-4)


def test_a_potential_by_hand():
    got = outcome_potential(np.exp([-3, -2]), np.exp([-2, -2]), np.array([0.75, 0.75]), 0.0)
    np.testing.assert_allclose(got, [0.75, 0])


@LAW
@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_as_a_plain_loop_does_it(random_batch, seed, lam, gamma):
    batch = random_batch(np.random.default_rng(seed))
    estimator = SIOP(lam=lam, gamma=gamma)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_every_pool_sums_to_0_before_the_return(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = SIOP(gamma=0.0).estimate(batch).advantage
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            assert abs(got[(batch.group == group) & (batch.agent == agent)].sum()) < 1e-9


@LAW
@given(SEEDS)
def test_where_nothing_is_found_out_only_agreement_is_rewarded(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    still = batch.with_signals({"answer_after": batch.signals["answer_before"]})
    raw = SIOP(gamma=0.0).estimate(still).components["return"]
    last = batch.agents().after == 0
    share = np.where(last, 0.5 * batch.signals["answer_share"], 0.0)
    np.testing.assert_allclose(raw, share)
    # And without that reward nothing is left.
    assert not SIOP(lam=1.0).estimate(still).advantage.any()


@LAW
@given(SEEDS)
def test_with_a_unanimous_group_raw_gains_telescope(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), agents=1, silent=0.0)
    rng = np.random.default_rng(seed)
    before = rng.uniform(0.1, 0.9, len(batch))
    after = np.where(batch.agents().after == 0, 0.95, np.roll(before, -1))
    signals = {"answer_before": before, "answer_after": after, "answer_share": np.ones(len(batch))}
    raw = SIOP(lam=1.0).estimate(batch.with_signals(signals)).components["return"]
    first = (batch.agent_turn == 0) & (batch.agents().after > 0)
    np.testing.assert_allclose(raw[first], np.log(0.95 / before[first]), atol=1e-6)


def test_an_episode_without_an_answer_counts_and_one_without_a_probe_does_not(make_batch):
    # Shares .5, .5 and 0, single turns: r = .25 .25 0, mean 1/6, std √(1/48) = .1443.
    share = np.array([0.5, 0.5, 0.0])
    probes = {"answer_before": [0.5] * 3, "answer_after": [0.5] * 3}
    batch = make_batch([0] * 3, signals={**probes, "answer_share": share})
    got = SIOP().estimate(batch).advantage
    np.testing.assert_allclose(got, [0.5774, 0.5774, -1.1547], atol=1e-4)
    lost = batch.with_signals({"answer_share": np.array([0.5, 0.5, np.nan])})
    credit = SIOP().estimate(lost)
    assert credit.advantage.tolist() == [0, 0, 0]
    assert credit.stats["missing_labels"] == 1


def test_agreement_is_paid_at_the_last_turn_that_said_anything(make_batch):
    # An empty reply behind the answer: the answer is still rewarded.
    signals = {"answer_before": [0.5] * 3, "answer_after": [0.5] * 3, "answer_share": [0.8] * 3}
    batch = make_batch([0, 0, 0], episode=[0, 0, 1], lengths=[1, 0, 1], signals=signals)
    raw = SIOP().estimate(batch).components["return"]
    np.testing.assert_allclose(raw[[0, 2]], 0.4)


def test_rewards_are_not_read(random_batch):
    batch = random_batch(np.random.default_rng(0))
    got = SIOP().estimate(replace(batch, reward=np.zeros(len(batch)))).advantage
    np.testing.assert_array_equal(got, SIOP().estimate(batch).advantage)


def test_a_share_above_1_is_refused(search):
    batch = search.with_signals({"answer_share": np.full(3, 75.0)})
    with pytest.raises(EpisodeError, match="'answer_share' of turn 0 of episode 0 is 75"):
        SIOP().estimate(batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"lam": 2.0}, "siop.lam"), ({"unit": "agent"}, "siop.unit"), ({"floor": 0.0}, "siop.floor")],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        SIOP(**options)
