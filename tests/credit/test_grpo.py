"""GRPO, Dr. GRPO and RLOO share returns and cells; they differ in one factor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.rloo import RLOO
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
ALL = pytest.mark.parametrize(
    "estimator", [GRPO(), DrGRPO(), RLOO()], ids=lambda estimator: type(estimator).__name__
)


def advantage(estimator, batch):
    return estimator.estimate(batch).advantage


def plain(estimator, batch):
    """The three formulas, agent by agent, in the cells of group and agent."""
    total, cells = {}, {}
    lengths = batch.lengths
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
        if lengths[i]:
            cells.setdefault((batch.group[i], batch.agent[i]), set()).add(me)
    worth = {}
    for cell in cells.values():
        n = len(cell)
        mean = sum(total[me] for me in cell) / n
        spread = sum((total[me] - mean) ** 2 for me in cell) ** 0.5
        for me in cell:
            worth[me] = total[me] - mean
            if isinstance(estimator, GRPO):
                worth[me] /= spread / max(n - estimator.ddof, 1) ** 0.5 + estimator.epsilon
            if isinstance(estimator, RLOO):
                worth[me] *= n / max(n - 1, 1)
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i]:
            out[i] = worth[batch.episode[i], batch.agent[i]]
    return out


PLAIN = {"grpo": plain, "dr_grpo": plain, "rloo": plain}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Group a: mean .5, squares 4 * .25 = 1: std √(1/3) = .57735; .5/(.57735 + 1e-6) = .866024.
        ({}, [0.866024, -0.866024, -0.866024, 0.866024, 0, 0, 0]),
        # ddof 0: std .5; .5/(.5 + 1e-6) = .999998.
        ({"ddof": 0}, [0.999998, -0.999998, -0.999998, 0.999998, 0, 0, 0]),
        # .5/(.577350 + 1e-4) = .865875.
        ({"epsilon": 1e-4}, [0.865875, -0.865875, -0.865875, 0.865875, 0, 0, 0]),
        # Alone, baseline 0 and std 1: 2/(1 + 1e-6) = 1.999998.
        ({"singleton": "raw"}, [0.866024, -0.866024, -0.866024, 0.866024, 0, 0, 1.999998]),
    ],
)
def test_worked_values(f1, options, expected):
    np.testing.assert_allclose(advantage(GRPO(**options), f1), expected, atol=5e-7)


def test_statistics(f1):
    stats = GRPO().estimate(f1).stats
    # Four times .866024 over seven turns.
    assert stats == pytest.approx({"groups": 3, "singletons": 1, "zero_std_groups": 1,
                                   "adv_abs_mean/alice": 4 * 0.8660239 / 7})  # fmt: skip


@ALL
def test_equal_rewards_give_exact_zeros(estimator, make_batch):
    for reward in (0.1, 1 / 3, -0.7):
        assert not advantage(estimator, make_batch([reward] * 10)).any()


@ALL
def test_alone_can_be_refused(estimator, f1):
    with pytest.raises(EpisodeError, match="1 turns have nobody"):
        replace(estimator, singleton="error").estimate(f1)


@ALL
def test_long_episodes_do_not_weigh_more(estimator, make_batch):
    # One turn with reward 1 against three turns with 0: counted by agent it is 1 against 0.
    long = make_batch([1, 0, 0, 0], episode=[0, 1, 1, 1])
    short = make_batch([1, 0])
    got, expected = advantage(estimator, long), advantage(estimator, short)
    np.testing.assert_allclose(got, expected[[0, 1, 1, 1]])


def test_counting_turns_lets_long_episodes_weigh_more(make_batch):
    # The known fault, as a setting. Mean 1/4, squares 9/16 + 3/16 = 3/4, std √(.75/3) = .5.
    batch = make_batch([1, 0, 0, 0], episode=[0, 1, 1, 1])
    got = advantage(GRPO(unit="turn"), batch)
    np.testing.assert_allclose(got, [0.75 / 0.500001] + [-0.25 / 0.500001] * 3)


@ALL
def test_a_silent_sibling_is_not_counted(estimator, make_batch):
    batch = make_batch([100, 1, 0], lengths=[0, 2, 2])
    np.testing.assert_allclose(
        advantage(estimator, batch)[1:], advantage(estimator, make_batch([1, 0]))
    )


@ALL
def test_a_silent_last_turn_still_pays(estimator, make_batch):
    # The forfeit of a full context lands on a turn without tokens, and counts in the return.
    batch = make_batch([0, -1, 0, 0], episode=[0, 0, 1, 1], lengths=[2, 0, 2, 2])
    got = advantage(estimator, batch)
    assert got[0] < 0 < got[2]
    assert got[1] == 0


@ALL
@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, estimator, seed):
    batch = random_batch(np.random.default_rng(seed))
    np.testing.assert_allclose(advantage(estimator, batch), plain(estimator, batch), atol=1e-8)


@ALL
@LAW
@given(SEEDS, st.floats(-5, 5))
def test_shift_centre_and_other_groups(random_batch, take_rows, estimator, seed, shift):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = advantage(estimator, batch)
    first = batch.agent_turn == 0
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            cell = first & (batch.group == group) & (batch.agent == agent)
            assert abs(got[cell].sum()) < 1e-9
    # A constant for every agent's episode moves nothing; nor does what another group earns.
    moved = np.where(first, batch.reward + shift, batch.reward)
    np.testing.assert_allclose(advantage(estimator, replace(batch, reward=moved)), got, atol=1e-6)
    mine = batch.group == 0
    louder = replace(batch, reward=np.where(mine, batch.reward, 1000 * batch.reward))
    assert advantage(estimator, louder)[mine].tobytes() == got[mine].tobytes()
    alone = advantage(estimator, take_rows(batch, np.flatnonzero(mine)))
    assert alone.tobytes() == got[mine].tobytes()


@ALL
@LAW
@given(SEEDS)
def test_splitting_a_turn_changes_nothing(random_batch, add_copies, estimator, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    n = len(batch)
    copies = add_copies(batch, np.arange(n))
    second = np.arange(2 * n) >= n
    half = replace(
        copies,
        episode=np.tile(batch.episode, 2),
        reward=copies.reward / 2,
        turn=2 * copies.turn + second,
        agent_turn=2 * copies.agent_turn + second,
    )
    expected = np.tile(advantage(estimator, batch), 2)
    np.testing.assert_allclose(advantage(estimator, half), expected, atol=1e-9)


@LAW
@given(SEEDS, st.floats(0.1, 10))
def test_scale(random_batch, seed, k):
    batch = random_batch(np.random.default_rng(seed))
    louder = replace(batch, reward=k * batch.reward)
    for linear in (DrGRPO(), RLOO()):
        np.testing.assert_allclose(
            advantage(linear, louder), k * advantage(linear, batch), atol=1e-9
        )
    free = GRPO(epsilon=0.0)
    np.testing.assert_allclose(advantage(free, louder), advantage(free, batch), atol=1e-6)


@LAW
@given(SEEDS)
def test_rloo_is_dr_grpo_scaled_up_and_grpo_is_it_scaled_down(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0, episodes=5)
    plain = advantage(DrGRPO(), batch)
    np.testing.assert_allclose(advantage(RLOO(), batch), 5 / 4 * plain, atol=1e-12)
    for group in np.unique(batch.group):
        for agent in np.unique(batch.agent):
            cell = (batch.group == group) & (batch.agent == agent)
            total = plain[cell & (batch.agent_turn == 0)]
            expected = plain[cell] / (total.std(ddof=1) + 1e-6)
            np.testing.assert_allclose(advantage(GRPO(), batch)[cell], expected, atol=1e-12)


def test_the_whole_batch_is_one_cell_if_asked(make_batch):
    # Two groups with means 1 and 11: pooled, the mean is 6.
    batch = make_batch([0, 2, 10, 12], group=[0, 0, 1, 1])
    assert advantage(DrGRPO(by=()), batch).tolist() == [-6, -4, 4, 6]
    assert advantage(DrGRPO(by=[]), batch).tolist() == [-6, -4, 4, 6]


@ALL
def test_unlike_roles_are_not_pooled_unawares(estimator, make_batch):
    batch = make_batch([1, 10, 3, 30], episode=[0, 0, 1, 1], agent=[0, 1, 0, 1])
    with pytest.raises(ConfigError, match=r"by=\['group'\] pools roles 'alice' and 'bob'"):
        replace(estimator, by=("group",)).estimate(batch)
    replace(estimator, by=("group",), mix_roles=True).estimate(batch)


def test_counting_episodes_shares_one_count_among_their_agents(make_batch):
    # Two searchers of one role in episode 0 (returns 1, 3), one in episode 1 (return 6):
    # by agent the mean is 10/3, by episode (2 + 6)/2 = 4.
    batch = make_batch([1, 3, 6], episode=[0, 0, 1], agent=[0, 1, 0], role=[0, 0, 0])
    got = advantage(DrGRPO(by=("group",)), batch)
    np.testing.assert_allclose(got, np.array([1, 3, 6]) - 10 / 3)
    got = advantage(DrGRPO(by=("group",), unit="episode"), batch)
    np.testing.assert_allclose(got, [-3, -1, 2])


@pytest.mark.parametrize("n", [2, 3])
def test_gradient_against_enumeration(make_batch, n):
    """All outcomes of n draws of a two-action policy, weighted by their probability.

    With P(1) = p and rewards r_0, r_1 the true gradient in the logit is p(1-p)(r_1 - r_0). Leaving
    oneself out is unbiased; the mean with oneself in it loses a factor (n-1)/n.
    """
    p, rewards = 0.3, np.array([0.2, 1.0])
    true = p * (1 - p) * (rewards[1] - rewards[0])
    found = {RLOO: 0.0, DrGRPO: 0.0}
    for draws in np.ndindex(*[2] * n):
        actions = np.array(draws)
        probability = np.prod(np.where(actions == 1, p, 1 - p))
        for kind in found:
            got = advantage(kind(), make_batch(rewards[actions]))
            found[kind] += probability * np.mean(got * (actions - p))
    assert found[RLOO] == pytest.approx(true)
    assert found[DrGRPO] == pytest.approx(true * (n - 1) / n)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GRPO, {"by": ("groups",)}, "did you mean 'group'"),
        (GRPO, {"by": "group"}, r"write \[group\]"),
        (GRPO, {"epsilon": -1.0}, "grpo.epsilon"),
        (GRPO, {"ddof": 2}, "grpo.ddof"),
        (DrGRPO, {"unit": "turns"}, "did you mean 'turn'"),
        (DrGRPO, {"singleton": "drop"}, "known: error, raw, zero"),
        (RLOO, {"unit": "turn"}, "rloo.unit"),
    ],
)
def test_bad_settings(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
