"""TRIAGE: a bonus by the kind of a turn, then whitening over the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.triage import Triage
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def raw(**more):
    """Returns as advantages: every episode is alone, and measured against nothing."""
    return Triage(by=("episode",), singleton="raw", epsilon=0.0, **more)


def plain(estimator, batch):
    """The formula, turn by turn."""
    lengths = batch.lengths
    outcome = plain_outcome(batch)
    kind, known = batch.signals["judge_role"], batch.known("judge_role")
    rows = [i for i in range(len(batch)) if lengths[i]]
    mixed = {i: outcome[i] for i in rows}
    for i in rows:
        if known[i]:
            mixed[i] += estimator.lam * estimator.bonus[int(kind[i])]
    mean = sum(mixed.values()) / len(rows)
    variance = sum((x - mean) ** 2 for x in mixed.values()) / len(rows)
    advantage = np.zeros(len(batch))
    for i in rows:
        advantage[i] = (mixed[i] - mean) / (variance + 1e-8) ** 0.5
    return advantage


PLAIN = {"triage": plain}


def test_worked_value(make_batch):
    # .8 + .3·(1, -.5, 1) = 1.1, .65, 1.1; -.8 + .3·(.5, -.1) = -.65, -.83. Mean .274; squares
    # .682276 + .141376 + .682276 + .853776 + 1.218816 = 3.578520, std √(.715704) = .845993.
    batch = make_batch(
        [0.8, 0, 0, -0.8, 0],
        episode=[0, 0, 0, 1, 1],
        signals={"judge_role": [0, 3, 0, 1, 2]},
    )
    got = raw(lam=0.3).estimate(batch).advantage
    np.testing.assert_allclose(got, [0.9764, 0.4444, 0.9764, -1.0922, -1.305], atol=5e-5)


@LAW
@given(SEEDS, st.floats(0, 1))
def test_against_a_plain_loop(random_batch, seed, lam):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["judge_role"])
    batch = batch.with_signals({"judge_role": lost})
    estimator = Triage(lam=lam)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)
    assert abs(got.mean()) < 1e-9


@LAW
@given(SEEDS, st.integers(0, 3))
def test_without_kinds_it_is_grpo_scaled(random_batch, seed, kind):
    """So is one kind for all, or no label: the order of the turns stays that of GRPO."""
    batch = random_batch(np.random.default_rng(seed), silent=0.0)
    base = GRPO().estimate(batch).advantage
    expected = (base - base.mean()) / np.sqrt(base.var() + 1e-8)
    same = np.full(len(batch), float(kind))
    for estimator, labels in [
        (Triage(lam=0.0), batch.signals["judge_role"]),
        (Triage(lam=0.3), same),
        (Triage(lam=0.3), same * np.nan),
    ]:
        got = estimator.estimate(batch.with_signals({"judge_role": labels})).advantage
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_a_decisive_turn_of_a_slight_failure_is_praised(make_batch):
    # Added, not multiplied: -.1 + .5·1 = .4 against .1 + .5·(-.5) = -.15. Signs have changed.
    batch = make_batch([-0.1, 0.1], signals={"judge_role": [0, 3]})
    got = raw(lam=0.5).estimate(batch).advantage
    np.testing.assert_allclose(got, [1, -1], atol=1e-6)


def test_an_unlabelled_turn_gets_no_bonus_not_that_of_kind_zero(make_batch):
    batch = make_batch([0, 0, 0]).with_signals({"judge_role": np.array([0, np.nan, 3])})
    credit = Triage(lam=1.0).estimate(batch)
    assert credit.components["kind"].tolist() == [1, 0, -0.5]
    assert credit.stats["missing_labels"] == 1


def test_nonsense_is_refused(make_batch):
    for options, message in [
        ({"lam": 2.0}, "triage.lam"),
        ({"lam": 0.3, "bonus": (1.0, 0.5)}, "decisive, exploratory, neutral"),
        ({"lam": 0.3, "white_epsilon": -1.0}, "triage.white_epsilon"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Triage(**options)
    batch = make_batch([0, 0], signals={"judge_role": [1, 4]})
    with pytest.raises(EpisodeError, match=r"of episode 1 is 4; it must lie in \[0, 3\]"):
        Triage(lam=0.3).estimate(batch)
    between = replace(batch, signals={"judge_role": np.array([1.5, 2])})
    with pytest.raises(EpisodeError, match=r"is 1.5; it must be one of 0, 1, 2, 3"):
        Triage(lam=0.3).estimate(between)
