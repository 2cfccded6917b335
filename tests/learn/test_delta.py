"""DelTA's token scores on small vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.learn.balance import TrajectoryBalance
from marl_llm.learn.delta import DelTA, centroids, margins, spreads, token_scores
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.losses import PPOClip
from marl_llm.learn.twopass import Seen

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
V = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1], [-1, 0]], dtype=torch.float64)
A = torch.tensor([1.0, 1, 1, -1, -1], dtype=torch.float64)


def plain(v, a, rounds):
    """The scores token by token; γ is that of the margins from which the last means came."""
    side = np.sign(a)

    def means(score):
        return {
            s: np.average(v[side == s], axis=0, weights=(abs(a) * score)[side == s])
            for s in (1, -1)
        }

    def distances(mean):
        return np.array([
            np.sum((x - mean[-s]) ** 2) - np.sum((x - mean[s]) ** 2)
            for x, s in zip(v, side, strict=True)
        ])  # fmt: skip

    def squash(margin, gamma):
        return np.array([
            1 / (1 + np.exp(-x / gamma[s])) for x, s in zip(margin, side, strict=True)
        ])  # fmt: skip

    margin = distances(means(np.ones(len(v))))
    gamma = {s: margin[side == s].std() for s in (1, -1)}
    for _ in range(rounds):
        mean = means(squash(margin, gamma))
        gamma = {s: margin[side == s].std() for s in (1, -1)}
        margin = distances(mean)
    return squash(margin, gamma)


def test_worked_value():
    # Means (2/3, 1/3) and (-1/2, 1/2). First token: 1.5² + .5² = 2.5 from the other side, 2/9
    # from its own: margin 2.277778, σ = .907020 (γ = 1). And so on.
    praised, blamed = centroids(V, A)
    np.testing.assert_allclose(praised, [2 / 3, 1 / 3])
    np.testing.assert_allclose(blamed, [-0.5, 0.5])
    margin = margins(V, A.sign(), praised, blamed)
    expected = [0.907020, 0.403985, 0.907020, 0.596015, 0.915976]
    np.testing.assert_allclose(torch.sigmoid(margin), expected, atol=5e-7)
    # λ = .8 + .4 a.
    np.testing.assert_allclose(
        0.8 + 0.4 * torch.sigmoid(margin)[:3], [1.162808, 0.961594, 1.162808], atol=5e-7
    )


def test_gamma_is_the_spread_of_the_margins_of_a_side():
    margin = torch.tensor([1.0, 3.0, 5.0, 5.0, 9.0])
    side = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    # Without Bessel's correction: 1; equal margins: the floor.
    np.testing.assert_allclose(spreads(margin, side), [1, 1, 1e-4, 1e-4, 1e-4], rtol=1e-6)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_against_the_plain_formula(rounds):
    rng = np.random.default_rng(rounds)
    v, a = rng.normal(size=(9, 3)), rng.normal(size=9)
    found = token_scores(torch.from_numpy(v), torch.from_numpy(a), rounds)
    np.testing.assert_allclose(found, plain(v, a, rounds), atol=1e-9)


def test_weights_of_tokens_against_the_plain_formula():
    # The hidden state counts as far as the token was in doubt; a token without advantage gets the
    # least weight; and the mean of 1 is under the weights of the batch, which are unequal.
    rng = np.random.default_rng(0)
    a = np.array([1.0, 0.5, -1.0, -2.0, 0.0, 1.5])
    w = np.array([0.1, 0.2, 0.3, 0.1, 0.4, 0.2])
    logprobs, h = -rng.exponential(size=6), rng.normal(size=(6, 3))
    one = np.zeros(1, np.int64)
    live = LiveTurns(
        pairs=(((1,), (2,) * 6),),
        places=one,
        name=str,
        temperatures=np.ones(1),
        lengths=np.array([6]),
        episode=one,
        group=one,
        agent=one,
        version=one,
        advantages=a,
        weights=w,
        sampler=logprobs,
    )
    seen = Seen(logprobs, logprobs, torch.from_numpy(h))
    found = DelTA(least=0.5, most=1.5).coefficients(live, seen)
    v = (1 - np.exp(logprobs))[:, None] * h
    score = np.zeros(6)
    score[a != 0] = plain(v[a != 0], a[a != 0], 1)
    weight = 0.5 + score
    np.testing.assert_allclose(found, a * weight * w.sum() / (w * weight).sum(), atol=1e-9)


@LAW
@given(SEEDS)
def test_praise_and_blame_are_alike(seed):
    rng = np.random.default_rng(seed)
    v, a = torch.from_numpy(rng.normal(size=(8, 4))), torch.from_numpy(rng.normal(size=8))
    np.testing.assert_allclose(token_scores(v, a, 1), token_scores(v, -a, 1), atol=1e-9)


def test_sides_that_are_alike_score_one_half():
    v = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    score = token_scores(v, torch.tensor([1.0, 1, -1, -1]), 1)
    np.testing.assert_allclose(score, [0.5] * 4)  # and λ = .8 + .4/2 = 1


def test_one_side_only_is_finite():
    score = token_scores(V, A.abs(), 1)
    assert torch.all(torch.isfinite(score))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DelTA(least=0.0), "0 < least"),
        (lambda: DelTA(rounds=-1), "rounds"),
        (lambda: DelTA(loss=TrajectoryBalance(0.05)), "DelTA.loss may not be TrajectoryBalance"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_its_terms_are_those_of_the_loss_inside():
    new, old = torch.tensor([-0.5, -1.0]), torch.tensor([-1.0, -0.5])
    a, lengths = torch.tensor([1.0, -1.0]), torch.tensor([2])
    inside = PPOClip(0.1, 0.3, None)
    np.testing.assert_array_equal(
        DelTA(loss=inside).terms(new, old, a, lengths).loss,
        inside.terms(new, old, a, lengths).loss,
    )
