import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.serve.sampling import restrict, sample, uniform


def columns(n, temperature=1.0, top_k=0, top_p=1.0):
    return np.full(n, temperature), np.full(n, top_k), np.full(n, top_p)


def test_uniform_is_a_pure_function_in_the_unit_interval():
    seed = np.arange(-500, 500)
    first, again = uniform(seed, seed + 500), uniform(seed, seed + 500)
    assert (first == again).all()
    assert first.min() >= 0
    assert first.max() < 1


def test_uniform_is_uniform_and_uncorrelated_along_seeds_and_along_positions():
    n = 40_000
    zero = np.zeros(n, np.int64)
    for u in (uniform(np.arange(n), zero), uniform(zero, np.arange(n))):
        # 20 bins of 2000 expected: χ² with 19 degrees exceeds 43.8 with probability 0.001
        counts = np.histogram(u, bins=20, range=(0, 1))[0]
        assert ((counts - 2000) ** 2 / 2000).sum() < 43.8
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(n)


def test_uniform_matches_splitmix64():
    # SplitMix64 started at state 0 gives 0xE220A8397B1DCDAF first; that is mix(g).
    # uniform(0, 0) mixes that output once more, after adding g.
    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    g = 0x9E3779B97F4A7C15
    assert mix(g) == 0xE220A8397B1DCDAF
    expected = (mix((mix(g) + g) % 2**64) >> 12) / 2**52
    assert uniform(np.array([0]), np.array([0]))[0] == expected


def test_frequencies_are_those_of_the_softmax():
    n, logits = 100_000, torch.linspace(-6, 2, 40)
    ids, _ = sample(
        logits.expand(n, -1), uniform(np.arange(n), np.zeros(n, np.int64)), *columns(n, 0.8)
    )
    expected = n * (logits / 0.8).softmax(-1).double().numpy()
    counts = np.bincount(ids.numpy(), minlength=40)
    # χ² with 39 degrees exceeds 72.1 with probability 0.001; the rarest token is expected 0.8 times
    assert ((counts - expected) ** 2 / expected).sum() < 72.1


def test_logprobs_are_of_the_whole_vocabulary_at_the_temperature():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    # T = 0.5: logits 4, 2, 0; log-probs = x - log(e⁴ + e² + 1)
    ids, nats = sample(logits, np.array([0.0]), *columns(1, 0.5, top_k=1))
    assert ids.tolist() == [0]
    assert nats.item() == pytest.approx(4 - np.log(np.exp(4) + np.exp(2) + 1), abs=1e-6)


def test_temperature_zero_takes_the_most_likely_with_its_logprob_at_one():
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    ids, nats = sample(
        logits, np.array([0.999, 0.999]), np.array([0.0, 1.0]), np.zeros(2, int), np.ones(2)
    )
    assert ids.tolist() == [1, 2]  # the other row draws from the tail
    assert torch.allclose(nats, logits[0].log_softmax(-1)[ids], atol=1e-6)


def test_tokens_of_no_probability_are_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    draws = np.array([0.0, 0.25, 0.5, 0.75, 1 - 2.0**-52])
    ids, _ = sample(logits.expand(5, -1), draws, *columns(5))
    assert ids.tolist() == [1, 1, 3, 3, 3]


def test_logits_that_are_not_finite_show_in_the_logprob():
    logits = torch.tensor([[0.0, torch.nan], [0.0, torch.inf], [0.0, 1.0]])
    _, nats = sample(logits, np.full(3, 0.5), *columns(3))
    assert torch.isfinite(nats).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, {0, 1, 2, 3}),
        (2, 1.0, {1, 3}),
        (0, 0.4, {3}),  # 0.4 alone reaches it
        (0, 0.41, {1, 3}),
        (0, 0.7, {1, 3}),
        (0, 0.71, {0, 1, 3}),
        (3, 0.75, {1, 3}),  # of the mass 0.9 that three leave, 0.7 is 0.78
        (3, 0.8, {0, 1, 3}),
        (1, 0.01, {3}),
    ],
)
def test_top_k_then_top_p(top_k, top_p, kept):
    probs = torch.tensor([[0.2, 0.3, 0.1, 0.4]], dtype=torch.float64)
    left = restrict(probs, np.array([top_k]), np.array([top_p]))
    assert set(left[0].nonzero()[:, 0].tolist()) == kept
    assert torch.equal(left[left > 0], probs[left > 0])


def test_restrictions_are_per_row():
    n = 3000
    logits = torch.tensor([1.0, 2.0, 0.0, 3.0]).expand(n, -1)
    top_k = np.where(np.arange(n) % 2, 2, 0)
    draws = uniform(np.arange(n), np.zeros(n, np.int64))
    ids = sample(logits, draws, np.ones(n), top_k, np.ones(n))[0].numpy()
    assert set(ids[1::2]) == {1, 3}
    assert set(ids[::2]) == {0, 1, 2, 3}


@given(
    logits=st.lists(st.floats(-20, 20), min_size=2, max_size=12),
    draw=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(0.1, 3),
)
def test_a_row_does_not_depend_on_its_neighbours(logits, draw, temperature):
    row = torch.tensor(logits)
    others = torch.stack([row.flip(0), row, row * 0.5])
    one = sample(row[None], np.array([draw]), *columns(1, temperature))
    many = sample(others, np.array([0.3, draw, 0.9]), *columns(3, temperature))
    assert one[0].item() == many[0][1].item()
    assert one[1].item() == pytest.approx(many[1][1].item(), abs=1e-6)
