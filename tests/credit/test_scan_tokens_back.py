"""The recursion over the tokens of an agent's turns, against a loop, at the seams of its pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit import tokens
from marl_llm.credit.returns import to_go_tokens
from marl_llm.credit.segments import chains
from marl_llm.credit.tokens import scan_tokens_back

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(x, decay, offsets, links):
    """Every chain by itself, from its last token to its first."""
    y = np.zeros(len(x))
    for chain in range(links.count):
        carry = 0.0
        for row in [row for row in links.order[::-1] if links.of[row] == chain]:
            for token in range(offsets[row + 1] - 1, offsets[row] - 1, -1):
                carry = y[token] = x[token] + decay[row] * carry
    return y


def drawn(rng, n, longest):
    """Interleaved chains of turns in any order, some of them silent."""
    lengths = np.where(rng.random(n) < 0.2, 0, rng.integers(1, longest + 1, n))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    links = chains((rng.integers(0, 4, n),), rng.permutation(n))
    return rng.normal(size=offsets[-1]), rng.uniform(0, 1, n), offsets, links


def test_worked_values():
    # Turns of 2, 0 and 1 tokens, decay .5 in the first, .1 in the last, whose 4 has none behind:
    # 4; then 2 + .5*4 = 4 across the silent turn; then 1 + .5*4 = 3.
    links = chains((np.zeros(3, int),), np.arange(3))
    got = scan_tokens_back(np.array([1, 2, 4]), np.array([0.5, 9, 0.1]), np.array([0, 2, 2, 3]),
                           links)  # fmt: skip
    assert got.tolist() == [3, 4, 4]


@LAW
@given(SEEDS, st.integers(1, 12))
def test_it_equals_the_loop(seed, piece):
    x, decay, offsets, links = drawn(np.random.default_rng(seed), n=12, longest=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "PIECE", piece)
        got = scan_tokens_back(x, decay, offsets, links)
    np.testing.assert_allclose(got, plain(x, decay, offsets, links), atol=1e-12)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_turns_about_as_long_as_a_piece(beyond):
    lengths = np.array([tokens.PIECE + beyond, 3, 2 * tokens.PIECE + beyond, 1])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    links = chains((np.array([0, 1, 0, 1]),), np.arange(4))
    x = np.random.default_rng(0).normal(size=offsets[-1])
    for decay in (0.0, 0.97, 1.0):
        got = scan_tokens_back(x, decay, offsets, links)
        np.testing.assert_allclose(got, plain(x, np.full(4, decay), offsets, links), atol=1e-11)


@LAW
@given(SEEDS)
def test_one_long_turn_is_many_short_ones(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 1000))
    x = rng.normal(size=n)
    whole = scan_tokens_back(x, 0.9, np.array([0, n]), chains((np.zeros(1, int),), np.zeros(1)))
    apart = scan_tokens_back(x, 0.9, np.arange(n + 1), chains((np.zeros(n, int),), np.arange(n)))
    np.testing.assert_allclose(whole, apart, atol=1e-12)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_a_reward_on_the_last_token_gives_the_return(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    agents, x = batch.agents(), np.zeros(len(batch.logprobs))
    x[batch.offsets[1:] - 1] = batch.reward
    got = scan_tokens_back(x, gamma, batch.offsets, agents)
    expected = to_go_tokens(batch.reward, batch.offsets, agents, gamma)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_equal_chains_give_equal_bits_wherever_they_stand():
    # A chain between others, of a magnitude that would leave its rounding in any common sum.
    lengths = np.array([300, 7, 300, 5, 300])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    x = 1e12 * np.random.default_rng(0).normal(size=offsets[-1])
    turn = np.random.default_rng(1).normal(size=300)
    for row in (0, 2, 4):
        x[offsets[row] : offsets[row + 1]] = turn
    got = scan_tokens_back(x, 0.99, offsets, chains((np.arange(5),), np.zeros(5)))
    first, second, third = (got[offsets[row] : offsets[row + 1]].tobytes() for row in (0, 2, 4))
    assert first == second == third


def test_it_can_write_over_what_it_reads():
    x, decay, offsets, links = drawn(np.random.default_rng(3), n=9, longest=300)
    expected = scan_tokens_back(x, decay, offsets, links)
    assert scan_tokens_back(x, decay, offsets, links, out=x) is x
    assert x.tobytes() == expected.tobytes()


def test_no_tokens_and_no_turns():
    for n in (0, 2):
        links = chains((np.zeros(n, int),), np.arange(n))
        got = scan_tokens_back(np.zeros(0), 0.5, np.zeros(n + 1, int), links)
        assert got.shape == (0,)
        assert got.dtype == np.float64
