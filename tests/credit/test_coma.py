"""COMA: the action taken against the agent's own average."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.coma import COMA, own_mean

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def plain(estimator, batch):
    """One turn after the other."""
    lengths = batch.lengths
    return [
        batch.signals["action_value"][i] - batch.signals["action_value_mean"][i]
        if lengths[i] > 0
        else 0.0
        for i in range(len(batch))
    ]


PLAIN = {"coma": plain}


def joint(make_batch, q, first, second):
    """All joint actions of two agents as two turns each, with COMA's signals from the table q."""
    shape = q.shape
    taken = np.repeat(q.ravel(), 2)
    mean_first = np.broadcast_to(first @ q, shape)
    mean_second = np.broadcast_to((q @ second)[:, None], shape)
    mean = np.stack([mean_first.ravel(), mean_second.ravel()], axis=1).ravel()
    n = q.size
    return make_batch(
        [0.0] * (2 * n),
        episode=np.repeat(np.arange(n), 2),
        agent=np.tile([0, 1], n),
        signals={"action_value": taken, "action_value_mean": mean},
    )


def test_worked_value(make_batch):
    # π1 = (.5, .5), π2 = (.75, .25), Q = 3.1 1.9 / 2.9 2.9. Agent 1: columns mean 3.0 and 2.4.
    # Agent 2: rows mean .75 * 3.1 + .25 * 1.9 = 2.8 and 2.9.
    q = np.array([[3.1, 1.9], [2.9, 2.9]])
    batch = joint(make_batch, q, np.array([0.5, 0.5]), np.array([0.75, 0.25]))
    got = COMA().estimate(batch).advantage
    np.testing.assert_allclose(got[::2], [0.1, -0.5, -0.1, 0.5], atol=1e-12)
    np.testing.assert_allclose(got[1::2], [0.3, -0.9, 0, 0], atol=1e-12)
    # They do not add up to Q - V, V = .5 * 2.8 + .5 * 2.9 = 2.85.
    apart = got[::2] + got[1::2] - (q.ravel() - 2.85)
    np.testing.assert_allclose(apart, [0.15, -0.45, -0.15, 0.45], atol=1e-12)


@LAW
@given(SEEDS)
def test_the_own_policy_expects_nothing_and_others_cancel(make_batch, seed):
    rng = np.random.default_rng(seed)
    q, first, second = rng.normal(size=(3, 4)), rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4))
    got = COMA().estimate(joint(make_batch, q, first, second)).advantage
    np.testing.assert_allclose(first @ got[::2].reshape(3, 4), 0, atol=1e-12)
    np.testing.assert_allclose(got[1::2].reshape(3, 4) @ second, 0, atol=1e-12)
    # What hangs on the other agent alone leaves the first one's credit as it was.
    moved = COMA().estimate(joint(make_batch, q + rng.normal(size=4), first, second)).advantage
    np.testing.assert_allclose(moved[::2], got[::2], atol=1e-12)


@LAW
@given(SEEDS)
def test_against_a_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    np.testing.assert_allclose(COMA().estimate(batch).advantage, plain(COMA(), batch))


def test_the_mean_of_drawn_replies_is_the_policys_mean():
    # Eight replies drawn with the frequencies of the policy: the plain mean is the weighted one.
    q, policy = np.array([3.0, 1.0, 2.0]), np.array([0.5, 0.25, 0.25])
    drawn = q[np.repeat(np.arange(3), [4, 2, 2])]
    assert own_mean(drawn, np.full(8, 1 / 8)) == own_mean(q, policy) == 2.25


def test_a_missing_value_gives_nothing(make_batch):
    batch = make_batch([1, 1, 1]).with_signals({
        "action_value": np.array([2.0, np.nan, 2.0]),
        "action_value_mean": np.array([1.5, 1.0, np.nan]),
    })  # fmt: skip
    credit = COMA().estimate(batch)
    assert credit.advantage.tolist() == [0.5, 0, 0]
    assert credit.stats["missing_labels"] == 2
