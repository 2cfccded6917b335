"""GDPO: rewards that do not drown each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.gdpo import GDPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.reinforce_pp import ReinforcePPBaseline
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
TWO = {"rewards": ("right", "format"), "weights": (1.0, 1.0)}


def advantage(batch, **options):
    return GDPO(**options).estimate(batch).advantage


def parts(right, form):
    return {"reward/right": right, "reward/format": form}


def plain(estimator, batch):
    """The formula, reward by reward and cell by cell; whitened over tokens."""
    lengths = batch.lengths
    added = np.zeros(len(batch))
    own = {"shaping": batch.shaping, "strategic": batch.reward - batch.shaping}
    for name, weight in zip(estimator.rewards, estimator.weights, strict=True):
        paid = own[name] if name in own else batch.signals[f"reward/{name}"]
        known = batch.known(f"reward/{name}")
        for group in np.unique(batch.group):
            for agent in np.unique(batch.agent):
                mine = (batch.group == group) & (batch.agent == agent)
                earned = {}
                for episode in np.unique(batch.episode[mine]):
                    rows = mine & (batch.episode == episode)
                    if lengths[rows].sum() and known[rows].all():
                        earned[episode] = paid[rows].sum()
                values = list(earned.values())
                if len(values) < 2:
                    continue
                for episode, value in earned.items():
                    z = (value - np.mean(values)) / (np.std(values, ddof=1) + 1e-6)
                    added[mine & (batch.episode == episode)] += weight * z
    tokens = np.repeat(added, lengths)
    out = (added - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
    return np.where(lengths > 0, out, 0.0)


PLAIN = {"gdpo": plain}


@pytest.fixture
def figure(make_batch):
    """Two groups of two: the first differs in one reward, the second in both."""
    return make_batch([0, 1, 0, 2], group=[0, 0, 1, 1], signals=parts([0, 1, 0, 1], [0, 0, 0, 1]))


def test_worked_values(figure):
    # Each z is ∓.5/√.5 = ∓.707107: S = ∓.707107 and ∓1.414214. Squares .5 + .5 + 2 + 2 = 5, over 3:
    # √1.666667 = 1.290994: ∓.547723 and ∓1.095445.
    assert advantage(figure, **TWO, whiten=None) == pytest.approx(
        [-0.707106, 0.707106, -1.414212, 1.414212], abs=1e-6
    )
    expected = [-0.547723, 0.547723, -1.095445, 1.095445]
    np.testing.assert_allclose(advantage(figure, **TWO), expected, atol=1e-6)


def test_grpo_cannot_tell_the_two_groups_apart(figure):
    got = GRPO().estimate(figure).advantage
    np.testing.assert_allclose(got[:2], got[2:], atol=1e-6)


def test_a_large_reward_drowns_no_small_one(make_batch):
    """The order of right answers and of lengths is opposed; the sum follows the lengths alone."""
    length = [0, 100, 200, 300]
    batch = make_batch(np.add([1, 1, 0, 0], length), signals=parts([1, 1, 0, 0], length))
    assert np.argmax(GRPO().estimate(batch).advantage) == 3
    assert np.argmax(advantage(batch, **TWO)) == 1


def test_opposed_parts_of_a_constant_sum_cancel(make_batch):
    batch = make_batch([1, 1, 1], signals=parts([0, 1, 1], [1, 0, 0]))
    np.testing.assert_allclose(advantage(batch, **TWO, whiten=None), 0, atol=1e-12)


def test_strategic_and_shaping_are_parts_of_every_turns_reward(make_batch):
    # Strategic 1 and 0, shaping 0 and 3: z of ±.707 each, opposed.
    batch = replace(make_batch([1, 3]), shaping=np.array([0.0, 3.0]))
    credit = GDPO(whiten=None).estimate(batch)
    np.testing.assert_allclose(credit.components["strategic"], [0.707106, -0.707106], atol=1e-6)
    np.testing.assert_allclose(credit.components["shaping"], [-0.707106, 0.707106], atol=1e-6)


def test_a_missing_part_is_not_a_zero(make_batch):
    """Taken for 0, the unknown part of the third row would make the others look good."""
    batch = make_batch([0] * 4, lengths=[1, 1, 1, 0]).with_signals(
        parts(np.array([5.0, 7, np.nan, np.nan]), np.array([0.0, 0, 0, 0]))
    )
    credit = GDPO(**TWO, whiten=None).estimate(batch)
    np.testing.assert_allclose(credit.advantage, [-0.707106, 0.707106, 0, 0], atol=1e-6)
    assert credit.stats["missing_labels"] == 1, "silent turns lack nothing"
    assert credit.stats["zero_std_groups/format"] == 1


def test_agents_that_share_one_count_keep_it_when_one_is_unknown(make_batch):
    # Two agents per episode share one count; what the second got of reward a is not known. The
    # first ones are 0, 3 and 6: mean 3, std 3.
    batch = make_batch([0.0] * 6, episode=[0, 0, 1, 1, 2, 2], agent=[0, 1] * 3, role=[0] * 6)
    batch = batch.with_signals({"reward/a": np.array([0, np.nan, 3, np.nan, 6, np.nan])})
    shared = GDPO(
        rewards=["a"], weights=[1.0], whiten=None, by=["group"], unit="episode", epsilon=0.0
    )
    assert shared.estimate(batch).advantage.tolist() == [-1, 0, 0, 0, 1, 0]


def test_one_that_is_known_alone_has_nobody_to_be_compared_with(make_batch):
    batch = make_batch([0.0] * 3).with_signals({"reward/a": np.array([2.0, np.nan, np.nan])})
    options = {"rewards": ["a"], "weights": [1.0], "whiten": None, "epsilon": 0.0}
    assert GDPO(**options).estimate(batch).advantage.tolist() == [0, 0, 0]
    assert GDPO(**options, singleton="raw").estimate(batch).advantage.tolist() == [2, 0, 0]


def test_one_unknown_turn_makes_the_agents_sum_unknown(make_batch):
    batch = make_batch([0] * 4, episode=[0, 0, 1, 2]).with_signals(
        {"reward/right": np.array([9.0, np.nan, 1, 3])}
    )
    got = advantage(batch, rewards=("right",), weights=(1.0,), whiten=None)
    np.testing.assert_allclose(got, [0, 0, -0.707106, 0.707106], atol=1e-6)


def test_a_dead_sibling_shifts_nobody(make_batch):
    """A reply without tokens has a reward, but is no member of the group."""
    alive = make_batch([0] * 2, signals=parts([0, 1], [1, 0]))
    dead = make_batch([0] * 3, lengths=[1, 1, 0], signals=parts([0, 1, 50], [1, 0, -50]))
    assert advantage(dead, **TWO)[:2].tolist() == advantage(alive, **TWO).tolist()


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    n = len(batch)
    lost = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    batch = batch.with_signals(parts(lost, rng.normal(size=n)))
    estimator = GDPO(rewards=("right", "format"), weights=(1.0, 0.5))
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_each_reward_has_its_own_units(random_batch, seed):
    """An affine change of one reward, for better or worse scaled, changes nothing."""
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, silent=0.0, max_turns=1)
    right, form = rng.normal(size=(2, len(batch)))
    options = {**TWO, "epsilon": 0.0}
    first = advantage(batch.with_signals(parts(right, form)), **options)
    second = advantage(batch.with_signals(parts(1000 * right + 7, form)), **options)
    np.testing.assert_allclose(second, first, atol=1e-9)


@LAW
@given(SEEDS)
def test_one_reward_is_grpo_and_whitened_its_cousin(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = replace(batch, shaping=np.zeros(len(batch)))
    one = {"rewards": ("strategic",), "weights": (1.0,)}
    grpo = GRPO().estimate(batch).advantage
    np.testing.assert_allclose(advantage(batch, **one, whiten=None), grpo, atol=1e-12)
    tokens = np.repeat(grpo, batch.lengths)
    white = np.repeat(advantage(batch, **one), batch.lengths)
    np.testing.assert_allclose(white, (tokens - tokens.mean()) / tokens.std(ddof=1), atol=1e-6)


@pytest.mark.parametrize(("whiten", "gets_nothing"), [("token", False), ("agent", True)])
def test_a_group_without_signal(make_batch, whiten, gets_nothing):
    # Longer replies for the winner of group 0: the mean over tokens is not 0.
    batch = make_batch(
        [0] * 4,
        group=[0, 0, 1, 1],
        lengths=[1, 5, 2, 2],
        signals={"reward/right": [0, 1, 1, 1]},
    )
    got = advantage(batch, rewards=("right",), weights=(1.0,), whiten=whiten)
    assert (got[2:] == 0).all() == gets_nothing
    cousin = ReinforcePPBaseline().estimate(replace(batch, reward=np.array([0.0, 1, 1, 1])))
    assert cousin.advantage[2:].any(), "as with REINFORCE++ with a group baseline"


def test_rows_alone(make_batch):
    batch = make_batch([0, 0], group=[0, 1], signals=parts([2, 0], [4, 0]))
    assert not advantage(batch, **TWO).any()
    raw = advantage(batch, rewards=["right", "format"], weights=[1, 0.5], whiten=None,
                    singleton="raw", epsilon=0.0)  # fmt: skip
    assert raw.tolist() == [4, 0]


def test_an_unknown_reward_says_where_it_comes_from(make_batch):
    with pytest.raises(EpisodeError, match="no signal 'reward/right': it is a part of the turn's"):
        advantage(make_batch([1.0]), **TWO)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": ()}, "gdpo.rewards must be distinct names"),
        ({"rewards": ("right", "right")}, "gdpo.rewards must be distinct names"),
        ({"weights": (1.0,)}, "gdpo.weights has 1 numbers for 2 rewards"),
        ({"weights": (1.0, float("inf"))}, "gdpo.weights"),
        ({"whiten": "turns"}, "gdpo.whiten has no option 'turns'"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        GDPO(**options)
