"""One policy's trainer: what it must remember between updates survives a checkpoint."""

import json
from dataclasses import replace

import numpy as np
import pytest

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.rae import RAE
from marl_llm.errors import CheckpointError, EpisodeError, TrainingError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.trainer import STATE_FILE, Trainer
from marl_llm.types import Sampling
from marl_llm.weights import checksum

AGENTS = {"kuhn": ["player_0", "player_1"]}
ROLE = Role(
    name="player", user="{brief}", parser=Tags(think="none"), sampling=Sampling(max_tokens=6)
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["J pass bet", "Q bet pass", "K pass", "<answer>pass</answer>"])


@pytest.fixture(scope="module")
def model(tokenizer):
    return lambda: build_model(tokenizer, layers=1, width=16, heads=2, kv_heads=1, mlp=32, seed=0)


@pytest.fixture(scope="module")
def batches(tokenizer, model):
    """Episodes of three updates; all by the first weights, which the checks here do not mind."""
    seats = {"self": ModelSeat(ROLE, Chat(tokenizer), "main")}
    engine = TransformersEngine(model(), end_ids=[tokenizer.eos_token_id], tokenizer=tokenizer)
    return [
        play(
            balanced(0, update, 12, 2, AGENTS, [("self",)]),
            {"kuhn": KuhnPoker},
            seats,
            {"main": engine},
            seed=0,
        )
        for update in range(3)
    ]


def trainer(model, estimator=None, **settings):
    settings = LearnerSettings(ratio_tolerance=None, lr=1e-2, **settings)
    learner = Learner("main", model(), settings, seed=5)
    return Trainer("main", learner, estimator or RAE(decay=0.5), {"self": 1.0}, seed=5)


def sum_of(trainer):
    return checksum(trainer.learner.weights().tensors)


def test_a_restored_trainer_goes_on_as_if_it_had_never_stopped(model, batches, tmp_path):
    steady, first = trainer(model), trainer(model)
    for batch in batches[:2]:
        steady.learn(batch)
        first.learn(batch)
    first.save(tmp_path)
    second = trainer(model)
    second.restore(tmp_path)
    expected, found = steady.learn(batches[2]), second.learn(batches[2])
    np.testing.assert_array_equal(found.advantages, expected.advantages)
    assert sum_of(second) == sum_of(steady)

    forgetful = trainer(model)
    forgetful.learner.restore(tmp_path)  # the weights without the averages
    assert not np.array_equal(forgetful.learn(batches[2]).advantages, expected.advantages)


def test_the_averages_in_a_checkpoint_are_those_of_the_returns(model, batches, tmp_path):
    by_hand = {"player_0": 0.0, "player_1": 0.0}
    taught = trainer(model)
    for batch in batches[:2]:
        taught.learn(batch)
        for episode in batch:
            for agent in {turn.observation.agent for turn in episode.turns}:
                by_hand[agent] = 0.5 * by_hand[agent] + 0.5 * episode.returns[agent]
    taught.save(tmp_path)
    saved = json.loads((tmp_path / STATE_FILE).read_text())["averages"]["kuhn"]["player"]
    acted = {agent: value for agent, value in by_hand.items() if agent in saved}
    assert acted
    assert saved == pytest.approx(acted)


def test_an_estimator_without_a_memory_keeps_none(model, batches, tmp_path):
    plain = trainer(model, GRPO())
    plain.learn(batches[0])
    plain.save(tmp_path)
    assert json.loads((tmp_path / STATE_FILE).read_text()) is None
    again = trainer(model, GRPO())
    again.restore(tmp_path)
    assert sum_of(again) == sum_of(plain)


def test_a_checkpoint_of_another_credit_rule_is_refused(model, batches, tmp_path):
    taught = trainer(model)
    taught.learn(batches[0])
    taught.save(tmp_path)
    other = trainer(model, RAE(by=("role",)))
    other.restore(tmp_path)
    with pytest.raises(CheckpointError, match=r"rae\.by"):
        other.learn(batches[1])


def test_the_order_in_which_workers_finish_does_not_matter(model, batches):
    one, other = trainer(model), trainer(model)
    a, b = one.learn(batches[0]), other.learn(batches[0][::-1])
    np.testing.assert_array_equal(a.advantages, b.advantages)
    assert sum_of(one) == sum_of(other)


def test_a_reward_that_is_not_finite_names_its_turn_and_touches_nothing(model, batches):
    careful = trainer(model)
    before = sum_of(careful)
    episode = batches[0][3]
    spoilt = replace(episode, turns=(replace(episode.turns[0], reward=float("nan")),))
    with pytest.raises(EpisodeError, match=f"turn 0 of episode {episode.id} is nan"):
        careful.learn([*batches[0][:3], spoilt])
    assert sum_of(careful) == before


def test_a_policy_that_nobody_seats_is_named(model, batches):
    with pytest.raises(TrainingError, match="policy 'main' took no turn in 1 episodes"):
        silent = [replace(turn, policy=None, ids=()) for turn in batches[0][0].turns]
        trainer(model).learn([replace(batches[0][0], turns=tuple(silent))])
