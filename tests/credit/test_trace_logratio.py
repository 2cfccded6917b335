"""TRACE: log-ratio temporal differences over a window."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.trace_logratio import TraceLogRatio
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)
DELTA = TraceLogRatio(window=1, outcome_weight=0.0, trace_weight=1.0)


def plain(estimator, batch):
    """GRPO's number and the window of every turn, turn by turn."""
    lengths = batch.lengths
    eps_d, window, decay = estimator.eps_d, estimator.window, estimator.decay
    outcome = plain_outcome(batch)
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    before, after = batch.signals["gold_before"], batch.signals["gold_after"]
    out = np.zeros(len(batch))
    for rows in chains.values():
        for k, i in enumerate(rows):
            total = weight = 0.0
            for u, j in enumerate(rows[k : k + window]):
                if lengths[j] > 0:
                    total += decay**u * np.log((eps_d - before[j]) / (eps_d - after[j]))
                    weight += decay**u
            if lengths[i] > 0:
                ahead = total / weight if weight else 0.0
                out[i] = estimator.outcome_weight * outcome[i] + estimator.trace_weight * ahead
    return out


PLAIN = {"trace_logratio": plain, "trace_delta": plain}


@pytest.fixture
def search(make_batch):
    """Log-probs -4 -2 -2 -.5 around three turns that lose, beside a turn that wins."""
    signals = {"gold_before": [-4, -2, -2, -1], "gold_after": [-2, -2, -0.5, -1]}
    return make_batch([0, 0, 0, 1], episode=[0, 0, 0, 1], signals=signals)


def test_worked_value(search):
    # d = 4.1 2.1 2.1 .6: δ = log 4.1/2.1 = .6690, 0, log 3.5 = 1.2528. Windows: (.669 + 0 + .64 ·
    # 1.2528)/2.44 = .6028, .8 · 1.2528/1.8 = .5568, 1.2528. z(R) = -1 with the population's std.
    credit = TraceLogRatio(ddof=0, epsilon=0.0).estimate(search)
    np.testing.assert_allclose(credit.advantage[:3], [-0.8794, -0.8886, -0.7494], atol=1e-4)
    np.testing.assert_allclose(
        credit.components["trace"][:3], 0.2 * np.array([0.6028, 0.5568, 1.2528]), atol=1e-4
    )
    np.testing.assert_allclose(DELTA.estimate(search).advantage, [0.669, 0, 1.2528, 0], atol=1e-4)


@LAW
@given(SEEDS, st.integers(1, 6), st.floats(0, 1), st.floats(0.01, 1))
def test_as_a_plain_loop_does_it(random_batch, seed, window, decay, eps_d):
    batch = random_batch(np.random.default_rng(seed))
    estimator = TraceLogRatio(
        window=window, decay=decay, eps_d=eps_d, outcome_weight=0.5, trace_weight=1.0
    )
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_the_trace_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = TraceLogRatio(trace_weight=0.0).estimate(batch).advantage
    np.testing.assert_allclose(got, GRPO().estimate(batch).advantage, atol=1e-12)


@LAW
@given(SEEDS)
def test_differences_telescope_along_an_agent_that_is_alone(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), agents=1, silent=0.0)
    before = -np.random.default_rng(seed).exponential(size=len(batch))
    after = np.where(batch.agents().after == 0, -0.5, np.roll(before, -1))
    batch = batch.with_signals({"gold_before": before, "gold_after": after})
    got = DELTA.estimate(batch).advantage
    for episode in np.unique(batch.episode):
        rows = np.flatnonzero(batch.episode == episode)
        assert got[rows].sum() == pytest.approx(np.log((0.1 - before[rows[0]]) / 0.6))


@LAW
@given(SEEDS)
def test_nearer_is_positive(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = DELTA.estimate(batch).advantage
    nearer = batch.signals["gold_after"] - batch.signals["gold_before"]
    np.testing.assert_array_equal(np.sign(got), np.sign(nearer))


@LAW
@given(SEEDS, st.floats(0.1, 10))
def test_without_eps_the_unit_of_log_probs_does_not_matter(random_batch, seed, k):
    batch = random_batch(np.random.default_rng(seed))
    scaled = batch.with_signals({
        name: k * batch.signals[name] for name in ("gold_before", "gold_after")
    })  # fmt: skip
    free = TraceLogRatio(eps_d=0.0)
    np.testing.assert_allclose(
        free.estimate(scaled).advantage, free.estimate(batch).advantage, atol=1e-9
    )


def test_a_missing_probe_leaves_the_windows(search):
    # Without the first turn's probe its window is (.8 · 0 + .64 · 1.2528)/(.8 + .64) = .5568.
    batch = search.with_signals({"gold_before": np.array([np.nan, -2, -2, -1])})
    credit = TraceLogRatio(outcome_weight=0.0, trace_weight=1.0).estimate(batch)
    np.testing.assert_allclose(credit.advantage[0], 0.5568, atol=1e-4)
    assert DELTA.estimate(batch).advantage[0] == 0
    assert credit.stats["missing_labels"] == 1


def test_certainty_needs_eps(search):
    batch = search.with_signals({"gold_after": np.array([-2.0, 0.0, -0.5, -1.0])})
    assert np.isfinite(DELTA.estimate(batch).advantage).all()
    with pytest.raises(EpisodeError, match=r"turn 1 of episode 0 is 0.*eps_d above 0"):
        TraceLogRatio(eps_d=0.0).estimate(batch)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"trace_logratio\.window"):
        TraceLogRatio(window=0)
