"""Budgets: factors that move credit between an agent's turns and add none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.avatar_tas import AvatarTAS
from marl_llm.credit.outcome import budgets, spend

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def factors(batch, shares, known=None):
    counted = batch.lengths > 0 if known is None else np.asarray(known, dtype=bool)
    return spend(np.asarray(shares, dtype=float), budgets(batch, batch.agents(), counted))


def test_worked_value(make_batch):
    # Tokens 10, 20, 10 share 2, 1, 2: the mean is (20 + 20 + 20) / 40 = 1.5.
    batch = make_batch([0, 0, 0], episode=[0, 0, 0], lengths=[10, 20, 10])
    np.testing.assert_allclose(factors(batch, [2, 1, 2]), [4 / 3, 2 / 3, 4 / 3])


def test_alone_the_raw_return_is_divided_as_if_the_spread_were_1(make_batch):
    # GRPO's number itself: λ = 0 shapes nothing. 3/(1 + 1).
    alone = AvatarTAS(lam=0.0, singleton="raw", epsilon=1.0)
    assert alone.estimate(make_batch([3])).advantage.tolist() == [1.5]


def test_a_turn_that_does_not_count_keeps_what_it_has(make_batch):
    # Without the middle turn the mean is (10·2 + 10·1) / 20 = 1.5.
    batch = make_batch([0, 0, 0], episode=[0, 0, 0], lengths=[10, 20, 10])
    got = factors(batch, [2, 99, 1], known=[True, False, True])
    np.testing.assert_allclose(got, [4 / 3, 1, 2 / 3])


def test_equal_shares_are_exactly_one_and_so_is_nothing(make_batch):
    batch = make_batch([0] * 3, episode=[0] * 3, lengths=[3, 7, 11])
    for share in (0.0, 0.1, 1 / 3):
        assert factors(batch, [share] * 3).tolist() == [1, 1, 1]


@LAW
@given(SEEDS)
def test_the_budget_of_every_agent_is_kept(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    shares = rng.exponential(size=len(batch)) * rng.integers(0, 2, len(batch))
    spent = factors(batch, shares, known=(batch.lengths > 0) & (rng.random(len(batch)) < 0.8))
    assert np.all(spent >= 0)
    agents = batch.agents()
    tokens = np.bincount(agents.of, batch.lengths, agents.count)
    np.testing.assert_allclose(np.bincount(agents.of, batch.lengths * spent), tokens)
