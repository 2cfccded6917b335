"""RCCA: verdicts on the tokens that they were traced to."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.bench.loops import outcome as plain_outcome
from marl_llm.credit import tokens
from marl_llm.credit.rcca_reading import RccaReading

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def traced(make_batch, reward, lengths, item, verdict, **more):
    return make_batch(
        reward, lengths=lengths, signals={"rubric_item": item, "rubric_verdict": verdict}, **more
    )


def broadcast(batch):
    return tokens.spread(plain_outcome(batch), batch.offsets)


def plain(estimator, batch):
    """The formula, token by token."""
    outcome = broadcast(batch)
    item, verdict = batch.signals["rubric_item"], batch.signals["rubric_verdict"]
    said = {}  # (item, group, agent) -> episode -> verdicts
    where = {}
    for i in range(len(batch)):
        for t in range(batch.offsets[i], batch.offsets[i + 1]):
            if item[t] >= 0:
                where[t] = (item[t], batch.group[i], batch.agent[i]), batch.episode[i]
                said.setdefault(where[t][0], {}).setdefault(where[t][1], []).append(verdict[t])
    advantage = outcome.copy()
    for t, (key, episode) in where.items():
        own = {e: sum(x) / len(x) for e, x in said[key].items()}
        if max(own.values()) - min(own.values()) > 1e-12:
            mean = sum(own.values()) / len(own)
            variance = sum((x - mean) ** 2 for x in own.values()) / (len(own) - 1)
            advantage[t] += (own[episode] - mean) / (variance**0.5 + 1e-6)
    return advantage


PLAIN = {"rcca_reading": plain}


def test_worked_value(make_batch):
    # Returns 1 and .5: ±.7071. Item 0 points at the middle tokens, passed and failed: ±.7071.
    batch = traced(make_batch, [1, 0.5], [3, 3], [-1, 0, -1] * 2, [0, 1, 0, 0, 0, 0])
    credit = RccaReading().estimate(batch)
    expected = [0.7071, 1.4142, 0.7071, -0.7071, -1.4142, -0.7071]
    np.testing.assert_allclose(credit.advantage, expected, atol=5e-5)
    assert credit.stats["untraced_tokens"] == 4


@LAW
@given(SEEDS)
def test_against_a_plain_loop(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = RccaReading().estimate(batch).advantage
    np.testing.assert_allclose(got, plain(RccaReading(), batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_every_item_sums_to_zero_over_the_agents_that_have_it(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    z = RccaReading().estimate(batch).components["rubric"]
    item, turn = batch.signals["rubric_item"], tokens.turn_of(batch.offsets)
    group, agent, episode = (x[turn] for x in (batch.group, batch.agent, batch.episode))
    for key in set(zip(group.tolist(), agent.tolist(), item.tolist(), strict=True)):
        cell = (group == key[0]) & (agent == key[1]) & (item == key[2])
        own = [set(z[cell & (episode == e)].tolist()) for e in np.unique(episode[cell])]
        assert all(len(values) == 1 for values in own), "one value per agent and item"
        assert abs(sum(values.pop() for values in own)) < 1e-9


def test_the_verdict_of_a_long_span_counts_once(make_batch):
    # One token against three: verdicts 1 and 0 are ±.7071, not 1 against 0, 0, 0.
    batch = traced(make_batch, [0, 0], [1, 3], [0] * 4, [1, 0, 0, 0])
    got = RccaReading().estimate(batch).advantage
    np.testing.assert_allclose(got, [0.7071, -0.7071, -0.7071, -0.7071], atol=5e-5)


def test_an_item_that_all_pass_and_tokens_of_none_leave_grpo(make_batch):
    for item, verdict in [([-1] * 6, [1, 0, 1, 0, 0, 1]), ([0, 0, 1] * 2, [1 / 3] * 6)]:
        batch = traced(make_batch, [1, 0.5], [3, 3], item, verdict)
        np.testing.assert_array_equal(RccaReading().estimate(batch).advantage, broadcast(batch))


def test_items_of_other_groups_are_other_items(make_batch):
    batch = traced(make_batch, [0, 0], [1, 1], [0, 0], [1, 0], group=[0, 1])
    assert not RccaReading().estimate(batch).advantage.any()
