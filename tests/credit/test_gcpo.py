"""GCPO: ranks of the contrast between two prompts as weights."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.gcpo import GCPO, contrast
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """GRPO's number times the weights of the tokens, turn by turn."""
    outcome = plain_outcome(batch)
    out = np.zeros(len(batch.logprobs))
    negative = batch.signals["negative_logprob"]
    for i in range(len(batch)):
        start, stop = batch.offsets[i], batch.offsets[i + 1]
        d = []
        for t in range(start, stop):
            k = min(max(negative[t] - batch.logprobs[t], -20), 20)
            d.append(min(math.exp(k) - 1 - k, 10))
        n = stop - start
        ranks = np.zeros(n)
        for rank, t in enumerate(sorted(range(n), key=lambda t: d[t]), start=1):  # stable
            ranks[t] = rank
        if estimator.ties == "mean":
            ranks = np.array([np.mean(ranks[np.array(d) == d[t]]) for t in range(n)])
        weight = (ranks / max(n, 1)) ** estimator.power
        out[start:stop] = outcome[i] * weight * n / max(weight.sum(), 1e-300)
    return out


PLAIN = {"gcpo": plain}


def weights(make_batch, positive, negative, **options):
    n = len(positive)
    signals = {"negative_logprob": np.log([*negative, 1.0])}
    batch = make_batch([1.0, 0.0], lengths=[n, 1], signals=signals)
    batch = replace(batch, logprobs=np.log([*positive, 1.0]))
    credit = GCPO(**options).estimate(batch)
    return (credit.advantage / credit.components["response"])[:n]


def test_worked_value(make_batch):
    positive, negative = [0.5, 0.9, 0.3, 0.6], [0.4, 0.9, 0.05, 0.5]
    # k = log .8 = -.223144: .8 - 1 + .223144 = .023144; 0; log(1/6): .958426; log(5/6): .015655.
    got = contrast(np.log(negative), np.log(positive))
    np.testing.assert_allclose(got, [0.023144, 0, 0.958426, 0.015655], atol=5e-7)
    # a = ln .2 / ln .6 - 1 = 2.150660. Ranks 3, 1, 4, 2: (.75, .25, 1, .5)^a = .538640, .050719,
    # 1, .225210, together 1.814569; times 4 / 1.814569.
    assert GCPO().power == pytest.approx(2.150660, abs=5e-7)
    got = weights(make_batch, positive, negative)
    np.testing.assert_allclose(got, [1.187369, 0.111805, 2.204379, 0.496447], atol=5e-7)


def test_a_small_contrast_is_no_noise():
    # k²/2 for small k, on either side; exp(k) - 1 - k is a multiple of 1e-16, or below 0.
    k = np.array([1e-9, -1e-9, 1e-7, -1e-7, 0.0])
    np.testing.assert_allclose(contrast(k, np.zeros(5)), k**2 / 2, rtol=1e-6)


def test_ties_rank_as_they_stand_or_share_their_ranks(make_batch):
    # Both prompts are certain: d = 0 throughout. Ranks 1, 2 against 1.5, 1.5.
    first, second = weights(make_batch, [0.9, 0.9], [0.9, 0.9])
    assert first < 1 < second
    got = weights(make_batch, [0.9, 0.9], [0.9, 0.9], ties="mean")
    np.testing.assert_allclose(got, [1, 1], atol=1e-12)


def test_it_does_not_matter_which_prompt_likes_the_token(make_batch):
    """d is at least 0 on both sides: a token that the wrong answer needs counts as much."""
    got = weights(make_batch, [0.5, 0.5, 0.5], [0.5, 0.9, 0.1])
    assert got[1] > got[0]
    assert got[2] > got[0]


def test_the_top_share_holds_about_the_mass():
    n = 10_000
    weight = (np.arange(1, n + 1) / n) ** GCPO(share=0.4, mass=0.8).power
    assert weight[int(0.6 * n) :].sum() / weight.sum() == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("ties", ["place", "mean"])
def test_against_the_plain_formula(random_batch, ties):
    estimator = GCPO(ties=ties)
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed))
        if seed == 4:  # ties
            rounded = np.round(batch.signals["negative_logprob"])
            batch = replace(batch, signals={**batch.signals, "negative_logprob": rounded})
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_mass_is_kept_and_only_ranks_matter(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = GCPO().estimate(batch)
    held = np.flatnonzero(batch.lengths)
    before, after = (
        np.add.reduceat(x, batch.offsets[held])
        for x in (credit.components["response"], credit.advantage)
    )
    np.testing.assert_allclose(after, before, atol=1e-9)
    # d rises with |k| on either side: below 0 a rising map of k keeps all ranks.
    unlike = -np.abs(batch.signals["negative_logprob"] - batch.logprobs)
    first, second = (
        GCPO().estimate(
            replace(batch, signals={**batch.signals, "negative_logprob": batch.logprobs + k})
        )
        for k in (unlike, unlike / 2)
    )
    np.testing.assert_allclose(first.advantage, second.advantage, atol=1e-12)


@pytest.mark.parametrize("options", [{"share": 0.0}, {"mass": 1.0}, {"share": 0.9}])
def test_bad_settings(options):
    with pytest.raises(ConfigError, match="0 < share <= mass < 1"):
        GCPO(**options)
