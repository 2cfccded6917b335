"""FRPO and FIPO: a token answers for the tokens after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.fipo import FIPO, future_shift
from marl_llm.credit.frpo import FRPO
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain_frpo(estimator, batch):
    """A_t by loops over an agent's tokens."""
    outcome = plain_outcome(batch, ddof=estimator.ddof, epsilon=estimator.epsilon)
    drift = batch.logprobs - batch.signals["reference_logprob"]
    out = np.zeros(len(drift))
    for row in range(len(batch)):
        later = [row]
        if estimator.response == "agent":
            mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
            behind = mine & (batch.agent_turn > batch.agent_turn[row])
            later += np.flatnonzero(behind).tolist()
        for t in range(batch.offsets[row], batch.offsets[row + 1]):
            total = sum(drift[t : batch.offsets[row + 1]])
            for other in later[1:]:
                total += sum(drift[batch.offsets[other] : batch.offsets[other + 1]])
            out[t] = outcome[row] - estimator.beta * total
    return out


def plain_fipo(estimator, batch):
    """A_t by loops over each turn."""
    base = np.repeat(plain_outcome(batch), batch.lengths)
    shift = batch.signals["new_logprob"] - batch.signals["old_logprob"]
    out = np.zeros(len(shift))
    decay = 2 ** (-1 / estimator.half_life)
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        for t in range(start, stop):
            future = 0.0
            for k in range(t, stop):
                if estimator.outlier is None or np.exp(shift[k]) <= estimator.outlier:
                    future += decay ** (k - t) * shift[k]
            low = 1.0 if estimator.high_only else 1 - estimator.clip
            factor = min(max(np.exp(future), low), 1 + estimator.clip)
            if base[t] < 0 and np.exp(shift[t]) > estimator.safe_ratio:
                factor = min(max(factor, 0.8), 1.0)
            out[t] = base[t] * factor
    return out


PLAIN = {"frpo": plain_frpo, "fipo": plain_fipo}


def test_frpo_worked_value(make_batch):
    # R = 1 and 0, ddof 0: A = ±1. log-ratios [.2, -.1, .4] to come: .5, .3, .4; β = .1.
    batch = make_batch(
        [1.0, 0.0], lengths=[3, 1],
        signals={"reference_logprob": [-0.7, -0.4, -0.9, -0.5]},  # π has -.5 everywhere
    )  # fmt: skip
    got = FRPO(beta=0.1).estimate(batch).advantage
    np.testing.assert_allclose(got, [0.95, 0.97, 0.96, -1.0], atol=1e-12)


def test_returns_that_differ_by_rounding_alone_are_equal(make_batch):
    # The same three rewards in another order; and rewards that cancel, or all but cancel.
    for rewards in ([0.1, 0.2, 0.3, 0.3, 0.2, 0.1], [0.1, 0.2, -0.3, -0.3, 0.2, 0.1]):
        batch = make_batch(rewards, episode=[0, 0, 0, 1, 1, 1], group=[0] * 6)
        batch = batch.with_signals({"reference_logprob": batch.logprobs})
        got = FRPO(beta=0.1).estimate(batch).advantage
        np.testing.assert_allclose(got, 0.0, atol=1e-8)


def test_the_kl_is_charged_after_the_reward_was_normalised(make_batch):
    """Inside the reward it would be divided by the spread that it makes itself."""
    reference = np.array([-0.5, -0.5, -2.5, -0.5])
    batch = make_batch(
        [1.0, 1.0, 1.0, 1.0], lengths=[1] * 4, signals={"reference_logprob": reference}
    )
    got = FRPO(beta=0.1).estimate(batch).advantage
    np.testing.assert_allclose(got, [0, 0, -0.2, 0], atol=1e-12)  # equal rewards, and not 0
    inside = replace(batch, reward=batch.reward - 0.1 * (batch.logprobs - reference))
    # -.2 in one of four: mean -.05, std √((3 · .05² + .15²)/4) = .0866, so A = -1.73 there.
    collapsed = GRPO(ddof=0, epsilon=0.0).estimate(inside).advantage
    np.testing.assert_allclose(collapsed[2], -0.15 / np.sqrt(0.0075))


@pytest.mark.parametrize("response", ["agent", "turn"])
def test_frpo_against_the_plain_formula(random_batch, response):
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed))
        estimator = FRPO(beta=0.3, response=response)
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain_frpo(estimator, batch), atol=1e-10)


@LAW
@given(SEEDS)
def test_neighbouring_tokens_differ_by_the_drift_between_them(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = FRPO(beta=0.3).estimate(batch).advantage
    drift = batch.logprobs - batch.signals["reference_logprob"]
    inner = np.setdiff1d(np.arange(len(drift) - 1), batch.offsets[1:] - 1)
    np.testing.assert_allclose(got[inner] - got[inner + 1], -0.3 * drift[inner], atol=1e-9)


def shifted(make_batch, new, reward=1.0):
    zeros = [0.0] * (len(new) + 1)
    signals = {"new_logprob": [*new, 0.0], "old_logprob": zeros}
    return make_batch([reward, 0.0], lengths=[len(new), 1], signals=signals)


def factors(make_batch, new, reward=1.0, **options):
    credit = FIPO(**options).estimate(shifted(make_batch, new, reward))
    return (credit.advantage / credit.components["response"])[: len(new)]


def test_fipo_worked_value(make_batch):
    # γ = 2^(-1/32) = .978572. F_3 = .3; F_2 = -.2 + .3 γ = .093572; F_1 = .1 + γ F_2 = .191567.
    future = future_shift(np.array([0.1, -0.2, 0.3]), np.array([0, 3]), 32.0)
    np.testing.assert_allclose(future, [0.191567, 0.093572, 0.3], atol=5e-7)
    # e^.191567 = 1.211 and e^.3 = 1.350 are cut to 1.2; e^.093572 = 1.098089.
    got = factors(make_batch, [0.1, -0.2, 0.3])
    np.testing.assert_allclose(got, [1.2, 1.098089, 1.2], atol=5e-7)


def test_the_factor_falls_below_one_only_if_asked(make_batch):
    np.testing.assert_allclose(factors(make_batch, [-0.1, -0.5]), [1.0, 1.0])
    got = factors(make_batch, [-0.05, -0.1], high_only=False, half_life=1.0)
    # γ = 1/2: F = [-.05 - .05, -.1], e^-.1 = .904837.
    np.testing.assert_allclose(got, [0.904837, 0.904837], atol=5e-7)


def test_the_cap_of_risky_tokens_comes_after_the_clip(make_batch):
    # ρ = e^2 = 7.4 > 4 at the first token. A < 0: 1.2 is cut to 1. A > 0: it stays 1.2.
    assert factors(make_batch, [2.0, 0.0], reward=-1.0)[0] == pytest.approx(1.0)
    assert factors(make_batch, [2.0, 0.0], reward=1.0)[0] == pytest.approx(1.2)
    # ρ = e^1 = 2.7 is not risky.
    assert factors(make_batch, [1.0, 0.0], reward=-1.0)[0] == pytest.approx(1.2)


def test_an_outlier_does_not_count_in_the_future_of_others(make_batch):
    # With the ratio e^3 left out, the future of the first token is 0.
    assert factors(make_batch, [0.0, 3.0], outlier=10.0)[0] == pytest.approx(1.0)
    assert factors(make_batch, [0.0, 3.0])[0] == pytest.approx(1.2)


@pytest.mark.parametrize(
    "options", [{}, {"high_only": False}, {"outlier": 1.5, "safe_ratio": 1.2, "half_life": 2.0}]
)
def test_fipo_against_the_plain_formula(random_batch, options):
    estimator = FIPO(**options)
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed))
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain_fipo(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_on_the_first_step_fipo_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    fresh = replace(
        batch, signals={**batch.signals, "new_logprob": batch.signals["old_logprob"]}
    )  # fmt: skip
    credit = FIPO().estimate(fresh)
    assert not credit.components["shape"].any()


@LAW
@given(SEEDS)
def test_a_sign_never_changes_and_factors_stay_in_the_band(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = FIPO(high_only=False).estimate(batch)
    some = credit.components["response"] != 0
    factor = credit.advantage[some] / credit.components["response"][some]
    assert np.all((factor >= 0.8 - 1e-12) & (factor <= 1.2 + 1e-12))


def test_an_exploded_shift_is_finite(make_batch):
    assert np.all(np.isfinite(FIPO().estimate(shifted(make_batch, [5e3, -5e3, 5e3])).advantage))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FRPO(beta=-1.0), "frpo.beta"),
        (lambda: FIPO(half_life=0.0), "fipo.half_life"),
        (lambda: FIPO(clip=1.5), "fipo.clip"),
        (lambda: FIPO(outlier=0.5), "fipo.outlier"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_beta_has_no_default():
    with pytest.raises(TypeError, match="beta"):
        FRPO()
