"""MARS as in the paper: worked values, laws, and what it reduces to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.gae import GAE
from marl_llm.credit.mars import Mars, MarsByState
from marl_llm.credit.mars_shipped import MarsShipped
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
POOLS = pytest.mark.parametrize("pool", ["turns", "trajectories"])


def advantage(batch, **options):
    return Mars(**options).estimate(batch).advantage


def plain(estimator, batch):
    """Returns from each agent's last turn on, then cell by cell; a rare cell takes its parent's."""
    lengths = batch.lengths
    to_go, later = {}, {}
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        later[me] = to_go[i] = batch.reward[i] + estimator.gamma * later.get(me, 0.0)
    out = np.zeros(len(batch))
    for by in (estimator.parent, estimator.by):
        if by is None:
            continue
        columns, cells = [batch.column(name) for name in by], {}
        for i in range(len(batch)):
            if lengths[i]:
                cells.setdefault(tuple(column[i] for column in columns), []).append(i)
        for rows in cells.values():
            mean = sum(to_go[i] for i in rows) / len(rows)
            if len(rows) >= estimator.min_count:
                out[rows] = [to_go[i] - mean for i in rows]
    return out


PLAIN = {"mars": plain, "mars_games": plain, "mars_state": plain}


@pytest.fixture
def two(make_batch):
    """A win and a loss of two turns, .05 for each valid action."""
    return make_batch([0.05, 1.05, 0.05, -0.95], episode=[0, 0, 1, 1])


def test_two_trajectories(two):
    # To go: 1.10, 1.05, -.90, -.95. The mean over turns is .30/4 = .075, over first turns .20/2.
    np.testing.assert_allclose(advantage(two), [1.025, 0.975, -0.975, -1.025])
    np.testing.assert_allclose(advantage(two, pool="trajectories"), [1.00, 0.95, -1.00, -1.05])


def test_three_wins_and_a_loss(make_batch):
    # Mean (3 - 1)/4 = .5.
    assert advantage(make_batch([1, 1, 1, -1])).tolist() == [0.5, 0.5, 0.5, -1.5]


def test_long_and_short_wins(make_batch):
    """Ten games, half of 3 and half of 5 turns, eight of them won, .05 per turn."""
    episodes = [(3, 1)] * 4 + [(5, 1)] * 4 + [(3, -1), (5, -1)]
    reward = np.concatenate([[0.05] * (k - 1) + [0.05 + z] for k, z in episodes])
    batch = make_batch(reward, episode=np.repeat(np.arange(10), [k for k, _ in episodes]))
    # Sums of returns to go: wins 4 * (1.15 + 1.10 + 1.05) + 4 * (1.25 + ... + 1.05) = 36.2, losses
    # -2.7 - 4.25 = -6.95; over 40 turns .73125. First turns: 1.15 and 1.25 less that.
    got = advantage(batch)
    assert got[0] == pytest.approx(0.41875)
    assert got[12] == pytest.approx(0.51875)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_against_a_loop(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed))
    for estimator in (Mars(gamma=gamma), MarsByState(gamma=gamma, min_count=4)):
        got = estimator.estimate(batch).advantage
        np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@POOLS
@LAW
@given(seed=SEEDS)
def test_centred_over_what_is_counted(random_batch, seed, pool):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = advantage(batch, pool=pool)
    for role in np.unique(batch.role):
        counted = (batch.role == role) & ((pool == "turns") | (batch.agent_turn == 0))
        assert got[counted].mean() == pytest.approx(0, abs=1e-9)


@POOLS
@LAW
@given(seed=SEEDS, c=st.floats(-5, 5))
def test_a_constant_on_terminal_rewards_moves_nothing(random_batch, seed, pool, c):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    last = batch.terminated | batch.truncated
    moved = replace(batch, reward=batch.reward + c * (last & (batch.role == 0)))
    np.testing.assert_allclose(advantage(moved, pool=pool), advantage(batch, pool=pool), atol=1e-9)


@POOLS
@LAW
@given(seed=SEEDS)
def test_roles_do_not_see_each_other_and_can_swap(random_batch, seed, pool):
    batch = random_batch(np.random.default_rng(seed))
    got = advantage(batch, pool=pool)
    first = batch.role == 0
    louder = replace(batch, reward=np.where(first, batch.reward, 100 * batch.reward + 7))
    assert advantage(louder, pool=pool)[first].tobytes() == got[first].tobytes()
    swapped = replace(batch, role=1 - batch.role, agent=1 - batch.agent)
    np.testing.assert_allclose(advantage(swapped, pool=pool), got, atol=1e-12)


@POOLS
@LAW
@given(seed=SEEDS)
def test_twice_the_batch_is_the_same_but_twice_the_wins_is_not(
    random_batch, add_copies, seed, pool
):
    batch = random_batch(np.random.default_rng(seed), silent=0.0, agents=1, max_turns=1)
    batch = replace(batch, reward=np.where(np.arange(len(batch)) % 3, 1.0, -1.0))

    def with_again(rows):
        return advantage(add_copies(batch, rows), pool=pool)[: len(batch)]

    got = advantage(batch, pool=pool)
    np.testing.assert_allclose(with_again(np.arange(len(batch))), got, atol=1e-12)
    assert np.all(with_again(np.flatnonzero(batch.reward > 0)) < got - 1e-3)


@POOLS
@LAW
@given(seed=SEEDS)
def test_one_turn_and_one_role_is_the_batch_mean(random_batch, seed, pool):
    batch = random_batch(np.random.default_rng(seed), agents=1, max_turns=1)
    np.testing.assert_allclose(
        advantage(batch, pool=pool), DrGRPO(by=()).estimate(batch).advantage, atol=1e-12
    )


@LAW
@given(SEEDS)
def test_it_is_gae_with_the_role_mean_as_value(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    to_go = Mars().estimate(batch).components["return"]
    value = np.array([to_go[batch.role == role].mean() for role in batch.role])
    ended = replace(
        batch,
        signals={"value": value},
        terminated=batch.terminated | batch.truncated,
        truncated=np.zeros(len(batch), dtype=bool),
    )
    expected = GAE(gamma=1.0, lam=1.0).estimate(ended).advantage
    np.testing.assert_allclose(advantage(batch), expected, atol=1e-9)


def test_games_are_kept_apart_if_asked(make_batch):
    batch = make_batch([1, 3, 100, 300], group=[0, 0, 1, 1], game=[0, 0, 1, 1])
    assert advantage(batch, by=("role", "game")).tolist() == [-1, 1, -100, 100]
    assert advantage(batch, by=("role",)).tolist() == [-100, -98, -1, 199]


def test_information_states(make_batch):
    # States 0: 1, 3 (mean 2); 1: 10, 14, 12 (mean 12); 2: 6, rare. All six: mean 46/6.
    reward, state = [1, 3, 10, 14, 12, 6], [0, 0, 1, 1, 1, 2]
    batch = make_batch(reward, state_key=state)
    by = {"by": ("state_key",)}
    parent = {"parent": ("game", "role")}
    assert advantage(batch, **by).tolist() == [-1, 1, -2, 2, 0, 0]
    assert advantage(batch, **by, singleton="raw").tolist() == [-1, 1, -2, 2, 0, 6]
    np.testing.assert_allclose(advantage(batch, **by, **parent), [-1, 1, -2, 2, 0, 6 - 46 / 6])
    # With min_count 3, state 0 is rare as well.
    got = Mars(**by, **parent, min_count=3).estimate(batch)
    np.testing.assert_allclose(got.advantage, [1 - 46 / 6, 3 - 46 / 6, -2, 2, 0, 6 - 46 / 6])
    assert got.stats["fallbacks"] == 3
    assert got.stats["singletons"] == 1
    with pytest.raises(EpisodeError, match="nobody"):
        Mars(**by, singleton="error").estimate(batch)
    # A parent too small for min_count leaves the singleton rule.
    assert not advantage(make_batch([5, 7], state_key=[0, 1]), **by, **parent, min_count=3).any()


def test_leaving_the_own_episode_out(make_batch):
    # Others' means: episode 0 sees 4 and 9 (6.5), 1 sees 1, 2, 9 (4), 2 sees 1, 2, 4 (7/3).
    batch = make_batch([-1, 2, 4, 9], episode=[0, 0, 1, 2])  # to go: 1, 2, 4, 9
    got = advantage(batch, leave_one_out=True)
    np.testing.assert_allclose(got, [1 - 6.5, 2 - 6.5, 0, 9 - 7 / 3])
    # With nobody else, the singleton rule, although two turns are counted.
    alone = make_batch([1, 2], episode=[0, 0])
    assert not advantage(alone, leave_one_out=True).any()
    assert advantage(alone, leave_one_out=True, singleton="raw").tolist() == [3, 2]


def test_a_state_seen_in_the_own_episode_only_takes_the_parent(make_batch):
    # State 0 is met twice in episode 0 (to go: 1, 2) and by nobody else; the others' mean is 6.
    batch = make_batch([-1, 2, 5, 7], episode=[0, 0, 1, 2], state_key=[0, 0, 1, 1])
    got = advantage(batch, by=("state_key",), parent=("role",), leave_one_out=True)
    assert got.tolist() == [1 - 6, 2 - 6, 5 - 7, 7 - 5]


def test_scaled_by_the_standard_deviation(make_batch):
    # Values 0, 2, 4: mean 2, squares 8, std √(8/2) = 2.
    got = advantage(make_batch([0, 2, 4]), scale=True, epsilon=0.0)
    np.testing.assert_allclose(got, [-1, 0, 1])


def test_equal_first_turns_do_not_blow_up_later_ones(make_batch):
    # Over trajectories the spread is 0 although the later turns differ from the mean.
    batch = make_batch([0.05, 1.05, 0.05, 1.05], episode=[0, 0, 1, 1])
    assert not advantage(batch, pool="trajectories", scale=True).any()


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_stopping_early_against_enumeration(make_batch, leave_one_out):
    """Normalising before the sum is blind where the policy decides how long to go on.

    Each turn pays 1; after the first the policy goes on with p = .3. The gradient of the return in
    the logit of going on is p(1-p) = .21. Two episodes, all four outcomes.
    """
    p = 0.3
    found = {"mars": 0.0, "shipped": 0.0}
    for first, second in np.ndindex(2, 2):
        probability = (p if first else 1 - p) * (p if second else 1 - p)
        episode = [0] * (1 + first) + [1] * (1 + second)
        batch = make_batch([1.0] * len(episode), episode=episode)
        estimators = {"mars": Mars(leave_one_out=leave_one_out), "shipped": MarsShipped()}
        for name, estimator in estimators.items():
            credit = estimator.estimate(batch).advantage[0]
            found[name] += probability * credit * (first - p)
    assert found["shipped"] == 0
    if leave_one_out:
        assert found["mars"] == pytest.approx(0.21)
    else:  # a batch of two has the own turns in its mean: right sign, too small
        assert 0 < found["mars"] < 0.21


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "episodes"}, "mars.pool"),
        ({"by": ("roles",)}, "did you mean 'role'"),
        ({"parent": ("state",)}, "mars.parent"),
        ({"min_count": 1}, "mars.min_count"),
        ({"gamma": -0.1}, "mars.gamma"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        Mars(**options)
