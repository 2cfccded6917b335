"""VinePPO: values by replay, telescoping, and who is asked for continuations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.drawn import replays
from marl_llm.credit.given import NOTHING, Given
from marl_llm.credit.vine_ppo import VinePPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """Agent by agent from its last turn: V after minus V before, each V a mean of replays."""
    lengths = batch.lengths
    credit, resample = np.zeros(len(batch)), replays(batch)
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        after = sum(batch.reward[mine])
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            if lengths[k]:
                before = np.mean(resample(np.array([k]), estimator.count)[0])
                credit[k], after = after - before, before
    if estimator.whiten:
        tokens = np.repeat(credit, lengths)
        scale = np.sqrt(tokens.var(ddof=estimator.ddof) + estimator.epsilon)
        credit = np.where(lengths > 0, (credit - tokens.mean()) / scale, 0.0)
    return credit


PLAIN = {"vine_ppo": plain}


def played(*returns):
    """A resampler that knows K returns for every row."""
    table = np.array(returns, dtype=np.float64)

    def resample(rows, count, *, after=False):
        assert not after, "the value of a state is played from in front of the turn"
        assert count == table.shape[1]
        return table[rows]

    return Given(resample=resample)


def test_worked_values(make_batch):
    # V = .5, .25, .75, and the return 1 behind the last: -.25, .5, .25, which sum to 1 - .5.
    batch = make_batch([0, 0, 1], episode=[0, 0, 0])
    replays = played([0, 1], [0, 0.5], [0.5, 1])
    got = VinePPO(count=2, whiten=False).estimate(batch, replays)
    assert got.advantage.tolist() == [-0.25, 0.5, 0.25]
    assert got.stats["continuations"] == 6
    # Whitened: mean 1/6; squares of -5/12, 1/3, 1/12 are (25 + 16 + 1)/144 = 7/24, over 2.
    got = VinePPO(count=2).estimate(batch, replays).advantage
    np.testing.assert_allclose(got, np.array([-5, 4, 1]) / 12 / np.sqrt(7 / 48), atol=1e-6)


def test_the_last_turn_is_measured_against_what_came(make_batch):
    # Two agents; each one's last turn ends at its own return, 3 and 10, not at the other's value.
    batch = make_batch([1, 10, 2], episode=[0, 0, 0], agent=[0, 1, 0])
    got = VinePPO(count=1, whiten=False).estimate(batch, played([5], [7], [4]))
    assert got.advantage.tolist() == [-1, 3, -1]


def test_silent_turns_are_not_played_on_from(make_batch):
    batch = make_batch([0, -1], episode=[0, 0], lengths=[1, 0])
    asked = []

    def resample(rows, count, *, after=False):
        asked.extend(rows.tolist())
        return np.zeros((len(rows), count))

    got = VinePPO(whiten=False).estimate(batch, Given(resample=resample))
    # The forfeit belongs to the only turn that said something.
    assert got.advantage.tolist() == [-1, 0]
    assert asked == [0]


@LAW
@given(SEEDS, st.integers(1, 4))
def test_it_equals_the_loop(random_batch, seed, count):
    batch = random_batch(np.random.default_rng(seed), silent=0.3)
    for estimator in (VinePPO(count=count, whiten=False), VinePPO(count=count)):
        got = estimator.estimate(batch, Given(resample=replays(batch))).advantage
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_turns_sum_to_return_minus_first_value(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, silent=0.0)
    value = rng.normal(size=len(batch))
    replays = played(*value[:, None])
    credit = VinePPO(count=1, whiten=False).estimate(batch, replays).advantage
    agents = batch.agents()
    first = agents.before == 0
    start = np.zeros(agents.count)
    start[agents.of[first]] = value[first]
    total = np.bincount(agents.of, batch.reward)
    np.testing.assert_allclose(np.bincount(agents.of, credit), total - start, atol=1e-9)


@LAW
@given(SEEDS)
def test_whitening_is_over_tokens(random_batch, make_replays, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = VinePPO().estimate(batch, Given(resample=make_replays(batch))).advantage
    tokens = np.repeat(got, batch.lengths)
    assert tokens.mean() == pytest.approx(0, abs=1e-9)
    assert tokens.var(ddof=1) == pytest.approx(1, abs=1e-5)


@LAW
@given(SEEDS)
def test_one_turn_against_the_groups_mean_is_dr_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), max_turns=1, silent=0.0)
    batch = replace(batch, reward=np.round(batch.reward, 3))
    cell = batch.group * 10 + batch.agent
    mean = np.array([batch.reward[cell == c].mean() for c in cell])
    got = VinePPO(count=1, whiten=False).estimate(batch, played(*mean[:, None])).advantage
    np.testing.assert_allclose(got, DrGRPO().estimate(batch).advantage, atol=1e-12)


def test_without_a_resampler_it_says_so(make_batch):
    with pytest.raises(ConfigError, match="vine_ppo plays on from stored turns"):
        VinePPO().estimate(make_batch([1]), NOTHING)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"vine_ppo.count must be finite and >= 1"):
        VinePPO(count=0)
