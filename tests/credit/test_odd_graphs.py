"""Graphs as no paper draws them: one state, loops, cycles, no success, only losses, one walk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit.graft import GRAFT, GraphTDMCReading
from marl_llm.credit.graph_gpo import GraphGPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.rtmc import RTMC
from marl_llm.credit.salt import SALT

WHOLE = GRPO(by=("group", "role"))
VALUES = GRAFT(gamma=1.0, scale=False, epsilon=0.0)
RULES = [
    SALT(),
    RTMC(),
    GraphGPO(),
    VALUES,
    GRAFT(gamma=0.95, epsilon=1e-6),
    GraphTDMCReading(),
]
SHAPES = {
    "one state": lambda b: replace(b, state_key=0 * b.state_key),
    "one state, one action": lambda b: replace(
        b, state_key=0 * b.state_key, action_key=0 * b.action_key
    ),
    "two states in turn": lambda b: replace(b, state_key=b.agent_turn % 2),
    "states that never repeat": lambda b: replace(b, state_key=np.arange(len(b))),
    "only losses": lambda b: replace(b, reward=-1.0 - b.reward**2),
    "no success": lambda b: replace(b, reward=np.minimum(b.reward, 0.0)),
    "nothing at stake": lambda b: replace(b, reward=0.0 * b.reward + 0.1),
    "one walk": lambda b: b.take(np.flatnonzero(b.episode == 0)),
    "large": lambda b: replace(b, reward=1e9 * b.reward),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def batch(request, random_batch):
    return request.param(random_batch(np.random.default_rng(5), agents=1, max_turns=6))


def states_of(batch):
    return np.unique(100 * batch.group + batch.state_key, return_inverse=True)[1]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.card.name)
def test_credit_stays_in_proportion(batch, rule):
    credit = rule.estimate(batch)
    returns = np.abs(np.bincount(batch.episode, batch.reward)).max()
    turns = np.sqrt(len(batch))  # no z-score is larger
    assert np.abs(credit.advantage).max() <= 4 * np.abs(batch.reward).max() + returns + turns


def test_what_is_left_of_each_law(batch):
    size = 1.0 + np.abs(batch.reward).max()
    whole = WHOLE.estimate(batch).advantage
    merged = SALT().estimate(batch).advantage
    assert merged.sum() == pytest.approx(whole.sum(), abs=1e-7)
    for rule in (VALUES, replace(VALUES, gamma=0.5)):
        at_states = np.bincount(states_of(batch), rule.estimate(batch).advantage)
        np.testing.assert_allclose(at_states, 0.0, atol=1e-9 * size)
    if not np.any(batch.reward > 0):
        np.testing.assert_allclose(GraphGPO().estimate(batch).advantage, whole, atol=1e-12)


def test_one_state_with_loops_is_worth_what_a_visit_brings_on_average(tell):
    # Two walks of two turns at one state, paid 1 and 0 at the end: half of the visits end, so the
    # state is worth .5; staying keeps .5 and changes nothing, the ends gain and lose .5.
    batch = tell(["00", "00"], ["ab", "ac"], [[0, 1], [0, 0]])
    np.testing.assert_allclose(VALUES.estimate(batch).advantage, [0, 0.5, 0, -0.5])
    # The mean of what followed is .5, too.
    np.testing.assert_allclose(GraphTDMCReading().estimate(batch).advantage, [0, 0.5, 0, -0.5])
