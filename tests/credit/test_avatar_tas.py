"""AVATAR's temporal advantage shaping: a parabola over each response."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.avatar_tas import AvatarTAS
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """GRPO's number times the weights of the tokens, turn by turn."""
    lengths = batch.lengths
    outcome = plain_outcome(batch)
    out = np.zeros(len(batch.logprobs))
    for i in range(len(batch)):
        start, n = batch.offsets[i], lengths[i]
        weight = [
            1 + estimator.lam * (2 * t / (n - 1) - 1) ** 2 if n > 1 else 1.0 for t in range(n)
        ]
        total = sum(weight)
        for t in range(n):
            kept = n / total if estimator.keep_mass else 1.0
            out[start + t] = outcome[i] * weight[t] * kept
    return out


PLAIN = {"avatar_tas": plain}


def weights(make_batch, n, **options):
    batch = make_batch([1.0, 0.0], lengths=[n, 1])
    credit = AvatarTAS(**options).estimate(batch)
    return (credit.advantage / credit.components["response"])[:n]


def test_worked_value(make_batch):
    # 2t/4 - 1 = -1, -1/2, 0, 1/2, 1; squares 1, 1/4, 0, 1/4, 1; times λ = 1/2.
    np.testing.assert_allclose(weights(make_batch, 5, lam=0.5), [1.5, 1.125, 1, 1.125, 1.5])
    # Their sum is 6.25: kept at 5, each is multiplied by .8.
    got = weights(make_batch, 5, lam=0.5, keep_mass=True)
    np.testing.assert_allclose(got, [1.2, 0.9, 0.8, 0.9, 1.2])


def test_a_single_token_has_no_ends(make_batch):
    np.testing.assert_allclose(weights(make_batch, 1, lam=0.5), [1.0])


def test_the_step_grows_by_a_third_of_lam(make_batch):
    assert weights(make_batch, 2001, lam=0.6).mean() == pytest.approx(1.2, abs=1e-3)


@pytest.mark.parametrize("keep_mass", [False, True])
def test_against_the_plain_formula(random_batch, keep_mass):
    estimator = AvatarTAS(lam=0.7, keep_mass=keep_mass)
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed))
        credit = estimator.estimate(batch)
        np.testing.assert_allclose(credit.advantage, plain(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS, st.floats(0, 5))
def test_ends_mirror_each_other_and_no_factor_is_below_one(random_batch, seed, lam):
    batch = random_batch(np.random.default_rng(seed))
    credit = AvatarTAS(lam=lam).estimate(batch)
    for turn in np.split(credit.advantage, batch.offsets[1:-1]):
        np.testing.assert_allclose(turn, turn[::-1], atol=1e-12)
    assert np.all(np.abs(credit.advantage) >= np.abs(credit.components["response"]) - 1e-12)


def test_lam_is_asked_for():
    with pytest.raises(TypeError, match="lam"):
        AvatarTAS()
    with pytest.raises(ConfigError, match=r"avatar_tas\.lam"):
        AvatarTAS(lam=-0.1)
