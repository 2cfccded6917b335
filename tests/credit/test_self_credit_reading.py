"""Self-Credit: a budget moved to the turns that the answer cites."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.self_credit_reading import SelfCreditReading
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The formula, agent by agent."""
    lengths = batch.lengths
    outcome = plain_outcome(batch)
    cited, known = batch.signals["cited"], batch.known("cited")
    advantage = outcome.copy()
    for episode, agent in set(zip(batch.episode.tolist(), batch.agent.tolist(), strict=True)):
        turns = [
            i
            for i in range(len(batch))
            if (batch.episode[i], batch.agent[i]) == (episode, agent) and lengths[i] and known[i]
        ]
        tokens = sum(lengths[i] for i in turns)
        total = sum(lengths[i] * (1 + estimator.kappa * cited[i]) for i in turns)
        for i in turns:
            advantage[i] = outcome[i] * (1 + estimator.kappa * cited[i]) * tokens / total
    return advantage


PLAIN = {"self_credit_reading": plain}


def test_worked_value(make_batch):
    # w = 2, 1, 2 over 10, 20, 10 tokens, mean 60/40 = 1.5: 4/3, 2/3, 4/3, and 40 in all.
    batch = make_batch(
        [1, 0, 0], episode=[0] * 3, lengths=[10, 20, 10], signals={"cited": [1, 0, 1]}
    )
    estimator = SelfCreditReading(kappa=1.0, by=("episode",), singleton="raw", epsilon=0.0)
    np.testing.assert_allclose(estimator.estimate(batch).advantage, [4 / 3, 2 / 3, 4 / 3])


@LAW
@given(SEEDS, st.floats(0, 5))
def test_against_a_plain_loop(random_batch, seed, kappa):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["cited"])
    batch = batch.with_signals({"cited": lost})
    estimator = SelfCreditReading(kappa=kappa)
    credit = estimator.estimate(batch)
    np.testing.assert_allclose(credit.advantage, plain(estimator, batch), atol=1e-9)
    assert credit.stats["missing_labels"] == np.sum(np.isnan(lost) & (batch.lengths > 0))


@LAW
@given(SEEDS)
def test_the_sum_over_tokens_stays_and_no_sign_changes(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    base = GRPO().estimate(batch).advantage
    got = SelfCreditReading(kappa=3.0).estimate(batch).advantage
    agents = batch.agents()
    np.testing.assert_allclose(
        np.bincount(agents.of, batch.lengths * got),
        np.bincount(agents.of, batch.lengths * base),
        atol=1e-9,
    )
    np.testing.assert_array_equal(np.sign(got), np.sign(base))


@pytest.mark.parametrize(("kappa", "cited"), [(2.0, 0), (2.0, 1), (2.0, np.nan), (0.0, None)])
def test_citations_that_say_nothing_leave_grpo(random_batch, kappa, cited):
    batch = random_batch(np.random.default_rng(1))
    if cited is not None:
        batch = batch.with_signals({"cited": np.full(len(batch), float(cited))})
    got = SelfCreditReading(kappa=kappa).estimate(batch).advantage
    np.testing.assert_array_equal(got, GRPO().estimate(batch).advantage)


def test_a_negative_kappa_is_refused():
    with pytest.raises(ConfigError, match=r"self_credit_reading.kappa"):
        SelfCreditReading(kappa=-0.5)
