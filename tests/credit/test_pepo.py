"""PEPO: local entropy decides how a success is shared out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.pepo import PEPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """The formula, turn by turn and token by token."""
    outcome = plain_outcome(batch)
    out = np.zeros(len(batch.logprobs))
    for row in range(len(batch)):
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        start, stop = batch.offsets[row], batch.offsets[row + 1]
        entropy = batch.signals["entropy"][start:stop]
        share = []
        for t in range(stop - start):
            near = [k for k in range(stop - start) if abs(k - t) <= estimator.window / 2]
            around = sum(np.exp(entropy[k]) for k in near)
            share.append(np.exp(entropy[t]) / around * (len(near) if estimator.edges == "mean"
                                                        else 1))  # fmt: skip
        total, good = sum(share), batch.reward[mine].sum() > 0
        for t in range(stop - start):
            weight = share[t] / total * (stop - start) if good else 1.0
            out[start + t] = outcome[row] * weight
    return out


PLAIN = {"pepo": plain}


def one_turn(make_batch, entropy, reward=1.0):
    """A turn of an episode against a silent-free other one of return 0, and its A."""
    lengths = [len(entropy), 1]
    return make_batch([reward, 0.0], lengths=lengths, signals={"entropy": [*entropy, 0.0]})


def shares(make_batch, entropy, **options):
    batch = one_turn(make_batch, entropy)
    credit = PEPO(**options).estimate(batch)
    return (credit.advantage / credit.components["response"])[: len(entropy)]


def test_worked_value(make_batch):
    # exp H = [1.105171, 3.320117, 1.105171, 1.648721, 1.648721]; windows of three sum to
    # [4.425288, 5.530459, 6.074009, 4.402613, 3.297443]: e = [.249740, .600333, .181951, .374487,
    # .5], together 1.906511; c = 5 e / 1.906511.
    got = shares(make_batch, [0.1, 1.2, 0.1, 0.5, 0.5], window=3)
    np.testing.assert_allclose(got, [0.654966, 1.574429, 0.477183, 0.982127, 1.311296], atol=5e-7)


def test_equal_entropies_favour_the_ends_by_the_formula(make_batch):
    # e = [1/2, 1/3, 1/3, 1/2]: c = [1.2, .8, .8, 1.2]. With means over the window all are 1.
    np.testing.assert_allclose(shares(make_batch, [0.3] * 4, window=3), [1.2, 0.8, 0.8, 1.2])
    np.testing.assert_allclose(shares(make_batch, [0.3] * 4, window=3, edges="mean"), np.ones(4))


def test_failures_are_left_alone(make_batch):
    batch = one_turn(make_batch, [0.1, 1.2, 0.1], reward=-1.0)
    credit = PEPO(window=3).estimate(batch)
    np.testing.assert_array_equal(credit.advantage, credit.components["response"])
    assert credit.advantage[0] < 0


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"window": 1}, {"edges": "mean"}])
def test_against_the_plain_formula(random_batch, options):
    estimator = PEPO(**{"window": 3, **options})
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed))
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS, st.floats(-300, 300))
def test_mass_and_sign_are_kept_and_a_constant_of_entropy_cancels(random_batch, seed, constant):
    batch = random_batch(np.random.default_rng(seed))
    credit = PEPO(window=3).estimate(batch)
    held = np.flatnonzero(batch.lengths)
    before, after = (
        np.add.reduceat(x, batch.offsets[held])
        for x in (credit.components["response"], credit.advantage)
    )
    np.testing.assert_allclose(after, before, atol=1e-9)
    assert np.all(credit.advantage * credit.components["response"] >= 0)
    entropy = batch.signals["entropy"] + constant
    moved = PEPO(window=3).estimate(
        replace(batch, signals={**batch.signals, "entropy": entropy})
    )  # fmt: skip
    np.testing.assert_allclose(moved.advantage, credit.advantage, atol=1e-9)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"pepo\.window"):
        PEPO(window=0)
    with pytest.raises(ConfigError, match=r"pepo\.window must be odd.*got 4"):
        PEPO(window=4)
    with pytest.raises(ConfigError, match=r"pepo\.edges"):
        PEPO(edges="median")
