"""One policy's trainer: what it must remember between updates survives a checkpoint."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role
from marl_llm.annotate.material import Reach, Voice
from marl_llm.annotate.state_values import StateValues, mean_of_others
from marl_llm.credit import returns
from marl_llm.credit.columns import from_episodes
from marl_llm.credit.gae import GAE
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.rae import RAE
from marl_llm.credit.vine_ppo import VinePPO
from marl_llm.errors import CheckpointError, ConfigError, EpisodeError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.learn.reference import KL
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.trainer import STATE_FILE, Trainer
from marl_llm.types import Move, Sampling
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


def test_a_policy_without_a_turn_stays_as_it_is(model, batches):
    idle = trainer(model)
    before = sum_of(idle)
    silent = [replace(turn, policy=None, ids=()) for turn in batches[0][0].turns]
    lesson = idle.learn([replace(batches[0][0], turns=tuple(silent))])
    assert lesson.stats == {"learn/idle": 1.0}
    assert len(lesson.advantages) == 0
    assert (sum_of(idle), idle.learner.version) == (before, 0)


# Signals and replays.


@dataclass(frozen=True)
class Parity:
    """Any reply names an action, by its length: a model that was taught nothing plays on."""

    stop = ()
    instructions = ""

    def parse(self, reply, finish):
        return Move("bet" if len(reply) % 2 else "pass")


@pytest.fixture(scope="module")
def at_hand(tokenizer, model):
    """The games, seats and an engine with the weights that play."""
    engine = TransformersEngine(model(), end_ids=[tokenizer.eos_token_id], tokenizer=tokenizer)
    chat = Chat(tokenizer)
    seats = {"self": ModelSeat(replace(ROLE, parser=Parity()), chat, "main")}
    games = {"kuhn": KuhnPoker}

    def replay(plans, players):
        return play(plans, games, {**seats, **players}, {"main": engine}, seed=9)

    return Reach(games=games, seats=seats, scorer=engine, judge=Voice(engine, chat), play=replay)


@pytest.fixture(scope="module")
def lively(at_hand):
    """Episodes of two updates, in which something is won and lost."""
    return [at_hand.play(balanced(0, update, 12, 2, AGENTS, [("self",)]), {}) for update in (0, 1)]


def equipped(model, estimator, reach, **annotators):
    settings = LearnerSettings(ratio_tolerance=None, lr=1e-2)
    learner = Learner("main", model(), settings, seed=5)
    return Trainer("main", learner, estimator, {"self": 1.0}, 5, annotators, reach)


def test_an_update_with_values_that_an_annotator_counted(model, lively, at_hand):
    taught = equipped(model, GAE(lam=1.0), at_hand, values=StateValues())
    before = sum_of(taught)
    lesson = taught.learn(lively[0])
    assert sum_of(taught) != before
    assert lesson.stats["annotate/seconds"] > 0
    # λ = 1 is return minus value: the same as centring on the others at the information state.
    batch = from_episodes(sorted(lively[0], key=lambda episode: episode.id), "main")
    g = returns.to_go(batch.reward, batch.agents())
    counts = (batch.lengths > 0).astype(float)
    own, met = mean_of_others(g, counts, (batch.state_key,), batch.episode)
    keys = batch.game, batch.role, batch.agent
    rare, _ = mean_of_others(g, counts, keys, batch.episode)
    expected = np.repeat(g - np.where(met >= 2, own, rare), batch.lengths)
    np.testing.assert_allclose(lesson.advantages, expected, atol=1e-12)


def test_an_update_that_plays_on_from_every_turn(model, lively, at_hand):
    vine = VinePPO(count=2, whiten=False)
    first, again = (equipped(model, vine, at_hand).learn(lively[0]) for _ in range(2))
    np.testing.assert_array_equal(first.advantages, again.advantages)
    sampled = sum(len(turn.ids) > 0 for episode in lively[0] for turn in episode.turns)
    assert first.stats["credit/continuations"] == 2 * sampled
    other = equipped(model, vine, at_hand).learn(lively[1])
    assert not np.array_equal(first.advantages[:6], other.advantages[:6])


def test_under_a_kl_reward_the_continuations_are_charged_too(model, lively, at_hand):
    # The reference is the policy itself, up to rounding: the charge is next to nothing, and there.
    settings = LearnerSettings(ratio_tolerance=None, kl=KL(coefficient=0.5, form="reward"))
    learner = Learner("main", model(), settings, seed=5)
    charged = Trainer(
        "main", learner, VinePPO(count=2, whiten=False), {"self": 1.0}, 5, {}, at_hand
    )
    plain = equipped(model, VinePPO(count=2, whiten=False), at_hand).learn(lively[0])
    computed = learner._reference.computed
    found = charged.learn(lively[0])
    np.testing.assert_allclose(found.advantages, plain.advantages, atol=1e-4)
    own = {(t.prompt_ids, t.ids) for e in lively[0] for t in e.turns}
    assert learner._reference.computed - computed > len(own)


def test_annotators_and_replays_need_something_at_hand(model):
    for estimator, annotators in ((VinePPO(), {}), (GRPO(), {"values": StateValues()})):
        with pytest.raises(ConfigError, match="give its trainer the games, seats and engines"):
            equipped(model, estimator, None, **annotators)
