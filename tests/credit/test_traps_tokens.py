"""Mistakes that others made and reported: each as a small batch on which it would show.

The number in a comment is the public issue that describes it. Those of the learner are in
`tests/learn/test_traps.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit import assign, baselines
from marl_llm.credit.avatar_tas import AvatarTAS
from marl_llm.credit.batch import Credit, per_token
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.frpo import FRPO
from marl_llm.credit.gae_token import TokenGAE
from marl_llm.credit.gcpo import GCPO
from marl_llm.credit.gdpo import GDPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.mars import Mars
from marl_llm.credit.opo import OPO
from marl_llm.credit.pepo import PEPO
from marl_llm.credit.qae import QAE
from marl_llm.credit.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from marl_llm.credit.rloo import RLOO
from marl_llm.credit.ucas import UCAS
from marl_llm.errors import EpisodeError

CENTRED = [GRPO(), DrGRPO(), RLOO(), OPO(), QAE(), ReinforcePPBaseline(shift_mean="keep")]


def name(estimator):
    return estimator.card.name


def test_trap_of_the_return_that_resets_at_a_tools_words(make_batch):
    # verl#7278: tokens 1 1 0 0 1 1 with the reward on the last gave returns 0 0 . . 1 1.
    batch = make_batch([0, 0, 1], episode=[0] * 3, agent=[0, 1, 0], lengths=[2, 2, 2])
    returns = ReinforcePP().estimate(batch).components["return"]
    assert returns.tolist() == [1, 1, 0, 0, 1, 1]


def test_trap_of_gae_that_steps_through_a_tools_words(make_batch):
    # verl#2337: δ = .2, .1, .2, .3 at λ .9 over the agent's own tokens. Stepping over the tool's
    # with V = 0 gives .58763 for the first, stepping with its V gives something else again.
    batch = make_batch(
        [0, 0, 1],
        episode=[0] * 3,
        agent=[0, 1, 0],
        lengths=[2, 1, 2],
        signals={"token_value": [0.2, 0.4, 9, 0.5, 0.7]},
    )
    got = TokenGAE(lam=0.9).estimate(batch).advantage
    np.testing.assert_allclose(got[[0, 1, 3, 4]], [0.6707, 0.523, 0.47, 0.3])


def test_trap_of_a_reward_that_comes_after_the_last_word(make_batch):
    # miles#1827: paid at a turn without tokens, it was lost.
    batch = make_batch([0, 1], episode=[0, 0], lengths=[2, 0], signals={"token_value": [0.5, 0.6]})
    np.testing.assert_allclose(TokenGAE().estimate(batch).advantage, [0.5, 0.4])


def test_trap_of_a_value_behind_the_end(make_batch):
    # ROLL#447: V = 100 in the padding behind the last token made 5.7 of .95.
    batch = make_batch(
        [1, 0], episode=[0, 0], agent=[0, 1], lengths=[2, 1], signals={"token_value": [0, 0, 100]}
    )
    np.testing.assert_allclose(TokenGAE(lam=0.95).estimate(batch).advantage[:2], [0.95, 1])


@pytest.mark.parametrize("estimator", CENTRED, ids=name)
def test_trap_of_the_sibling_that_said_nothing(make_batch, estimator):
    # OpenRLHF#1239, verl#6310: a reply of no tokens was paid 100, and its sibling got -49.5.
    batch = make_batch([100, 1, 0, 0], group=[0] * 4, lengths=[0, 3, 2, 4])
    alone = batch.take(np.array([1, 2, 3]))
    np.testing.assert_array_equal(
        estimator.estimate(batch).advantage[1:], estimator.estimate(alone).advantage
    )
    assert not estimator.estimate(batch.take(np.array([0, 1]))).advantage.any()


@pytest.mark.parametrize("estimator", CENTRED, ids=name)
def test_trap_of_rewards_that_are_not_known(make_batch, estimator):
    # TRL#5773: one known reward of eight had a NaN for a deviation, and none became a 0.
    batch = make_batch([1.0] + [0.0] * 7, group=[0] * 8)
    unknown = np.ones(8)
    for known in ([0], []):
        unknown[known] = 0.0
        credit = assign(estimator, batch.with_signals({"unscored": unknown}))
        assert not credit.advantage.any()
        assert credit.weight.tolist() == (1 - unknown).tolist()
        unknown[:] = 1.0


def test_trap_of_a_mean_that_knows_the_rule_for_one():
    # verl#3635: a helper called `group_mean_std` gave mean 0 and std 1 to groups of one.
    pool = baselines.Pool(np.array([0]), np.array([1.0]), np.array([1.0]))
    assert baselines.mean(np.array([7.0]), pool).tolist() == [7]
    assert baselines.std(np.array([7.0]), pool, 1).tolist() == [0]


@pytest.mark.parametrize("estimator", CENTRED, ids=name)
def test_trap_of_groups_of_one(make_batch, estimator):
    # rllm#916, #605: groups keyed by rollout made every advantage 0, and nothing said so.
    batch = make_batch([1, 0, 2], group=[0, 1, 2])
    credit = estimator.estimate(batch)
    assert not credit.advantage.any()
    assert credit.stats["singletons"] == credit.stats["groups"] == 3
    with pytest.raises(EpisodeError, match="3 turns have nobody to be compared with"):
        replace(estimator, singleton="error").estimate(batch)


def test_trap_of_long_episodes_in_the_mean(make_batch):
    # agent-lightning#445: each turn as a row. Returns 1 in one turn and 0 in three: ±1/√2 of the
    # deviation √.5; as rows the mean is 1/4 and the deviation 1/2.
    batch = make_batch([1, 0, 0, 0], episode=[0, 1, 1, 1], group=[0] * 4)
    np.testing.assert_allclose(
        GRPO().estimate(batch).advantage, [0.707106, -0.707106, -0.707106, -0.707106], atol=1e-6
    )
    rows = GRPO(unit="turn").estimate(batch).advantage
    np.testing.assert_allclose(rows, [1.499997, -0.499999, -0.499999, -0.499999], atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "shrunk"),
    [(DrGRPO(), 1.0), (RLOO(), 10 / 9), (Mars(by=("group", "agent_turn")), 1.0)],
    ids=["dr_grpo", "rloo", "mars"],
)
def test_trap_of_the_turn_number(make_batch, estimator, shrunk):
    # verl#7244: whoever goes on after turn 1, with probability .3, is paid 1 more. Centred by turn
    # number *before* summing, all rewards are 0. The gradient of 1 + p by the logit is p (1 - p).
    batch = make_batch(
        [1.0] * 13, episode=[*np.repeat([0, 1, 2], 2), *range(3, 10)], group=[0] * 13
    )
    first = batch.agent_turn == 0
    went_on = (batch.agents().after > 0)[first]
    score = np.where(went_on, 0.7, -0.3)
    gradient = np.mean(estimator.estimate(batch).advantage[first] * score)
    assert gradient == pytest.approx(0.21 * shrunk)


@pytest.mark.parametrize("estimator", CENTRED, ids=name)
def test_trap_of_the_spread_of_equal_rewards(make_batch, estimator):
    # NeMo-RL#1518: E[x²] - E[x]² of seven single-precision .95 is not 0, and one of them got -2075.
    batch = make_batch([0.0] * 7, group=[0] * 7)
    batch = replace(batch, reward=np.full(7, 0.95, np.float32))
    credit = estimator.estimate(batch)
    assert not credit.advantage.any()
    assert credit.stats["zero_std_groups"] == 1


def test_trap_of_constant_rewards_that_pass_for_a_signal(make_batch):
    # miles#570, OpenRLHF#1270: `std > 0` let groups through whose returns differ by rounding.
    batch = make_batch([0.1, 0.2, 0.3, 0.3, 0.2, 0.1], episode=[0, 0, 0, 1, 1, 1], group=[0] * 6)
    credit = GRPO(epsilon=0.0).estimate(batch)
    assert credit.stats["zero_std_groups"] == 1
    assert not credit.advantage.any()


def test_trap_of_failures_told_apart_by_their_length(make_batch):
    # verl-recipe#125: all failed, and penalties of .03 to .06 for length became ±1.16.
    penalty = -np.array([0.03, 0.04, 0.05, 0.06])
    batch = replace(make_batch(penalty, group=[0] * 4), shaping=penalty)
    assert np.abs(GRPO().estimate(batch).advantage).max() == pytest.approx(1.16, abs=2e-3)
    # Two ways out: no division; or the outcome by itself, which says that there is no signal.
    assert np.abs(DrGRPO().estimate(batch).advantage).max() == pytest.approx(0.015)
    gated = GDPO(rewards=["strategic"], weights=[1.0]).estimate(batch)
    assert not gated.advantage.any()
    assert gated.stats["zero_std_groups/strategic"] == 1


def test_trap_of_the_kl_on_the_wrong_side_of_the_baseline(make_batch):
    # OpenRLHF#515: in the reward, the KL of a reply moves the baseline and the spread of all.
    drift = np.array([0.4, 0.0])
    batch = make_batch([1, 0], group=[0, 0])
    batch = batch.with_signals({"reference_logprob": batch.logprobs - drift})
    after = FRPO(beta=0.5).estimate(batch).advantage
    np.testing.assert_allclose(after, [1 - 0.2, -1], atol=1e-6)
    inside = replace(batch, reward=batch.reward - 0.5 * drift)
    np.testing.assert_allclose(GRPO(ddof=0).estimate(inside).advantage, [1, -1], atol=1e-5)


@pytest.mark.parametrize("extra", [-1, 1])
def test_trap_of_one_advantage_too_many(make_batch, extra):
    # xtuner#2095: advantages one longer than the ids, and a test that said so.
    batch = make_batch([1, 0], lengths=[2, 3])
    credit = Credit(advantage=np.zeros(5 + extra), weight=np.ones(2), level="token")
    with pytest.raises(EpisodeError, match=r"level 'token' asks for \(5,\)"):
        per_token(credit, batch)


def test_trap_of_the_quantile_between_two_values(make_batch):
    # 3 failures and 5 successes, K = .4: between the 3rd and 4th value a gate lets both through.
    batch = make_batch([0.0] * 3 + [1.0] * 5, group=[0] * 8)
    gate = QAE().estimate(batch).advantage
    np.testing.assert_allclose(gate, [-1.93218] * 3 + [0] * 5, atol=1e-5)
    published = QAE(interpolation="linear").estimate(batch).advantage
    np.testing.assert_allclose(published, [-1.545744] * 3 + [0.386436] * 5, atol=1e-5)


def test_trap_of_a_range_over_the_whole_batch(make_batch):
    # UCAS: what a token loses for its logit hangs on the logits of another prompt.
    batch = make_batch([1, 0, 1, 0], group=[0, 0, 1, 1])
    signals = {"certainty": np.ones(4), "logit": np.array([1.0, 2.0, 1.0, 2.0])}
    quiet = UCAS().estimate(batch.with_signals(signals)).advantage
    signals["logit"] = np.array([1.0, 2.0, 1.0, 101.0])
    loud = UCAS().estimate(batch.with_signals(signals)).advantage
    assert loud[1] - quiet[1] == pytest.approx(0.05 * 0.99)
    assert "groups" in UCAS.card.breaks


def test_trap_of_tokens_that_tie(make_batch):
    # GCPO: a prompt without influence ties all tokens, and ranks them all the same.
    batch = make_batch([1, 0], group=[0, 0], lengths=[4, 1])
    batch = batch.with_signals({"negative_logprob": batch.logprobs})
    grpo = GRPO().estimate(batch).advantage[0]
    ranked = GCPO().estimate(batch).advantage[:4] / grpo
    assert np.all(np.diff(ranked) > 0)
    np.testing.assert_allclose(GCPO(ties="mean").estimate(batch).advantage[:4] / grpo, np.ones(4))


def test_trap_of_the_reply_of_one_token(make_batch):
    # AVATAR: 2t / (L - 1) is 0 / 0.
    batch = make_batch([1, 0], group=[0, 0])
    shaped = AvatarTAS(lam=0.5).estimate(batch).advantage
    np.testing.assert_array_equal(shaped, GRPO().estimate(batch).advantage)


def test_trap_of_the_edges_of_a_window(make_batch):
    # PEPO: where the window is cut off, its sum is smaller, and equal entropies are not equal.
    batch = make_batch([1, 0], group=[0, 0], lengths=[4, 1]).with_signals({"entropy": np.ones(5)})
    grpo = GRPO().estimate(batch).advantage[0]
    written = PEPO(window=3).estimate(batch).advantage[:4] / grpo
    np.testing.assert_allclose(written, [1.2, 0.8, 0.8, 1.2])
    even = PEPO(window=3, edges="mean").estimate(batch).advantage[:4] / grpo
    np.testing.assert_allclose(even, np.ones(4))
