"""IAPO: a budget moved along a graph of support."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.iapo import Iapo
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
NAMES = ("support_out", "support_in", "contradicted", "faulty")


def graph(make_batch, reward, lengths, *labels):
    """An episode with a return, and the graph of its turns."""
    return make_batch(
        [reward] + [0] * (len(lengths) - 1), episode=[0] * len(lengths), lengths=lengths
    ).with_signals({name: np.array(x, float) for name, x in zip(NAMES, labels, strict=True)})


def raw(**more):
    """Returns as advantages: every episode is alone, and measured against nothing."""
    return Iapo(by=("episode",), singleton="raw", epsilon=0.0, **more)


def plain(estimator, batch):
    """The formula, agent by agent."""
    lengths = batch.lengths
    outcome = plain_outcome(batch)
    out, into, against, faulty = (batch.signals[name] for name in NAMES)
    known = np.logical_and.reduce([batch.known(name) for name in NAMES])
    advantage = outcome.copy()
    for episode, agent in set(zip(batch.episode.tolist(), batch.agent.tolist(), strict=True)):
        turns = [
            i
            for i in range(len(batch))
            if (batch.episode[i], batch.agent[i]) == (episode, agent) and lengths[i] and known[i]
        ]
        tokens = sum(lengths[i] for i in turns)

        def mean(x, turns=turns, tokens=tokens):
            return sum(lengths[i] * x[i] for i in turns) / tokens

        def reliance(phi, turns=turns, mean=mean):
            middle = mean(phi)
            spread = mean({i: (phi[i] - middle) ** 2 for i in turns}) ** 0.5
            clip = estimator.clip
            z = {i: (phi[i] - middle) / (spread + estimator.graph_epsilon) for i in turns}
            m = {i: math.exp(min(max(z[i], -clip), clip)) for i in turns}
            return {i: m[i] / mean(m) for i in turns}

        if not turns:
            continue
        plus = {i: math.log(1 + out[i] + into[i]) for i in turns}
        minus = {i: math.log(1 + faulty[i] * (1 + against[i] + into[i])) for i in turns}
        weight = reliance(minus)
        if outcome[turns[0]] >= 0:
            m, middle = reliance(plus), mean(minus)
            u = {i: m[i] * math.exp(-estimator.beta * (minus[i] - middle)) for i in turns}
            weight = {i: u[i] / mean(u) for i in turns}
        for i in turns:
            advantage[i] = outcome[i] * weight[i]
    return advantage


PLAIN = {"iapo": plain}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        # φ⁺ = log 4, 0, log 3, ζ clipped to ±.25: e^±.25 = 1.28403, .77880, mean 1.03141, so m =
        # 1.24492, .75508. φ⁻ = 0, log 3, 0, mean .54931: factors e^±.027465 = 1.02785, .97291.
        # Products 1.27959, .73462, mean 1.00711.
        (1, [1.2706, 0.7294, 1.2706]),
        (-1, [-0.7551, -1.2449, -0.7551]),
    ],
)
def test_worked_values(make_batch, reward, expected):
    batch = graph(make_batch, reward, [10, 20, 10], [2, 0, 0], [1, 0, 2], [0, 1, 0], [0, 1, 0])
    np.testing.assert_allclose(raw().estimate(batch).advantage, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        # φ⁺ = log 4, log 3, log 2, log 2; φ⁻ = 0, log 4, 0, 0; means over 45 tokens.
        (1, [1.191781, 1.111971, 0.722852, 0.722852]),
        (-1, [-0.776204, -1.279745, -0.776204, -0.776204]),
    ],
)
def test_worked_values_of_four_turns(make_batch, reward, expected):
    batch = graph(
        make_batch, reward, [10, 20, 10, 5], [2, 1, 0, 0], [1] * 4, [0, 1, 0, 0], [0, 1, 0, 0]
    )
    got = raw().estimate(batch).advantage
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert np.sum(batch.lengths * got) == pytest.approx(45 * reward)


@LAW
@given(SEEDS)
def test_against_a_plain_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["faulty"])
    batch = batch.with_signals({"faulty": lost})
    credit = Iapo().estimate(batch)
    np.testing.assert_allclose(credit.advantage, plain(Iapo(), batch), atol=1e-9)
    assert credit.stats["missing_labels"] == np.sum(np.isnan(lost) & (batch.lengths > 0))


@LAW
@given(SEEDS, st.floats(0, 1))
def test_the_sum_over_tokens_stays_and_factors_are_bounded(random_batch, seed, clip):
    batch = random_batch(np.random.default_rng(seed))
    base, got = (
        GRPO().estimate(batch).advantage,
        Iapo(clip=clip, beta=0.0).estimate(batch).advantage,
    )
    agents = batch.agents()
    np.testing.assert_allclose(
        np.bincount(agents.of, batch.lengths * got),
        np.bincount(agents.of, batch.lengths * base),
        atol=1e-9,
    )
    some = base != 0
    factor = got[some] / base[some]
    assert np.all((factor >= np.exp(-2 * clip) - 1e-9) & (factor <= np.exp(2 * clip) + 1e-9))


@pytest.mark.parametrize("out", [0, 3, np.nan])
def test_a_graph_that_tells_no_turns_apart_is_grpo(make_batch, out):
    batch = graph(make_batch, 1, [3, 7], [out] * 2, [2] * 2, [1] * 2, [1] * 2)
    assert raw().estimate(batch).advantage.tolist() == [1, 1]


def test_a_clip_of_zero_is_grpo_but_for_errors(make_batch):
    labels = ([5, 0], [0, 2], [0, 0], [0, 1])
    off = raw(clip=0.0, beta=0.0)
    assert off.estimate(graph(make_batch, 1, [3, 7], *labels)).advantage.tolist() == [1, 1]
    on = raw(clip=0.0).estimate(graph(make_batch, 1, [3, 7], *labels)).advantage
    assert on[0] > 1 > on[1], "beta alone takes from the faulty turn"


def test_nonsense_is_refused(make_batch):
    for name in ("clip", "beta", "graph_epsilon"):
        with pytest.raises(ConfigError, match=f"iapo.{name}"):
            Iapo(**{name: -1.0})
    batch = graph(make_batch, 1, [3, 7], [0, 0], [0, -2], [0, 0], [0, 0])
    with pytest.raises(EpisodeError, match="'support_in' of turn 1 of episode 0 is -2"):
        Iapo().estimate(batch)
