"""The shipped order of operations, against worked values and a literal version over tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.mars_shipped import MarsShipped
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
BARE = {"whiten_rewards": False, "whiten_advantages": False}  # in units of reward


def advantage(batch, **options):
    return MarsShipped(**options).estimate(batch).advantage


def test_the_constant_format_reward_vanishes(make_batch):
    # μ = (.05 + 1.05 + .05 - .95)/4 = .05; less that: 0, 1, 0, -1; to go: 1, 1, -1, -1, whose
    # distinct values have mean 0.
    batch = make_batch([0.05, 1.05, 0.05, -0.95], episode=[0, 0, 1, 1])
    np.testing.assert_allclose(advantage(batch, **BARE), [1, 1, -1, -1])


def test_rare_and_common_values_weigh_the_same(make_batch):
    # Less μ = .5: .5 three times and -1.5. Distinct values with the 0 of the padding: mean
    # (.5 - 1.5 + 0)/3 = -1/3; without it -1/2.
    batch = make_batch([1, 1, 1, -1])
    np.testing.assert_allclose(advantage(batch, **BARE), [0.833, 0.833, 0.833, -1.167], atol=5e-4)
    np.testing.assert_allclose(advantage(batch, **BARE, padding=False), [1, 1, 1, -1])


def test_rounding_does_not_tell_equal_values_apart(make_batch):
    # μ = 0. To go: .1 + .7, .7, .8, -1.6, and .1 + .7 is not .8 in floating point: three distinct
    # values with mean -.1/3, not four with mean .175.
    batch = make_batch([0.1, 0.7, 0.8, -1.6], episode=[0, 0, 1, 2])
    got = advantage(batch, **BARE, padding=False)
    np.testing.assert_allclose(got, np.array([0.8, 0.7, 0.8, -1.6]) + 0.1 / 3)


@pytest.mark.parametrize(("win", "sign"), [(0.25, 1.0), (-1.25, -1.0)])
def test_long_and_short_wins(make_batch, win, sign):
    """A bonus or malus of 2(μ - .05) for two turns less, whose sign changes at μ = .05.

    Ten games, half of 3 and half of 5 turns, eight won, .05 per turn.
    """
    loss = -4.0 * win + sign * 3.0  # μ - .05 = (8 win + 2 loss)/40 = ±.15
    episodes = [(3, win)] * 4 + [(5, win)] * 4 + [(3, loss), (5, loss)]
    reward = np.concatenate([[0.05] * (k - 1) + [0.05 + z] for k, z in episodes])
    batch = make_batch(reward, episode=np.repeat(np.arange(10), [k for k, _ in episodes]))
    got = advantage(batch, **BARE)
    assert got[0] - got[12] == pytest.approx(sign * 0.3)


def literal(batch, padding=True):
    """Steps (a) to (f) over a token field, one by one, as the code does."""
    tokens = len(batch.logprobs)
    turn = np.repeat(np.arange(len(batch)), batch.lengths)
    end = batch.offsets[1:] - 1
    field = np.zeros(tokens)
    field[end] = batch.reward  # (a)
    for game in np.unique(batch.game):  # (b)
        for player in np.unique(batch.agent):
            ends = end[(batch.game == game) & (batch.agent == player)]
            if len(ends):
                field[ends] -= field[ends].mean()
    field = (field - field.mean()) / np.sqrt(field.var(ddof=1) + 1e-8)  # (c)
    to_go = np.zeros(tokens)
    for episode in np.unique(batch.episode):  # (d)
        for player in np.unique(batch.agent):
            mine = (batch.episode[turn] == episode) & (batch.agent[turn] == player)
            to_go[mine] = np.cumsum(field[mine][::-1])[::-1]
    out = to_go.copy()
    for player in np.unique(batch.agent):  # (e)
        mine = batch.agent[turn] == player
        values = {round(v, 6) for v in to_go[mine].tolist()} | ({0.0} if padding else set())
        out[mine] -= sum(values) / len(values)
    return (out - out.mean()) / np.sqrt(out.var(ddof=1) + 1e-8)  # (f)


def plain(estimator, batch):
    """The steps of `literal` on turns, one after the other in plain Python; all sampled."""
    n, ends = range(len(batch)), {}
    for i in n:
        ends.setdefault((batch.game[i], batch.role[i], batch.agent[i]), []).append(i)
    reward = np.zeros(len(batch))
    for rows in ends.values():
        mean = sum(batch.reward[i] for i in rows) / len(rows)
        for i in rows:
            reward[i] = batch.reward[i] - mean
    lengths = batch.lengths.tolist()
    free = sum(lengths) - estimator.ddof
    scale = (sum(r * r for r in reward) / free + estimator.epsilon) ** 0.5
    to_go, later, values = {}, {}, {}
    for i in sorted(n, key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        later[me] = to_go[i] = reward[i] / scale + later.get(me, 0.0)
        seen = values.setdefault(
            (batch.role[i], batch.agent[i]), {0.0} if estimator.padding else set()
        )
        seen.add(round(to_go[i], 6))
    mean = {player: sum(seen) / len(seen) for player, seen in values.items()}
    out = [to_go[i] - mean[batch.role[i], batch.agent[i]] for i in n]
    middle = sum(k * x for k, x in zip(lengths, out, strict=True)) / sum(lengths)
    variance = sum(k * (x - middle) ** 2 for k, x in zip(lengths, out, strict=True)) / free
    return np.array([(x - middle) / (variance + estimator.epsilon) ** 0.5 for x in out])


PLAIN = {"mars_shipped": plain}


@LAW
@given(SEEDS, st.booleans())
def test_turns_weighted_by_length_equal_the_tokens(random_batch, seed, padding):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    got = advantage(batch, padding=padding)
    expected = literal(batch, padding)
    np.testing.assert_allclose(np.repeat(got, batch.lengths), expected, atol=1e-5)
    slow = plain(MarsShipped(padding=padding), batch)
    np.testing.assert_allclose(got, slow, atol=1e-5)


def test_the_reward_whitening_only_scales(random_batch):
    batch = random_batch(np.random.default_rng(3))
    np.testing.assert_allclose(advantage(batch), advantage(batch, whiten_rewards=False), atol=1e-6)


def test_distinct_values_do_not_see_how_often_one_wins(make_batch):
    # Three wins or thirty: the wins' and the loss' distance to the distinct mean is the same share.
    few, many = make_batch([1] * 3 + [-1]), make_batch([1] * 30 + [-1])
    options = {**BARE, "padding": False}
    np.testing.assert_allclose(advantage(few, **options)[[0, -1]], [1, -1])
    np.testing.assert_allclose(advantage(many, **options)[[0, -1]], [1, -1])


def test_twice_the_batch_changes_the_scale_only(random_batch, add_copies):
    batch = random_batch(np.random.default_rng(1), silent=0.0)
    n = len(batch)
    twice = add_copies(batch, np.arange(n))
    once, again = advantage(batch), advantage(twice)[:n]
    tokens = len(batch.logprobs)
    larger = np.sqrt((2 * tokens - 1) / (2 * (tokens - 1)))  # ddof 1
    np.testing.assert_allclose(again, once * larger, rtol=1e-6)
    np.testing.assert_allclose(advantage(twice, ddof=0)[:n], advantage(batch, ddof=0), rtol=1e-6)


def test_the_players_are_compared_in_the_end(make_batch):
    """Unlike `mars`, one player's advantages need not centre, and see the other's."""
    batch = make_batch([1, 1, 1, -1, 5, 0], agent=[0, 0, 0, 0, 1, 1])
    got = advantage(batch)
    assert abs(got[:4].mean()) > 0.05
    louder = replace(batch, reward=batch.reward * np.array([1, 1, 1, 1, 9, 9]))
    assert not np.allclose(advantage(louder)[:4], got[:4])


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'agent'"):
        MarsShipped(player=("agents",))
    with pytest.raises(ConfigError, match=r"mars_shipped.epsilon"):
        MarsShipped(epsilon=float("nan"))
