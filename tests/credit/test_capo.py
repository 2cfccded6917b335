"""CAPO: votes of critiques charge wrong steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.capo import CAPO, CAPOTokensReading, verdict
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain_worth(estimator, batch):
    """r of every turn's agent, and of every token, by loops."""
    wrong = verdict(batch.signals["wrong_share"], estimator.vote, estimator.tie)
    worth, reward = np.zeros(len(batch)), np.zeros(len(batch.logprobs))
    for row in range(len(batch)):
        mine = np.flatnonzero(
            (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        )
        right = batch.reward[mine].sum() > estimator.right_above
        spans = [range(batch.offsets[i], batch.offsets[i + 1]) for i in mine]
        faulty = any(wrong[t] for span in spans for t in span)
        worth[row] = estimator.outcome_weight * right - estimator.process_penalty * faulty
        for t in range(batch.offsets[row], batch.offsets[row + 1]):
            reward[t] = estimator.outcome_weight * right - estimator.process_penalty * wrong[t]
    return worth, reward


def plain(estimator, batch):
    """The scalar form: GRPO of what the agents' episodes are worth."""
    worth = plain_worth(estimator, batch)[0]
    paid = np.where(batch.agents().after == 0, worth, 0.0)
    return plain_outcome(batch, reward=paid)


def plain_tokens(estimator, batch):
    """The token form: z over all tokens of a cell."""
    reward = plain_worth(estimator, batch)[1]
    cells = {}
    for i in range(len(batch)):
        cell = cells.setdefault((batch.group[i], batch.agent[i]), [])
        cell += range(batch.offsets[i], batch.offsets[i + 1])
    out = np.zeros(len(reward))
    for cell in cells.values():
        n = len(cell)
        if n < 2:
            continue
        mean = sum(reward[t] for t in cell) / n
        squares = sum((reward[t] - mean) ** 2 for t in cell)
        spread = (squares / (n - estimator.ddof)) ** 0.5
        for t in cell:
            if spread > 1e-12:
                out[t] = (reward[t] - mean) / (spread + estimator.epsilon)
    return out


PLAIN = {"capo": plain, "capo_tokens_reading": plain_tokens}


def test_votes():
    # Three critiques: [0, 1, 1], [0, 1, 0], [0, 1, 0] on three steps.
    share = np.array([0, 3, 1]) / 3
    assert verdict(share, "intersection").tolist() == [False, True, False]
    assert verdict(share, "majority").tolist() == [False, True, False]
    assert verdict(share, "union").tolist() == [False, True, True]
    assert verdict(np.array([0.5]), "majority").tolist() == [False]
    assert verdict(np.array([0.5]), "majority", tie="wrong").tolist() == [True]


def four(make_batch):
    """Right and clean, right with a wrong step, wrong and clean, wrong with a wrong step."""
    return make_batch(
        [1, 1, 0, 0], lengths=[2] * 4, signals={"wrong_share": [0, 0, 0, 1, 0, 0, 1, 0]}
    )


def test_the_table(make_batch):
    # Worth 2, 1, 0, -1: mean .5, squares 2.25 + .25 + .25 + 2.25 = 5, std √(5/3) = 1.290994.
    got = CAPO().estimate(four(make_batch)).advantage
    np.testing.assert_allclose(got, np.array([1.5, 0.5, -0.5, -1.5]) / 1.290995, atol=1e-6)


def test_token_form_worked_value(make_batch):
    # r = [2, 2, 1, 1] and [0, -1, -1, -1]: mean 3/8, mean square 13/8, std √(13/8 - 9/64) =
    # 1.218349; 1.625 / 1.218349 = 1.333772, .625, -.375 and -1.375 alike.
    batch = make_batch([1, 0], lengths=[4, 4], signals={"wrong_share": [0, 0, 1, 1, 0, 1, 1, 1]})
    got = CAPOTokensReading(ddof=0, epsilon=0.0).estimate(batch).advantage
    expected = [1.333772] * 2 + [0.512989] * 2 + [-0.307794] + [-1.128576] * 3
    np.testing.assert_allclose(got, expected, atol=5e-7)


def test_no_signal(make_batch):
    """Equal outcomes and nobody wrong: 0. One wrong step among them is a signal."""
    clean = make_batch([1, 1], lengths=[2, 2], signals={"wrong_share": [0, 0, 0, 0]})
    noted = make_batch([1, 1], lengths=[2, 2], signals={"wrong_share": [0, 1, 0, 0]})
    for estimator in (CAPO(), CAPOTokensReading(ddof=0)):
        assert not estimator.estimate(clean).advantage.any()
        assert estimator.estimate(noted).advantage.any()


@LAW
@given(SEEDS)
def test_without_the_penalty_it_is_grpo_on_right_or_wrong(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = CAPO(process_penalty=0.0, outcome_weight=1.0).estimate(batch)
    agents = batch.agents()
    right = np.bincount(agents.of, batch.reward, agents.count)[agents.of] > 0
    outcome = replace(batch, reward=np.where(agents.after == 0, right, 0.0))
    np.testing.assert_allclose(got.advantage, GRPO().estimate(outcome).advantage, atol=1e-12)
    assert not got.components["critique"].any()


@pytest.mark.parametrize("vote", ["intersection", "majority", "union"])
def test_against_the_plain_formula(random_batch, vote):
    for seed in range(3):
        batch = random_batch(np.random.default_rng(seed))
        scalar = CAPO(vote=vote, tie="wrong")
        np.testing.assert_allclose(
            scalar.estimate(batch).advantage, plain(scalar, batch), atol=1e-12
        )
        token = CAPOTokensReading(ddof=0, vote=vote)
        np.testing.assert_allclose(
            token.estimate(batch).advantage, plain_tokens(token, batch), atol=1e-10
        )


@LAW
@given(SEEDS)
def test_the_token_form_is_centred_over_the_tokens_of_a_cell(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = CAPOTokensReading(ddof=0).estimate(batch).advantage
    turn = np.repeat(np.arange(len(batch)), batch.lengths)
    cell = batch.group[turn] * 10 + batch.agent[turn]
    np.testing.assert_allclose(np.bincount(cell, got), 0, atol=1e-9)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"capo\.vote has no option 'all'"):
        CAPO(vote="all")
    with pytest.raises(ConfigError, match=r"capo_tokens_reading\.unit"):
        CAPOTokensReading(ddof=0, unit="agent")
    with pytest.raises(ConfigError, match=r"capo\.process_penalty"):
        CAPO(process_penalty=-1.0)
