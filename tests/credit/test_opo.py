"""OPO: the mean in which long replies weigh more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.opo import OPO
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def advantage(batch, **options):
    return OPO(**options).estimate(batch).advantage


def plain(estimator, batch):
    """The formula, group by group and agent by agent."""
    lengths = batch.lengths
    out = np.zeros(len(batch))
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            earned, length, rows_of = [], [], []
            for episode in np.unique(batch.episode):
                rows = np.flatnonzero(
                    (batch.group == group) & (batch.agent == agent) & (batch.episode == episode)
                )
                if len(rows) and lengths[rows].sum():
                    earned.append(batch.reward[rows].sum())
                    length.append(lengths[rows].sum())
                    rows_of.append(rows)
            for total, rows in zip(earned, rows_of, strict=True):
                if len(earned) > 1:
                    out[rows] = total - np.dot(length, earned) / np.sum(length)
    return np.where(lengths > 0, out, 0.0)


PLAIN = {"opo": plain}


def test_worked_values(f1):
    # Group a: (1 * 1 + 3 * 0 + 2 * 0 + 3 * 1)/9 = 4/9; group b: equal returns; c: alone.
    got = advantage(f1)
    np.testing.assert_allclose(got, [5 / 9, -4 / 9, -4 / 9, 5 / 9, 0, 0, 0], atol=1e-15)
    assert not got[4:].any()


def test_alone_is_a_matter_of_agents_and_not_of_tokens(make_batch):
    """A row of seven tokens has nobody to be compared with, although seven are counted."""
    alone = make_batch([3.0], lengths=[7])
    assert advantage(alone).tolist() == [0]
    assert advantage(alone, singleton="raw").tolist() == [3]
    assert OPO().estimate(alone).stats["singletons"] == 1
    with pytest.raises(EpisodeError, match="nobody"):
        advantage(alone, singleton="error")


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    np.testing.assert_allclose(advantage(batch), plain(OPO(), batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_the_tokens_of_a_cell_add_up_to_nothing(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = batch.lengths * advantage(batch)
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            assert abs(got[(batch.group == group) & (batch.agent == agent)].sum()) < 1e-9


@LAW
@given(SEEDS)
def test_equal_lengths_make_dr_grpo(make_batch, seed):
    rng = np.random.default_rng(seed)
    batch = make_batch(
        rng.normal(size=12), episode=np.arange(12) // 2, group=np.arange(12) // 6, lengths=[4] * 12
    )
    np.testing.assert_allclose(advantage(batch), DrGRPO().estimate(batch).advantage, atol=1e-12)


def test_another_unit_would_be_another_method():
    with pytest.raises(ConfigError, match=r"opo\.unit has no option 'agent'"):
        OPO(unit="agent")
