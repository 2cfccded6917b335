"""ICA: what a unit of information was worth to those who saw it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.ica import ICA
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=25, deadline=None)


def plain(estimator, batch):
    """GRPO's number, and the evidence: who saw what, and when for the first time."""
    lengths = batch.lengths
    unit = np.where(lengths > 0, batch.signals["evidence_unit"], -1)
    chains = defaultdict(list)
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        chains[batch.episode[i], batch.agent[i]].append(i)
    cells = defaultdict(list)
    for rows in chains.values():
        if any(lengths[i] > 0 for i in rows):
            first = {}
            for i in rows:
                if unit[i] >= 0:
                    first.setdefault(unit[i], i)
            total = sum(batch.reward[i] for i in rows)
            cells[batch.group[rows[0]], batch.agent[rows[0]]].append((rows, first, total))
    worth = np.zeros(len(batch))
    for members in cells.values():
        for u in {u for _, first, _ in members for u in first}:
            saw = [total for _, first, total in members if u in first]
            not_saw = [total for _, first, total in members if u not in first]
            if not_saw:
                for _, first, _ in members:
                    if u in first:
                        worth[first[u]] = np.mean(saw) - np.mean(not_saw)
    out = np.zeros(len(batch))
    for rows in chains.values():
        later = 0.0
        for i in reversed(rows):
            later = out[i] = worth[i] + estimator.gamma * later
    whole = plain_outcome(batch) + estimator.weight * out
    return np.where(lengths > 0, whole, 0.0)


PLAIN = {"ica": plain}


@pytest.fixture
def evidence(make_batch):
    """Units 0 2 | 0 1 | 1 | none, and outcomes 1, 1, 0, 0."""
    signals = {"evidence_unit": np.array([0, 2, 0, 1, 1, -1])}
    batch = make_batch([0, 1, 0, 1, 0, 0], episode=[0, 0, 1, 1, 2, 3], signals=signals)
    return replace(batch, signals=signals)


def test_worked_value(evidence):
    # Unit 0: 1 for those who saw it, 0 for the others. Unit 1: .5 and .5. Unit 2: 1 and 1/3.
    now = ICA(gamma=0.0).estimate(evidence).components["evidence"]
    np.testing.assert_allclose(now, [1, 2 / 3, 1, 0, 0, 0])
    # With a discount the first turn also gets .95 of what the second brought.
    credit = ICA().estimate(evidence)
    np.testing.assert_allclose(credit.components["evidence"], [1 + 0.95 * 2 / 3, 2 / 3, 1, 0, 0, 0])
    np.testing.assert_allclose(credit.components["outcome"][:2], 0.866024, atol=1e-6)
    assert credit.stats["credited_turns"] == 3


@LAW
@given(SEEDS, st.floats(0, 1))
def test_as_a_plain_loop_does_it(random_batch, seed, gamma):
    batch = random_batch(np.random.default_rng(seed))
    estimator = ICA(gamma=gamma)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_without_evidence_it_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    grpo = GRPO().estimate(batch).advantage
    np.testing.assert_allclose(ICA(weight=0.0).estimate(batch).advantage, grpo, atol=1e-12)
    signals = {**batch.signals, "evidence_unit": np.full(len(batch), -1)}
    got = ICA().estimate(replace(batch, signals=signals)).advantage
    np.testing.assert_allclose(got, grpo, atol=1e-12)


def test_what_all_or_none_saw_is_worth_nothing(make_batch):
    batch = make_batch([3, 1, 0], signals={})
    for unit in (np.array([5, 5, 5]), np.array([-1, -1, -1])):
        seen = replace(batch, signals={"evidence_unit": unit})
        assert not ICA().estimate(seen).components["evidence"].any()


def test_the_same_page_again_is_worth_nothing(make_batch):
    batch = make_batch([0, 1, 0], episode=[0, 0, 1])
    batch = replace(batch, signals={"evidence_unit": np.array([4, 4, -1])})
    got = ICA(gamma=0.0).estimate(batch).components["evidence"]
    np.testing.assert_allclose(got, [1, 0, 0])


def test_equal_returns_give_exact_zeros(make_batch):
    batch = make_batch([0.1] * 5)
    batch = replace(batch, signals={"evidence_unit": np.array([0, 0, 1, 1, -1])})
    assert not ICA().estimate(batch).advantage.any()


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"ica\.unit"):
        ICA(unit="turn")
