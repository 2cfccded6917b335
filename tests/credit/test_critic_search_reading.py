"""CriticSearch: verdicts of a judge beside the outcome."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.critic_search_reading import CriticSearchReading
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def search(make_batch, verdicts, reward=(1, 0, 0, 0, 0)):
    return make_batch(reward, episode=[0, 0, 0, 1, 1]).with_signals(
        {"judge_good": np.array(verdicts, dtype=float)}
    )


def plain(estimator, batch):
    """The formula, turn by turn."""
    lengths = batch.lengths
    outcome = plain_outcome(batch)
    good, known = batch.signals["judge_good"], batch.known("judge_good")
    advantage = np.zeros(len(batch))
    for i in range(len(batch)):
        if not lengths[i]:
            continue
        seen = [
            good[j]
            for j in range(len(batch))
            if lengths[j]
            and known[j]
            and (batch.group[j], batch.agent[j]) == (batch.group[i], batch.agent[i])
        ]
        z = 0.0
        if known[i] and len(set(seen)) > 1:
            mean = sum(seen) / len(seen)
            variance = sum((x - mean) ** 2 for x in seen) / (len(seen) - 1)
            z = (good[i] - mean) / (variance**0.5 + 1e-6)
        a = estimator.outcome_share
        advantage[i] = a * outcome[i] + (1 - a) * z
    return advantage


PLAIN = {"critic_search_reading": plain}


def test_worked_value(make_batch):
    # Outcomes 1 and 0: ±.707106. Verdicts 1 0 1 0 0: mean .4, squares 2·.36 + 3·.16 = 1.2, std
    # √(1.2/4) = .547723; .6/.547723 = 1.095445 and -.730297. Halves: .3536 + .5477 = .9013.
    batch = search(make_batch, [1, 0, 1, 0, 0])
    got = CriticSearchReading(outcome_share=0.5).estimate(batch).advantage
    np.testing.assert_allclose(got, [0.9013, -0.0116, 0.9013, -0.7187, -0.7187], atol=5e-5)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_against_a_plain_loop(random_batch, seed, share):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["judge_good"])
    batch = batch.with_signals({"judge_good": lost})
    estimator = CriticSearchReading(outcome_share=share)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_the_outcome_alone_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = CriticSearchReading(outcome_share=1.0).estimate(batch).advantage
    np.testing.assert_array_equal(got, GRPO().estimate(batch).advantage)


@pytest.mark.parametrize("verdict", [0, 1, np.nan])
def test_verdicts_that_say_nothing_leave_their_share_of_grpo(make_batch, verdict):
    batch = search(make_batch, [verdict] * 5)
    credit = CriticSearchReading(outcome_share=0.25).estimate(batch)
    np.testing.assert_array_equal(credit.advantage, 0.25 * GRPO().estimate(batch).advantage)
    assert credit.stats["missing_labels"] == (5 if np.isnan(verdict) else 0)


def test_a_turn_without_a_verdict_moves_nobody(make_batch):
    with_it = search(make_batch, [1, 0, 1, 0, np.nan])
    estimator = CriticSearchReading(outcome_share=0.0)
    credit = estimator.estimate(with_it)
    # Of 1 0 1 0 the mean is .5 and the std √(1/3).
    np.testing.assert_allclose(credit.advantage, [0.866, -0.866, 0.866, -0.866, 0], atol=1e-4)
    assert credit.stats["missing_labels"] == 1


def test_nonsense_is_refused(make_batch):
    with pytest.raises(ConfigError, match="outcome_share"):
        CriticSearchReading(outcome_share=1.5)
    with pytest.raises(EpisodeError, match="'judge_good' of turn 2 of episode 0 is 7"):
        CriticSearchReading(outcome_share=0.5).estimate(search(make_batch, [1, 0, 7, 0, 0]))
