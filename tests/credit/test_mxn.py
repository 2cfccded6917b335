"""M designs with N executions each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.grpo import GRPO
from marl_llm.credit.mxn import MxN
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def nested(rng, make_batch, *, groups=2, designs=3, executions=4, team=False):
    """Each episode: a designer's turn and an executor's; a team shares what the executor earns."""
    episodes = np.repeat(np.arange(groups * designs * executions), 2)
    n = len(episodes)
    reward = rng.integers(0, 3, n).astype(float)
    reward[::2] = reward[1::2] if team else 0.0
    batch = make_batch(
        reward,
        group=episodes // (designs * executions),
        episode=episodes,
        agent=np.tile([0, 1], n // 2),
        signals={"design": episodes // executions},
    )
    return replace(
        batch,
        signals={"design": episodes // executions},
        turn=np.tile([0, 1], n // 2),
        parent=np.where(np.arange(n) % 2 == 1, np.arange(n) - 1, -1),
        depth=np.tile([0, 1], n // 2),
    )


def plain(estimator, batch):
    """Who was counted in each design of each problem, then turn by turn."""
    lengths = batch.lengths
    total, members = {}, {}
    problem = list(zip(batch.group, batch.role, batch.depth, strict=True))
    design = batch.signals["design"]
    for i in range(len(batch)):
        me = (batch.episode[i], batch.agent[i])
        total[me] = total.get(me, 0.0) + batch.reward[i]
        if lengths[i]:
            members.setdefault(problem[i], {}).setdefault(design[i], set()).add(me)

    def relative(x, values):
        spread = np.std(values, ddof=1) + estimator.epsilon if estimator.scale else 1.0
        return 0.0 if np.ptp(values) == 0 else (x - np.mean(values)) / spread

    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if not lengths[i]:
            continue
        designs = members[problem[i]]
        same = designs[design[i]]
        if batch.depth[i] == 0:
            worth = {d: np.mean([total[me] for me in played]) for d, played in designs.items()}
            out[i] = relative(worth[design[i]], list(worth.values()))
        else:
            wide = len(same) <= estimator.few
            others = set().union(*designs.values()) if wide else same
            mine = total[batch.episode[i], batch.agent[i]]
            out[i] = relative(mine, [total[me] for me in others])
    return out


PLAIN = {"mxn": plain}


@pytest.fixture
def problem(make_batch):
    """Two designs with three executions: returns 1 1 0 and 0 0 0, of designers and executors."""
    batch = nested(np.random.default_rng(0), make_batch, groups=1, designs=2, executions=3)
    return replace(batch, reward=np.repeat([1.0, 1, 0, 0, 0, 0], 2))


def test_worked_value(problem):
    # Designs are worth 2/3 and 0: mean 1/3, std √(2/9) = .471405: ±.707107, three copies each.
    # Executions of the first: mean 2/3, std √(1/3) = .577350: .577350, .577350, -1.154701.
    credit = MxN(epsilon=0.0).estimate(problem)
    half, third = np.sqrt(0.5), 1 / np.sqrt(3)
    np.testing.assert_allclose(credit.advantage[::2], [half] * 3 + [-half] * 3)
    np.testing.assert_allclose(credit.advantage[1::2], [third, third, -2 * third, 0, 0, 0])
    np.testing.assert_allclose(credit.weight[::2], 1 / 3)
    assert credit.weight[1::2].tolist() == [1] * 6


def test_few_executions_are_compared_over_the_question(problem):
    # All six: mean 1/3, squares 2 * 4/9 + 4 * 1/9 = 4/3, std √(4/15).
    expected = (np.array([1, 1, 0, 0, 0, 0]) - 1 / 3) / np.sqrt(4 / 15)
    for options in ({"few": 3}, {"executors": "question"}):
        credit = MxN(epsilon=0.0, **options).estimate(problem)
        np.testing.assert_allclose(credit.advantage[1::2], expected)
        assert credit.stats["fallbacks"] == 6
    assert MxN(executors="design", few=3).estimate(problem).stats["fallbacks"] == 0


def test_few_counts_executions_and_not_the_agents_in_them(make_batch):
    # Two designs, one execution each, with two calls of the executor: returns 1 0 and 0 0. Within
    # a design there is nobody but the other call of the same execution.
    batch = make_batch(
        [1, 0, 0, 0], episode=[0, 0, 1, 1], agent=[1, 2, 1, 2], role=[1] * 4
    ).with_signals({"design": np.array([0, 0, 1, 1])})
    batch = replace(batch, depth=np.ones(4, dtype=np.int64))
    credit = MxN(few=1, epsilon=0.0).estimate(batch)
    # All four: mean 1/4, squares 9/16 + 3/16 = 3/4, std 1/2.
    np.testing.assert_allclose(credit.advantage, [1.5, -0.5, -0.5, -0.5])
    assert credit.stats["fallbacks"] == 4


@LAW
@given(SEEDS, st.integers(2, 4), st.booleans())
def test_against_a_loop(make_batch, seed, executions, scale):
    batch = nested(np.random.default_rng(seed), make_batch, executions=executions)
    estimator = MxN(scale=scale)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_the_two_levels_add_up(make_batch, seed):
    """What a design and an execution are credited is what the episode got above the problem's."""
    batch = nested(np.random.default_rng(seed), make_batch, team=True)
    got = MxN(scale=False).estimate(batch).advantage
    mean = np.array([batch.reward[batch.group == g].mean() for g in batch.group])
    np.testing.assert_allclose(got[::2] + got[1::2], (batch.reward - mean)[::2], atol=1e-12)


@LAW
@given(SEEDS)
def test_a_copy_of_a_design_changes_only_its_weight(make_batch, take_rows, seed):
    """A designer's turn that stands in one episode only, paid the mean, is the same."""
    batch = nested(np.random.default_rng(seed), make_batch, team=True)
    mean = np.array([
        batch.reward[(batch.signals["design"] == d) & (batch.depth == 0)].mean()
        for d in batch.signals["design"]
    ])  # fmt: skip
    first = np.unique(batch.signals["design"], return_index=True)[1]
    once = take_rows(replace(batch, reward=mean), first)
    got, expected = MxN().estimate(once), MxN().estimate(batch)
    np.testing.assert_allclose(got.advantage, expected.advantage[first], atol=1e-9)
    assert got.weight.tolist() == [1] * len(first)


@LAW
@given(SEEDS)
def test_one_execution_of_each_design_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    batch = replace(batch, signals={"design": batch.episode})
    expected = GRPO().estimate(batch).advantage
    np.testing.assert_allclose(MxN().estimate(batch).advantage, expected, atol=1e-12)
    called = replace(batch, depth=np.ones(len(batch), dtype=np.int64))
    np.testing.assert_allclose(MxN().estimate(called).advantage, expected, atol=1e-12)


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'design'"):
        MxN(executors="designs")
