"""ReMax: one greedy episode as the baseline."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.mars import Mars
from marl_llm.credit.remax import ReMax

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)


def plain(estimator, batch):
    """The formula, turn by turn."""
    lengths = batch.lengths
    out = np.zeros(len(batch))
    greedy, known = batch.signals["greedy_return"], batch.known("greedy_return")
    for i in range(len(batch)):
        if lengths[i] and known[i]:
            for j in range(len(batch)):
                same = (batch.episode[j], batch.agent[j]) == (batch.episode[i], batch.agent[i])
                if same and batch.agent_turn[j] >= batch.agent_turn[i]:
                    out[i] += batch.reward[j]
            out[i] -= greedy[i]
    return out


PLAIN = {"remax": plain}


def test_worked_values(f1):
    # Returns 1, 0, 0, 1, .5, .5, 2 less those of the greedy replies: 0, .5 and 1.
    batch = f1.with_signals({"greedy_return": np.array([0, 0, 0, 0, 0.5, 0.5, 1])})
    assert ReMax().estimate(batch).advantage.tolist() == [1, 0, 0, 1, 0, 0, 1]


def test_later_turns_are_compared_with_the_whole_greedy_return(make_batch):
    # Still to come: 3, then 2; the greedy episode brought 4 in all.
    batch = make_batch([1, 2], episode=[0, 0], signals={"greedy_return": [4, 4]})
    assert ReMax().estimate(batch).advantage.tolist() == [-1, -2]


def test_a_greedy_episode_that_failed_is_no_baseline_of_0(make_batch):
    batch = make_batch([5, 5, 5], lengths=[1, 1, 0])
    credit = ReMax().estimate(batch.with_signals({"greedy_return": np.array([2, np.nan, np.nan])}))
    assert credit.advantage.tolist() == [3, 0, 0]
    assert credit.stats["missing_labels"] == 1, "silent turns lack nothing"


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, groups=2, episodes=3)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["greedy_return"])
    batch = batch.with_signals({"greedy_return": lost})
    got = ReMax().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(ReMax(), batch), atol=1e-12)


@LAW
@given(SEEDS)
def test_a_greedy_return_of_0_leaves_the_return_and_the_groups_mean_makes_dr_grpo(
    random_batch, seed
):
    batch = random_batch(np.random.default_rng(seed), silent=0.0, max_turns=1)
    parts = DrGRPO().estimate(batch)
    to_go = Mars().estimate(batch).components["return"]
    blind = batch.with_signals({"greedy_return": np.zeros(len(batch))})
    np.testing.assert_allclose(ReMax().estimate(blind).advantage, to_go, atol=1e-12)
    mean = batch.with_signals({"greedy_return": -parts.components["baseline"]})
    np.testing.assert_allclose(ReMax().estimate(mean).advantage, parts.advantage, atol=1e-12)
