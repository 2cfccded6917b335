"""RRPO and SRPO: two groups that do not mix, and prefixes that are not trained again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.rrpo import RRPO, SRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=30, deadline=None)
BOTH = pytest.mark.parametrize("kind", [RRPO, SRPO])


def plain(estimator, batch):
    """Cell by cell: the agents' returns in it, their mean and spread; nothing for copied turns."""
    lengths = batch.lengths
    out = np.zeros(len(batch))
    cells = zip(batch.group, batch.agent, batch.signals["suffix_of"], strict=True)
    cells = [tuple(cell) for cell in cells]
    for cell in set(cells):
        rows = [k for k in range(len(batch)) if cells[k] == cell]
        spoke = {batch.episode[k] for k in rows if lengths[k]}
        total = {e: sum(batch.reward[k] for k in rows if batch.episode[k] == e) for e in spoke}
        x = np.array(list(total.values()))
        for k in rows:
            trained = lengths[k] > 0 and not batch.signals["replayed"][k]
            if trained and np.ptp(x) > 0 and x.std() >= estimator.floor:
                out[k] = (total[batch.episode[k]] - x.mean()) / x.std()
    return out


PLAIN = {"rrpo": plain, "srpo": plain}


def forked(make_batch, fresh, suffixes):
    """Fresh one-turn episodes, and forks whose first of two turns is a copy."""
    n = len(fresh)
    rewards = [*fresh, *(r for suffix in suffixes for r in (0, suffix))]
    again = np.arange(n, n + len(suffixes))
    return make_batch(
        rewards,
        episode=[*range(n), *np.repeat(again, 2)],
        signals={
            "suffix_of": [-1] * n + [0] * (2 * len(suffixes)),
            "replayed": [0] * n + [1, 0] * len(suffixes),
        },
    )


@BOTH
def test_worked_values(make_batch, kind):
    # Fresh: mean .5, std .5. Suffixes: mean .75, squares 3/16 + 9/16 = .75, std √(.75/4) = .433013:
    # .25/.433013 = .577350 and -.75/.433013 = -1.732051. Copied turns get 0, and weight 0.
    batch = forked(make_batch, [1, 0, 0, 1], [1, 1, 0, 1])
    got = kind().estimate(batch)
    expected = [1, -1, -1, 1, 0, 0.577350, 0, 0.577350, 0, -1.732051, 0, 0.577350]
    np.testing.assert_allclose(got.advantage, expected, atol=1e-6)
    assert got.weight.tolist() == [1, 1, 1, 1] + [0, 1] * 4
    assert got.stats["groups"] == 2
    assert got.stats["replayed_turns"] == 4
    # The mean |A| is over the eight turns that are trained.
    assert got.stats["adv_abs_mean/alice"] == pytest.approx((4 + 3 * 0.577350 + 1.732051) / 8)


def test_one_success_among_suffixes(make_batch):
    # Mean .25, std √(3/16) = .433013: .75/.433013 and -.25/.433013.
    got = RRPO().estimate(forked(make_batch, [], [0, 0, 1, 0])).advantage[1::2]
    np.testing.assert_allclose(got, [-0.577350, -0.577350, 1.732051, -0.577350], atol=1e-6)


def test_the_groups_do_not_leak(make_batch):
    # Suffixes of a failure nearly solved succeed often; that must not make fresh successes poor.
    few, many = (forked(make_batch, [1, 0, 0, 1], suffixes) for suffixes in ([0] * 4, [1, 1, 1, 9]))
    first, second = RRPO().estimate(few).advantage, RRPO().estimate(many).advantage
    assert first[:4].tobytes() == second[:4].tobytes()
    assert not first[4:].any()


def test_two_reset_groups_are_two_groups(make_batch):
    signals = {"suffix_of": [3, 3, 7, 7], "replayed": [0] * 4}
    batch = make_batch([1, 0, 10, 20], signals=signals)
    assert RRPO().estimate(batch).advantage.tolist() == [1, -1, -1, 1]


@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    suffix = rng.integers(-1, 2, batch.episode.max() + 1)[batch.episode]
    batch = batch.with_signals({"suffix_of": suffix})
    got = RRPO().estimate(batch)
    np.testing.assert_allclose(got.advantage, plain(RRPO(), batch), atol=1e-9)
    assert not got.weight[batch.signals["replayed"] > 0].any()


@LAW
@given(SEEDS)
def test_without_a_fork_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = batch.with_signals({"replayed": np.zeros(len(batch))})
    got, expected = RRPO().estimate(batch), GRPO(ddof=0, epsilon=0.0).estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-12)
    assert got.weight.tolist() == expected.weight.tolist()


@LAW
@given(SEEDS, st.floats(-3, 3))
def test_what_the_shared_prefix_earned_does_not_matter(random_batch, seed, earned):
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    first = batch.agent_turn == 0
    batch = batch.with_signals(
        {"suffix_of": np.zeros(len(batch), dtype=int), "replayed": first.astype(float)}
    )
    more = replace(batch, reward=np.where(first, batch.reward + earned, batch.reward))
    before, after = RRPO().estimate(batch).advantage, RRPO().estimate(more).advantage
    np.testing.assert_allclose(before, after, atol=1e-6)


def test_a_spread_below_the_floor_is_none(make_batch):
    batch = forked(make_batch, [1, 1 + 1e-9, 1, 1], [0, 0.5])
    got = RRPO().estimate(batch).advantage
    assert not got[:4].any()
    assert got[5] == -1
    # Without a floor, rounding would be learned from.
    assert RRPO(floor=0.0).estimate(batch).advantage[1] == pytest.approx(np.sqrt(3), abs=1e-6)


def test_bad_settings_are_named_after_the_method():
    with pytest.raises(ConfigError, match=r"srpo.floor must be finite"):
        SRPO(floor=-1.0)
    with pytest.raises(ConfigError, match=r"rrpo.by has no option 'sufix_of'.*'suffix_of'"):
        RRPO(by=("sufix_of",))
