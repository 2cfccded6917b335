"""SPO-chain: where it cuts, what a segment is worth, and which tokens are left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.pact import PACT
from marl_llm.credit.spo_chain import SPOChain, cut_points
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
P = np.array([0.99, 0.5, 0.95, 0.3, 0.6, 0.97, 0.99, 0.4, 0.92])


def plain(estimator, batch):
    """Agent by agent: its tokens in a row, cut, then segment after segment."""
    credit, value = np.zeros(len(batch.logprobs)), batch.signals["token_value"]
    chance = np.exp(batch.logprobs)
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        end = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        tokens, paid = [], {}
        for k in sorted(np.flatnonzero(mine), key=lambda k: batch.agent_turn[k]):
            tokens += range(batch.offsets[k], batch.offsets[k + 1])
            if tokens:
                paid[tokens[-1]] = paid.get(tokens[-1], 0.0) + batch.reward[k]
        doubtful = [place for place, t in enumerate(tokens) if chance[t] < estimator.uncertain]
        for start, stop in pairwise([*doubtful[:: estimator.interval], len(tokens)]):
            after = end if stop == len(tokens) else value[tokens[stop]]
            segment = tokens[start:stop]
            earned = sum(paid.get(t, 0.0) for t in segment)
            credit[segment] = earned + after - value[tokens[start]]
    kept = chance <= estimator.mask_above
    if estimator.whiten and np.ptp(credit[kept]) > 0:
        spread = credit[kept].var(ddof=estimator.ddof) + estimator.epsilon
        credit = (credit - credit[kept].mean()) / np.sqrt(spread)
    return np.where(kept, credit, 0.0)


PLAIN = {"spo_chain": plain}


def with_chances(batch, rng):
    return replace(batch, logprobs=np.log(rng.uniform(0.05, 1.0, len(batch.logprobs))))


def response(make_batch, value):
    batch = make_batch([1], lengths=[9], signals={"token_value": value})
    return replace(batch, logprobs=np.log(P))


@pytest.mark.parametrize(
    ("interval", "expected"),
    # Before the uncertain tokens 1, 3, 4 and 7; every second of them.
    [(1, [1, 3, 4, 7]), (2, [1, 4]), (3, [1, 7]), (5, [1])],
)
def test_cuts_are_in_front_of_uncertain_tokens(make_batch, interval, expected):
    batch = response(make_batch, [0.0] * 9)
    cut = cut_points(
        batch.logprobs, batch.offsets, batch.agents(), uncertain=0.9, interval=interval
    )
    assert np.flatnonzero(cut).tolist() == expected


def test_worked_values(make_batch):
    # Cuts before tokens 1 and 4 with V .4 and .7, return 1: .7 - .4 and 1 - .7, and nothing before.
    # What V is elsewhere plays no part.
    value = np.full(9, 1e9)
    value[[1, 4]] = 0.4, 0.7
    batch = response(make_batch, value)
    open_ = SPOChain(interval=2, mask_above=1.0, whiten=False).estimate(batch)
    np.testing.assert_allclose(open_.advantage, [0] + [0.3] * 8)
    assert open_.stats["segments"] == 2
    assert open_.stats["masked_tokens"] == 0
    masked = SPOChain(interval=2, whiten=False).estimate(batch)
    np.testing.assert_allclose(masked.advantage, [0, 0.3, 0, 0.3, 0.3, 0, 0, 0.3, 0])
    assert masked.stats["masked_tokens"] == 5


def test_a_first_uncertain_token_leaves_nothing_out(make_batch):
    batch = make_batch([1], lengths=[2], signals={"token_value": [0.25, 0.5]})
    batch = replace(batch, logprobs=np.log([0.5, 0.95]))
    got = SPOChain(mask_above=1.0, whiten=False).estimate(batch).advantage
    assert got.tolist() == [0.75, 0.75]


def test_sure_of_everything_nothing_is_learned(make_batch):
    batch = make_batch([1], lengths=[3], signals={"token_value": [0.2, 0.5, 0.9]})
    batch = replace(batch, logprobs=np.log([0.95, 0.99, 1.0]))
    for whiten in (False, True):
        got = SPOChain(mask_above=1.0, whiten=whiten).estimate(batch)
        assert not got.advantage.any()
        assert got.stats["segments"] == 0


def test_counting_and_segments_run_over_the_turns_of_an_agent(make_batch):
    # Agent 0 is uncertain at its tokens 0, 1 | 0, 1: every third is the first of all and the second
    # of its second turn. Agent 1 in between counts by itself. Rewards 1 and 2 for agent 0.
    batch = make_batch(
        [1, 5, 2],
        episode=[0, 0, 0],
        agent=[0, 1, 0],
        lengths=[2, 1, 2],
        signals={"token_value": [0.5, 9, 4, 9, 0.25]},
    )
    got = SPOChain(interval=3, whiten=False).estimate(batch).advantage
    # 1 + .25 - .5 up to the second cut, over the end of the turn; then 2 - .25; and 5 - 4.
    assert got.tolist() == [0.75, 0.75, 1, 0.75, 1.75]


@LAW
@given(SEEDS, st.integers(1, 4), st.sampled_from([0.3, 0.9, 1.0]), st.booleans())
def test_it_equals_the_loop(random_batch, seed, interval, mask_above, whiten):
    rng = np.random.default_rng(seed)
    batch = with_chances(random_batch(rng, silent=0.3), rng)
    estimator = SPOChain(uncertain=0.6, interval=interval, mask_above=mask_above, whiten=whiten)
    for rows in (np.arange(len(batch)), rng.permutation(len(batch))):
        there = batch.take(rows)
        got = estimator.estimate(there).advantage
        np.testing.assert_allclose(got, plain(estimator, there), atol=1e-12)


@LAW
@given(SEEDS)
def test_segments_sum_to_return_minus_first_value(make_batch, seed):
    rng = np.random.default_rng(seed)
    value = rng.normal(size=30)
    batch = make_batch([rng.normal()], lengths=[30], signals={"token_value": value})
    batch = with_chances(batch, rng)
    at = cut_points(batch.logprobs, batch.offsets, batch.agents(), uncertain=0.7, interval=2)
    cuts = np.flatnonzero(at)
    estimator = SPOChain(uncertain=0.7, interval=2, mask_above=1.0, whiten=False)
    gains = estimator.estimate(batch).advantage[cuts]
    if len(cuts):
        assert gains.sum() == pytest.approx(batch.reward[0] - value[cuts[0]])


@LAW
@given(SEEDS)
def test_cut_everywhere_it_is_the_credit_of_each_token(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = with_chances(random_batch(rng), rng)
    got = SPOChain(uncertain=1.0, interval=1, mask_above=1.0, whiten=False).estimate(batch)
    expected = PACT().estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_masked_tokens_are_not_whitened(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = with_chances(random_batch(rng), rng)
    got = SPOChain(interval=1, mask_above=0.5).estimate(batch)
    open_ = batch.logprobs <= np.log(0.5)
    assert not got.advantage[~open_].any()
    assert got.advantage[open_].mean() == pytest.approx(0, abs=1e-9)
    assert got.advantage[open_].var(ddof=1) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(sum(got.components.values()), got.advantage, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 0}, r"spo_chain.interval must be finite and >= 1"),
        ({"uncertain": 1.5}, r"spo_chain.uncertain"),
        ({"mask_above": 0.0}, r"spo_chain.mask_above"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        SPOChain(**options)
