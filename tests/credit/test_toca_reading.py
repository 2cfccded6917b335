"""TOCA without a critic: shared schedules, strata, and leaving oneself out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.rloo import RLOO
from marl_llm.credit.toca_reading import (
    TOCALooReading,
    TOCASharedReading,
    TOCAStratifiedReading,
)
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """Agents of one name in one group, and those of them with the same event."""
    lengths = batch.lengths
    leave_one_out = isinstance(estimator, TOCALooReading)
    kappa, enough = 0.0, None
    if isinstance(estimator, TOCAStratifiedReading):
        kappa, enough = estimator.kappa, estimator.enough
    total, cell = {}, {}
    for i in range(len(batch)):
        key = (batch.episode[i], batch.agent[i])
        total[key] = total.get(key, 0.0) + batch.reward[i]
        if lengths[i] > 0:
            cell[key] = (batch.group[i], batch.agent[i], batch.signals["event"][i])
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        key = (batch.episode[i], batch.agent[i])
        if lengths[i] == 0:
            continue
        group = [total[k] for k in cell if cell[k][:2] == cell[key][:2]]
        same = [total[k] for k in cell if cell[k] == cell[key]]
        n = len(same)
        pull = 0.0 if enough is not None and n >= enough else kappa
        if len(group) == 1 or (n == 1 and pull == 0):
            continue
        if leave_one_out:
            out[i] = (total[key] - np.mean(same)) * n / (n - 1)
        else:
            out[i] = total[key] - (np.sum(same) + pull * np.mean(group)) / (n + pull)
    return out


PLAIN = {"toca_shared_reading": plain, "toca_stratified_reading": plain, "toca_loo_reading": plain}


@pytest.fixture
def eight(make_batch):
    """Five episodes without an event, three with a replacement."""
    return make_batch(
        [1, 1, 0, 1, 0, 0, 1, 0],
        signals={"event": [0] * 5 + [1] * 3, "event_exogenous": [1] * 8},
    )


def test_worked_values(eight):
    # Means 3/5 and 1/3.
    stratified = [0.4, 0.4, -0.6, 0.4, -0.6, -1 / 3, 2 / 3, -1 / 3]
    for estimator in (TOCASharedReading(), TOCAStratifiedReading(kappa=0.0)):
        np.testing.assert_allclose(estimator.estimate(eight).advantage, stratified)
    # κ = 2, group mean 1/2: b = (3 + 1)/7 = 4/7 and (1 + 1)/5 = 2/5.
    drawn = [3 / 7, 3 / 7, -4 / 7, 3 / 7, -4 / 7, -0.4, 0.6, -0.4]
    credit = TOCAStratifiedReading(kappa=2.0).estimate(eight)
    np.testing.assert_allclose(credit.advantage, drawn)
    # The turnover that was taken off beside the group mean: 4/7 - 1/2 and 2/5 - 1/2.
    expected = np.repeat([-1 / 14, 0.1], [5, 3])
    np.testing.assert_allclose(credit.components["turnover"], expected)
    # Between strata lie 5 * .01 + 3/36 of 8 * 1/4.
    assert credit.stats["turnover_share"] == pytest.approx((0.05 + 1 / 12) / 2)
    # A stratum of five stands by itself.
    credit = TOCAStratifiedReading(kappa=2.0, enough=4).estimate(eight)
    np.testing.assert_allclose(credit.advantage, stratified[:5] + drawn[5:])
    # Leaving oneself out: times 5/4 and 3/2.
    credit = TOCALooReading().estimate(eight)
    np.testing.assert_allclose(credit.advantage, [0.5, 0.5, -0.75, 0.5, -0.75, -0.5, 1, -0.5])


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    for estimator in (
        TOCASharedReading(),
        TOCAStratifiedReading(kappa=1.5),
        TOCAStratifiedReading(kappa=1.5, enough=2),
        TOCALooReading(),
    ):
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_under_one_schedule_it_is_the_group_mean(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = batch.with_signals({"event": batch.group})
    expected = DrGRPO().estimate(batch).advantage
    for estimator in (TOCASharedReading(mixed="error"), TOCAStratifiedReading(kappa=3.0)):
        np.testing.assert_allclose(estimator.estimate(batch).advantage, expected, atol=1e-12)
    expected = RLOO().estimate(batch).advantage
    np.testing.assert_allclose(TOCALooReading().estimate(batch).advantage, expected, atol=1e-12)


@LAW
@given(SEEDS)
def test_a_strong_pull_is_the_group_mean(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = TOCAStratifiedReading(kappa=1e12).estimate(batch).advantage
    np.testing.assert_allclose(got, DrGRPO().estimate(batch).advantage, atol=1e-9)


@LAW
@given(SEEDS, st.floats(-5, 5))
def test_what_a_schedule_costs_everybody_is_nobodys_credit(random_batch, seed, cost):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    last = batch.agents().after == 0
    paid = replace(batch, reward=batch.reward + np.where(last, cost * batch.signals["event"], 0.0))
    for estimator in (TOCASharedReading(), TOCAStratifiedReading(kappa=0.0), TOCALooReading()):
        got, expected = estimator.estimate(paid), estimator.estimate(batch)
        np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-9)
    # Turnover alone moved the return: everybody gets exactly 0.
    bare = replace(paid, reward=np.where(last, cost * batch.signals["event"], 0.0))
    assert not TOCASharedReading().estimate(bare).advantage.any()
    assert not TOCAStratifiedReading(kappa=0.0).estimate(bare).advantage.any()


@LAW
@given(SEEDS)
def test_sums_are_zero_in_every_stratum(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = TOCAStratifiedReading(kappa=0.0).estimate(batch).advantage
    first = batch.agent_turn == 0
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            for event in (0, 1):
                rows = first & (batch.group == group) & (batch.agent == agent)
                assert abs(got[rows & (batch.signals["event"] == event)].sum()) < 1e-9


def test_several_schedules_in_a_group_can_be_refused(eight):
    assert TOCASharedReading().estimate(eight).stats["mixed_groups"] == 1
    with pytest.raises(EpisodeError, match=r"1 groups .* different schedules"):
        TOCASharedReading(mixed="error").estimate(eight)


@pytest.mark.parametrize(
    "estimator", [TOCASharedReading(), TOCAStratifiedReading(kappa=0.0), TOCALooReading()]
)
def test_events_that_an_action_brought_about_are_refused(make_batch, estimator):
    # Two of four episodes fire a worker, which costs 1. Within a stratum all are alike: the choice
    # gets nothing, though it was all that mattered.
    batch = make_batch(
        [0, 0, -1, -1],
        signals={"event": [0, 0, 1, 1], "event_exogenous": [0, 0, 0, 0]},
    )
    with pytest.raises(EpisodeError, match=r"4 turns .* not known to be chance's alone"):
        estimator.estimate(batch)
    trusting = replace(estimator, allow_endogenous=True)
    assert not trusting.estimate(batch).advantage.any()
    assert DrGRPO().estimate(batch).advantage.tolist() == [0.5, 0.5, -0.5, -0.5]
    # What is not known is not trusted either.
    unknown = batch.with_signals({"event_exogenous": np.array([1, np.nan, 1, 1])})
    with pytest.raises(EpisodeError, match=r"1 turns .* episode 1"):
        estimator.estimate(unknown)


def test_strata_are_schedules_whatever_length_the_episodes_have(make_batch):
    # Episode 1 ends before the scheduled event would have come; it stays in its stratum.
    batch = make_batch(
        [0, 2, 1], episode=[0, 0, 1], signals={"event": [5, 5, 5], "event_exogenous": [1] * 3}
    )
    assert TOCASharedReading().estimate(batch).advantage.tolist() == [0.5, 0.5, -0.5]


def test_a_stratum_of_one_leans_on_its_group_or_gets_nothing(make_batch):
    batch = make_batch([3, 0, 0], signals={"event": [1, 0, 0], "event_exogenous": [1, 1, 1]})
    assert TOCAStratifiedReading(kappa=0.0).estimate(batch).advantage[0] == 0
    assert TOCALooReading().estimate(batch).advantage[0] == 0
    # Group mean 1: b = (3 + 1)/2 = 2.
    assert TOCAStratifiedReading(kappa=1.0).estimate(batch).advantage[0] == 1


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TOCASharedReading, {"mixed": "errors"}, "did you mean 'error'"),
        (TOCAStratifiedReading, {"kappa": -1.0}, "toca_stratified_reading.kappa"),
        (TOCAStratifiedReading, {"kappa": 1.0, "enough": -1}, "toca_stratified_reading.enough"),
        (TOCALooReading, {"unit": "turn"}, "toca_loo_reading.unit"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
