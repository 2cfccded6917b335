"""STAMP: verified evidence adds to a win and takes from a loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.stamp import Stamp
from marl_llm.errors import EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The formula, turn by turn."""
    outcome = plain_outcome(batch)
    credit, known = batch.signals["judge_credit"], batch.known("judge_credit")
    advantage = np.zeros(len(batch))
    for i in range(len(batch)):
        sign = 1 if outcome[i] > 0 else -1
        advantage[i] = outcome[i] * (1 + sign * (credit[i] if known[i] else 0))
    return advantage


PLAIN = {"stamp": plain}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (0.8, [1.2, 0.8, 1.0]),  # .8 · (1.5, 1, 1.25)
        (-0.8, [-0.4, -0.8, -0.6]),  # -.8 · (.5, 1, .75)
        (0.0, [0, 0, 0]),
    ],
)
def test_worked_values(make_batch, reward, expected):
    batch = make_batch([reward, 0, 0], episode=[0] * 3, signals={"judge_credit": [0.5, 0, 0.25]})
    got = Stamp(by=("episode",), singleton="raw", epsilon=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, expected)


@LAW
@given(SEEDS)
def test_against_a_plain_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["judge_credit"])
    batch = batch.with_signals({"judge_credit": lost})
    credit = Stamp().estimate(batch)
    np.testing.assert_allclose(credit.advantage, plain(Stamp(), batch), atol=1e-12)
    assert credit.stats["missing_labels"] == np.sum(np.isnan(lost) & (batch.lengths > 0))


@LAW
@given(SEEDS)
def test_no_sign_changes_and_nobody_loses_by_evidence(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    base, got = GRPO().estimate(batch).advantage, Stamp().estimate(batch).advantage
    np.testing.assert_array_equal(np.sign(got), np.sign(base))
    assert np.all(got >= base)


def test_the_mean_is_not_kept(make_batch):
    # ±.7071 with credit 1/2 on all turns: 1.0607 and -.3536, which no longer cancel.
    batch = make_batch([1, 0], signals={"judge_credit": [0.5, 0.5]})
    np.testing.assert_allclose(Stamp().estimate(batch).advantage.sum(), 2**-0.5, atol=1e-5)


@pytest.mark.parametrize("credit", [0.0, np.nan])
def test_without_evidence_it_is_grpo(random_batch, credit):
    batch = random_batch(np.random.default_rng(1))
    batch = batch.with_signals({"judge_credit": np.full(len(batch), credit)})
    got = Stamp().estimate(batch).advantage
    np.testing.assert_array_equal(got, GRPO().estimate(batch).advantage)


@pytest.mark.parametrize("credit", [1.0, 1.5, -0.1])
def test_credit_outside_its_range_is_refused(make_batch, credit):
    # With 1 the worst loss would be no loss at all, and its sign would be lost.
    batch = make_batch([0, 0], signals={"judge_credit": [0, credit]})
    with pytest.raises(
        EpisodeError, match=rf"'judge_credit' of turn 0 of episode 1 is {credit:g}.*in \[0, 1\)"
    ):
        Stamp().estimate(batch)
