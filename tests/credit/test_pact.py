"""PACT's three axioms, and that its gradient is the right one, by enumeration of a small game."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gae_token import TokenGAE
from marl_llm.credit.pact import PACT
from marl_llm.credit.returns import to_go_tokens
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
STEPS = 3


def plain(estimator, batch):
    """V after each token minus V before it, and what was paid there."""
    credit, value = np.zeros(len(batch.logprobs)), batch.signals["token_value"]
    for row in np.flatnonzero(batch.terminated | batch.truncated):
        after = batch.signals["value_next"][row] if batch.truncated[row] else 0.0
        mine = (batch.episode == batch.episode[row]) & (batch.agent == batch.agent[row])
        for k in sorted(np.flatnonzero(mine), key=lambda k: -batch.agent_turn[k]):
            after += batch.reward[k]
            for t in range(batch.offsets[k + 1] - 1, batch.offsets[k] - 1, -1):
                credit[t], after = after - value[t], value[t]
    return credit


PLAIN = {"pact": plain}


def game(rng):
    """All eight episodes of three binary tokens: outcomes, probability, return, V of a prefix."""
    leaves = list(product((0, 1), repeat=STEPS))
    reward = {leaf: rng.normal() for leaf in leaves}
    one = {prefix: rng.uniform(0.1, 0.9) for t in range(STEPS)
           for prefix in product((0, 1), repeat=t)}  # fmt: skip

    def chance(leaf, start=0):
        return np.prod([one[leaf[:t]] if leaf[t] else 1 - one[leaf[:t]]
                        for t in range(start, STEPS)])  # fmt: skip

    def expected(prefix):
        return sum(chance(leaf, len(prefix)) * reward[leaf]
                   for leaf in leaves if leaf[: len(prefix)] == prefix)  # fmt: skip

    return leaves, one, chance, expected, reward


def batch_of(make_batch, leaves, expected, reward):
    """Each leaf an episode: a turn of two tokens, then one of one."""
    value = [expected(leaf[:t]) for leaf in leaves for t in range(STEPS)]
    rewards = [r for leaf in leaves for r in (0.0, reward[leaf])]
    return make_batch(
        rewards,
        episode=np.repeat(np.arange(len(leaves)), 2),
        lengths=[2, 1] * len(leaves),
        signals={"token_value": value},
    )


def test_worked_values(make_batch):
    # V = .5, .6, .3 and the return 1: .1, -.3, .7, which sum to 1 - .5. To be learned: 1.
    batch = make_batch([1], lengths=[3], signals={"token_value": [0.5, 0.6, 0.3]})
    got = PACT().estimate(batch)
    np.testing.assert_allclose(got.advantage, [0.1, -0.3, 0.7])
    np.testing.assert_allclose(got.targets, 1)
    assert got.stats["targets_outside"] == 0
    # What is still to come from each token on: .5, .4, .7.
    np.testing.assert_allclose(PACT(lam=1.0).estimate(batch).advantage, [0.5, 0.4, 0.7])


def test_returns_that_no_cross_entropy_fits_are_counted(make_batch):
    batch = make_batch([2, -1, 0.5], lengths=[2, 1, 4], signals={"token_value": [0.0] * 7})
    assert PACT().estimate(batch).stats["targets_outside"] == 3


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.3)
    got = PACT().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(PACT(), batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_it_is_complete(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    credit = PACT().estimate(batch).advantage
    agents, token = batch.agents(), np.repeat(np.arange(len(batch)), batch.lengths)
    total = np.bincount(agents.of, batch.reward)
    cut = batch.truncated * batch.signals["value_next"]
    total += np.bincount(agents.of, cut)
    first = batch.signals["token_value"][batch.offsets[:-1][agents.before == 0]]
    start = np.zeros(agents.count)
    start[agents.of[agents.before == 0]] = first
    np.testing.assert_allclose(np.bincount(agents.of[token], credit), total - start, atol=1e-9)


@LAW
@given(SEEDS)
def test_it_is_neutral_and_knows_no_future(make_batch, seed):
    leaves, one, _, expected, reward = game(np.random.default_rng(seed))
    batch = batch_of(make_batch, leaves, expected, reward)
    credit = PACT().estimate(batch).advantage.reshape(len(leaves), STEPS)
    for t in range(STEPS):
        seen = {}
        for leaf, row in zip(leaves, credit, strict=True):
            # Equal up to token t, equal credit there.
            assert row[t] == pytest.approx(seen.setdefault(leaf[: t + 1], row[t]), abs=1e-12)
        for prefix in {leaf[:t] for leaf in leaves}:
            mean = one[prefix] * seen[(*prefix, 1)] + (1 - one[prefix]) * seen[(*prefix, 0)]
            assert mean == pytest.approx(0, abs=1e-12)


@LAW
@given(SEEDS)
def test_its_gradient_is_that_of_the_return(make_batch, seed):
    """In the logit of every prefix, summed over all episodes with their probabilities."""
    leaves, one, chance, expected, reward = game(np.random.default_rng(seed))
    batch = batch_of(make_batch, leaves, expected, reward)
    credit = PACT().estimate(batch).advantage.reshape(len(leaves), STEPS)
    got, true = dict.fromkeys(one, 0.0), dict.fromkeys(one, 0.0)
    for leaf, row in zip(leaves, credit, strict=True):
        for t in range(STEPS):
            score = leaf[t] - one[leaf[:t]]
            got[leaf[:t]] += chance(leaf) * row[t] * score
            true[leaf[:t]] += chance(leaf) * reward[leaf] * score
    assert got == pytest.approx(true, abs=1e-12)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_it_is_undiscounted_gae_with_targets_of_its_own(random_batch, seed, lam):
    batch = random_batch(np.random.default_rng(seed))
    got, expected = PACT(lam=lam).estimate(batch), TokenGAE(lam=lam).estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)
    ended = replace(
        batch,
        terminated=batch.terminated | batch.truncated,
        truncated=np.zeros(len(batch), dtype=bool),
    )
    to_go = to_go_tokens(batch.reward, batch.offsets, batch.agents())
    np.testing.assert_allclose(PACT(lam=lam).estimate(ended).targets, to_go, atol=1e-9)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"pact.lam must be in"):
        PACT(lam=-1.0)
