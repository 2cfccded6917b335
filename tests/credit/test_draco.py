"""DRACO: a budget split by the criteria that cite a turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.draco import Draco
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
RAW = Draco(by=("episode",), singleton="raw", epsilon=0.0)  # returns as advantages


def one(make_batch, reward, lengths, passed, failed):
    """An episode with a return, and what a rubric says of its turns."""
    return make_batch(
        [reward] + [0] * (len(lengths) - 1),
        episode=[0] * len(lengths),
        lengths=lengths,
    ).with_signals({"rubric_pass": np.array(passed, float), "rubric_fail": np.array(failed, float)})


def plain(estimator, batch):
    """The formula, agent by agent."""
    lengths = batch.lengths
    outcome = plain_outcome(batch)
    passed, failed = batch.signals["rubric_pass"], batch.signals["rubric_fail"]
    known = batch.known("rubric_pass") & batch.known("rubric_fail")
    advantage = np.zeros(len(batch))
    for episode, agent in set(zip(batch.episode.tolist(), batch.agent.tolist(), strict=True)):
        turns = [
            i
            for i in range(len(batch))
            if (batch.episode[i], batch.agent[i]) == (episode, agent) and lengths[i]
        ]
        quality = {
            i: passed[i] / (passed[i] + failed[i])
            for i in turns
            if known[i] and passed[i] + failed[i]
        }
        if not quality:
            advantage[turns] = outcome[turns]
            continue
        mean = sum(quality.values()) / len(quality)
        weight = {i: quality.get(i, mean) for i in turns}
        if outcome[turns[0]] < 0:
            weight = {i: 1 - q for i, q in weight.items()}
        total, tokens = sum(weight.values()), sum(lengths[i] for i in turns)
        for i in turns:
            share = tokens * weight[i] / (lengths[i] * total) if total > 1e-12 else 1.0
            advantage[i] = outcome[i] * share
    return advantage


PLAIN = {"draco": plain}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        # Q = 1, .5 and the mean of both .75, Σ = 2.25: 40/(10·2.25), 20/(20·2.25), 30/(10·2.25).
        (1, [1.7778, 0.4444, 1.3333]),
        # 1 - Q = 0, .5, .25, Σ = .75: 0, -20/(20·.75), -10/(10·.75).
        (-1, [0, -1.3333, -1.3333]),
    ],
)
def test_worked_values(make_batch, reward, expected):
    batch = one(make_batch, reward, [10, 20, 10], [2, 1, 0], [0, 1, 0])
    got = RAW.estimate(batch).advantage
    np.testing.assert_allclose(got, expected, atol=5e-5)
    assert np.sum(batch.lengths * got) == pytest.approx(40 * reward)


@LAW
@given(SEEDS)
def test_against_a_plain_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["rubric_fail"])
    batch = batch.with_signals({"rubric_fail": lost})
    got = Draco().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(Draco(), batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_the_sum_over_tokens_stays_and_no_sign_changes(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    base, got = GRPO().estimate(batch).advantage, Draco().estimate(batch).advantage
    agents = batch.agents()
    np.testing.assert_allclose(
        np.bincount(agents.of, batch.lengths * got),
        np.bincount(agents.of, batch.lengths * base),
        atol=1e-9,
    )
    assert np.all(got * base >= 0)


def test_of_two_turns_as_good_the_shorter_has_more_on_each_token(make_batch):
    # Equal w, 5 and 20 tokens: 25/(2·5) = 2.5 and 25/(2·20) = .625.
    batch = one(make_batch, 1, [5, 20], [1, 1], [0, 0])
    np.testing.assert_allclose(RAW.estimate(batch).advantage, [2.5, 0.625])


@pytest.mark.parametrize(
    ("passed", "failed", "uncited"),
    [
        ([0, 0], [0, 0], 2),  # no criterion cites anything
        ([np.nan, np.nan], [0, 0], 2),  # or nobody knows
        ([3, 1], [0, 0], 0),  # all passed in an episode that lost: no turn to blame
    ],
)
def test_where_nothing_tells_turns_apart_it_is_grpo(make_batch, passed, failed, uncited):
    credit = RAW.estimate(one(make_batch, -1, [5, 20], passed, failed))
    assert credit.advantage.tolist() == [-1, -1]
    assert credit.stats["uncited_turns"] == uncited
    assert credit.stats["missing_labels"] == np.isnan(passed).sum()


def test_a_turn_without_a_label_is_as_one_that_nothing_cites(make_batch):
    known = one(make_batch, 1, [10, 20, 10], [2, 1, 0], [0, 1, 0])
    missing = one(make_batch, 1, [10, 20, 10], [2, 1, np.nan], [0, 1, 5])
    np.testing.assert_array_equal(RAW.estimate(missing).advantage, RAW.estimate(known).advantage)


def test_fewer_than_no_criteria_are_refused(make_batch):
    with pytest.raises(EpisodeError, match="'rubric_fail' of turn 1 of episode 0 is -1"):
        RAW.estimate(one(make_batch, 1, [1, 1], [0, 1], [0, -1]))
