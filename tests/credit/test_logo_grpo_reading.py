"""LoGo-GRPO: whole episodes, and replays from one state, each among their own kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.logo_grpo_reading import LogoGRPOReading
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def forked(rng, batch):
    """The batch with some episodes as replays from one of two states."""
    reset = rng.integers(-1, 2, batch.episode.max() + 1)
    return batch.with_signals({"suffix_of": reset[batch.episode]})


def plain(estimator, batch):
    """The formula, turn by turn."""
    lengths = batch.lengths
    total = {}
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
    suffix_of, replayed = batch.signals["suffix_of"], batch.signals["replayed"]
    advantage = np.zeros(len(batch))
    for i in range(len(batch)):
        if replayed[i] or not lengths[i]:
            continue
        peers = {
            batch.episode[j]: total[batch.episode[j], batch.agent[j]]
            for j in range(len(batch))
            if lengths[j]
            and (batch.group[j], batch.agent[j], suffix_of[j])
            == (batch.group[i], batch.agent[i], suffix_of[i])
        }
        x = list(peers.values())
        if len(x) > 1:
            mean = sum(x) / len(x)
            std = (sum((y - mean) ** 2 for y in x) / (len(x) - 1)) ** 0.5
            z = (peers[batch.episode[i]] - mean) / (std + 1e-6)
            advantage[i] = z if suffix_of[i] < 0 else estimator.lam * z
    return advantage


PLAIN = {"logo_grpo_reading": plain}


def test_worked_value(make_batch):
    # Fresh .6, .2, .4, .8: mean .5, squares .2, std √(.2/3) = .258199: .1/.258199 = .3873.
    # Replays .5 and .9: ±.2/.282843 = ±.7071, times λ = .5.
    batch = make_batch([0.6, 0.2, 0.4, 0.8, 0.5, 0.9], signals={"replayed": [0] * 6})
    batch = batch.with_signals({"suffix_of": np.array([-1] * 4 + [3] * 2)})
    credit = LogoGRPOReading(lam=0.5).estimate(batch)
    expected = [0.3873, -1.1619, -0.3873, 1.1619, -0.3536, 0.3536]
    np.testing.assert_allclose(credit.advantage, expected, atol=5e-5)
    np.testing.assert_array_equal(credit.components["global"][4:], 0)
    np.testing.assert_array_equal(credit.components["local"][:4], 0)


def test_the_prefix_is_not_trained_again(make_batch):
    batch = make_batch(
        [0, 1, 0, 0],
        episode=[0, 0, 1, 1],
        signals={"replayed": [1, 0, 1, 0]},
    ).with_signals({"suffix_of": np.zeros(4, dtype=np.int64)})
    credit = LogoGRPOReading(lam=1.0).estimate(batch)
    assert credit.weight.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(credit.advantage, [0, 0.7071, 0, -0.7071], atol=5e-5)
    assert credit.stats["replayed_turns"] == 2
    assert credit.stats["adv_abs_mean/alice"] == pytest.approx(0.7071, abs=5e-5)


@LAW
@given(SEEDS, st.floats(0, 2))
def test_against_a_plain_loop(random_batch, seed, lam):
    rng = np.random.default_rng(seed)
    batch = forked(rng, random_batch(rng))
    estimator = LogoGRPOReading(lam=lam)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_replays_do_not_move_the_fresh_and_count_nothing_at_lambda_zero(
    random_batch, take_rows, seed
):
    rng = np.random.default_rng(seed)
    batch = forked(rng, random_batch(rng))
    batch = batch.with_signals({"replayed": np.zeros(len(batch))})
    fresh = np.flatnonzero(batch.signals["suffix_of"] < 0)
    expected = GRPO().estimate(take_rows(batch, fresh)).advantage
    for lam in (0.0, 1.0):
        got = LogoGRPOReading(lam=lam).estimate(batch).advantage
        np.testing.assert_allclose(got[fresh], expected, atol=1e-12)
        assert lam or not np.delete(got, fresh).any()


def test_equal_replays_give_exact_zeros(make_batch):
    batch = make_batch([1 / 3] * 3, signals={"replayed": [0] * 3})
    batch = batch.with_signals({"suffix_of": np.zeros(3, dtype=np.int64)})
    assert not LogoGRPOReading(lam=1.0).estimate(batch).advantage.any()


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match=r"logo_grpo_reading.lam"):
        LogoGRPOReading(lam=-1.0)
    with pytest.raises(ConfigError, match=r"compares replays.*add 'suffix_of'"):
        LogoGRPOReading(lam=1.0, by=("group", "agent"))
