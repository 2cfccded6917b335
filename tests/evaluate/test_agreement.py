"""How alike estimators are, on numbers that can be worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from marl_llm import config
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.grpo import GRPO
from marl_llm.evaluate.estimators.agreement import (
    agreement,
    ask,
    correlations,
    of_turns,
    same_signs,
    shares,
    silence,
)


def batch(reward, lengths, agent=(), group=()):
    """Single-turn episodes."""
    n = len(reward)
    zeros = np.zeros(n, dtype=np.int64)
    agent = np.array(agent or zeros)
    return TurnBatch(
        group=np.array(group or zeros), episode=np.arange(n), agent=agent, role=zeros,
        policy=zeros, game=zeros, turn=zeros, agent_turn=zeros, parent=zeros - 1, depth=zeros,
        reward=np.array(reward, dtype=float), shaping=np.zeros(n), terminated=zeros == 0,
        truncated=zeros == 1, version=zeros, state_key=zeros, action_key=zeros,
        offsets=np.concatenate(([0], np.cumsum(lengths))), logprobs=np.zeros(sum(lengths)),
        names={"agent": ("left", "right"), "role": ("player",)},
    )  # fmt: skip


def test_spearman_is_scipys_with_ties_and_says_nothing_of_constants():
    rng = np.random.default_rng(0)
    x = np.vstack([rng.integers(0, 4, (3, 30)), np.zeros(30)]).astype(float)
    found = correlations(x)
    np.testing.assert_allclose(found[:3, :3], spearmanr(x[:3].T).statistic)
    assert np.isnan(found[3]).all()


def test_signs_are_compared_where_both_say_something():
    x = np.array([[1.0, -2.0, 0.0, 3.0], [5.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    found = same_signs(x)
    assert found[0, 1] == 1 / 2  # of turns 0 and 1, the first agrees
    assert found[0, 0] == 1.0
    assert np.isnan(found[2]).all()


def test_shares_of_the_size_of_credit():
    found = shares(np.array([[1.0, -1.0, 2.0], [0.0, 0.0, 0.0]]), np.array([0, 1, 0]), 2)
    assert found[0].tolist() == [3 / 4, 1 / 4]
    assert np.isnan(found[1]).all()


def test_token_credit_is_averaged_over_its_turn_and_weighed():
    three = batch([0, 0], [2, 1])
    credit = Credit(np.array([1.0, 3.0, 5.0]), np.array([1.0, 0.0]), level="token")
    assert of_turns(credit, three).tolist() == [2.0, 0.0]


def test_all_figures_of_a_batch_by_hand():
    """Turn 3 is silent and left out; b is a turned round, but for the turn without credit."""
    four = batch([1, 0, 0, 9], [3, 2, 1, 0], agent=(0, 1, 1, 0))
    found = agreement({"a": np.array([2.0, -1, 0, 9]), "b": np.array([-2.0, 1, 0, 9])}, four)
    assert found["turns"] == 3
    assert found["correlation"] == [pytest.approx([1, -1]), pytest.approx([-1, 1])]
    assert found["sign"] == [[1.0, 0.0], [0.0, 1.0]]
    assert found["zeros"] == [1 / 3, 1 / 3]
    assert found["length"] == pytest.approx([0.5, -0.5])  # ranks 3 1 2 against 3 2 1
    assert found["agents"] == ["left", "right"]
    assert found["shares"] == [[2 / 3, 1 / 3]] * 2


def test_rounding_makes_no_order():
    four = batch([0] * 4, [1] * 4)
    found = agreement({"a": np.array([1.0, 1 + 1e-15, 1, 1 - 1e-15]),
                       "b": np.arange(4.0)}, four)  # fmt: skip
    assert found["correlation"][0] == [None, None]


def test_roles_stand_for_agents_where_there_are_several():
    four = replace(batch([0] * 4, [1] * 4), role=np.array([0, 0, 1, 1]),
                   names={"role": ("planner", "worker")})  # fmt: skip
    assert agreement({"a": np.arange(4.0)}, four)["agents"] == ["planner", "worker"]


def test_every_estimator_answers_or_says_what_is_missing_and_from_whom():
    names = config.choices("credit")
    rules = {name: config.build(config.node("credit", name)) for name in names}
    said, refused = ask(rules, batch([1, 0, 0, 1], [1, 2, 1, 1], group=(0, 0, 1, 1)))
    assert {*said, *refused} == set(names)
    assert said["grpo"].advantage == pytest.approx([0.7071, -0.7071, -0.7071, 0.7071], abs=1e-3)
    assert refused["gae"].signals == ("value",) and len(refused["gae"].who) == 1
    assert refused["vine_ppo"].why == "needs replays of the game"
    for name, rule in rules.items():
        assert bool(rule.card.needs) <= (name in refused), name


def test_what_draws_is_drawn_alike_every_time():
    rules = {"m_grpo_random": config.build(config.node("credit", "m_grpo_random"))}
    four = batch([1, 0, 0, 1], [1, 2, 1, 1])
    first, second = (ask(rules, four)[0]["m_grpo_random"] for _ in range(2))
    assert first.advantage.tolist() == second.advantage.tolist()


def test_silence_has_a_reason():
    lonely = GRPO().estimate(batch([1, 0], [1, 1], group=(0, 1)))
    assert silence(lonely) == "groups of one: nobody to compare with"
    assert silence(GRPO().estimate(batch([1, 1], [1, 1]))) == "what it compares is equal"
    assert silence(GRPO().estimate(batch([1, 0], [1, 1]))) is None
