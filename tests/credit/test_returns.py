"""Returns against worked values and plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.returns import to_go, to_go_tokens, totals

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def test_each_agent_sums_its_own_turns(make_batch):
    # Agent 0: 1, then 4; agent 1: 2. To go with gamma .5: 1 + .5*4 = 3, then 4; and 2.
    batch = make_batch([1, 2, 4], episode=[0, 0, 0], agent=[0, 1, 0])
    assert totals(batch.reward, batch.agents()).tolist() == [5, 2, 5]
    assert to_go(batch.reward, batch.agents(), 0.5).tolist() == [3, 2, 4]


def test_tokens_decay_over_sampled_tokens_only(make_batch):
    # Turns of 2, 0 and 2 tokens, rewards 1, 10, 100, gamma .1. Last turn: 10, 100. Seen from the
    # last token of the first turn: its own 1, the silent turn's 10 undiscounted, and .1 of the 10
    # at the next token: 12; one token earlier: 1.2.
    batch = make_batch([1, 10, 100], episode=[0, 0, 0], lengths=[2, 0, 2])
    got = to_go_tokens(batch.reward, batch.offsets, batch.agents(), 0.1)
    np.testing.assert_allclose(got, [1.2, 12, 10, 100])


def test_the_other_agents_words_do_not_reset_the_return(make_batch):
    # The known fault: only the last turn is rewarded, since the sum stops at the words in between.
    batch = make_batch([0, 0, 1], episode=[0, 0, 0], agent=[0, 1, 0], lengths=[2, 2, 2])
    got = to_go_tokens(batch.reward, batch.offsets, batch.agents())
    assert got.tolist() == [1, 1, 0, 0, 1, 1]


@LAW
@given(SEEDS, st.sampled_from([0.0, 0.5, 0.97, 1.0]))
def test_token_returns_equal_the_loop_over_tokens(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    expected = np.zeros(len(batch.logprobs))
    agents = batch.agents()
    for c in range(agents.count):
        carry = 0.0
        for row in [i for i in agents.order[::-1] if agents.of[i] == c]:
            for token in range(batch.offsets[row + 1] - 1, batch.offsets[row] - 1, -1):
                reward = batch.reward[row] if token == batch.offsets[row + 1] - 1 else 0.0
                expected[token] = carry = reward + gamma * carry
    got = to_go_tokens(batch.reward, batch.offsets, agents, gamma)
    np.testing.assert_allclose(got, expected, atol=1e-12)


@LAW
@given(SEEDS)
def test_undiscounted_clocks_agree(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    turns = to_go(batch.reward, batch.agents())
    tokens = to_go_tokens(batch.reward, batch.offsets, batch.agents())
    np.testing.assert_allclose(tokens, np.repeat(turns, batch.lengths), atol=1e-12)
    first = batch.agent_turn == 0
    np.testing.assert_allclose(
        turns[first], totals(batch.reward, batch.agents())[first], atol=1e-12
    )
