"""Losses of two passes in a learner: the same gradient however the batch is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from marl_llm.credit.batch import Credit
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.errors import ConfigError
from marl_llm.learn.aggregation import Aggregation
from marl_llm.learn.balance import FlowRL, TrajectoryBalance
from marl_llm.learn.delta import DelTA
from marl_llm.learn.importance import Correction
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.learn.live import by_episode, live_turns
from marl_llm.learn.logprobs import hidden_all, score_all
from marl_llm.learn.losses import PPOClip, Reinforce
from marl_llm.learn.objective import Objective, accumulate
from marl_llm.learn.reference import KL
from marl_llm.learn.rows import pack
from marl_llm.learn.twopass import prepare
from marl_llm.seeds import generator
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn

VOCABULARY = 32
EPISODES = 8
SUMS = Aggregation("constant", length=1)
LOSSES = [TrajectoryBalance(0.2), FlowRL(scale=2.0), DelTA()]
MEANS = [SUMS, Aggregation("token"), Aggregation("turn")]
ALL = pytest.mark.parametrize(
    ("loss", "mean"), [*zip(LOSSES, MEANS, strict=True)], ids=lambda one: type(one).__name__
)


def tiny():
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def lot(model):
    """Episodes of two groups: two turns of a_0, one of b_0; rewards at the end."""
    rng = np.random.default_rng(0)

    def turn(agent, reward=0.0):
        prompt, ids = (
            tuple(rng.integers(0, VOCABULARY, k).tolist()) for k in (3, rng.integers(1, 4))
        )
        return Turn(
            observation=Observation("ab"[agent > 0] + "_0", "player", "text", "brief", None, "k"),
            policy="main", player="self", prompt_ids=prompt, ids=ids, logprobs=(0.0,) * len(ids),
            versions=((0, 0, len(ids)),), reply="", action="a", fault=None,
            finish=Finish.STOP, reward=reward, shaping=0.0,
        )  # fmt: skip

    episodes = [
        Episode(
            id=number,
            attempt=0,
            game="toy",
            group=number // 4,
            seed=0,
            turns=(turn(0), turn(1, rng.normal()), turn(0, rng.normal())),
            seats={"a_0": "self", "b_0": "self"},
            returns={"a_0": 0.0, "b_0": 0.0},
            outcomes={"a_0": Outcome.DRAW, "b_0": Outcome.DRAW},
            terminated=True,
        )
        for number in range(EPISODES)
    ]
    turns = turns_of(episodes, "main")
    rows = pack([(turn.prompt_ids, turn.ids) for turn in turns])
    logprobs = score_all(model, rows, 10_000).astype(np.float64)
    return turns, replace(from_episodes(episodes, "main"), logprobs=logprobs)


def lively(model, mean, noise=0.0):
    """Live turns with Dr. GRPO's credit and a reference that is elsewhere."""
    turns, batch = lot(model)
    rng = np.random.default_rng(1)
    batch = replace(batch, logprobs=batch.logprobs + noise * rng.normal(size=len(batch.logprobs)))
    found = live_turns(turns, batch, DrGRPO().estimate(batch), np.ones(len(turns)), mean)
    return replace(found, reference=batch.logprobs - 0.3 * rng.exponential(size=len(found.sampler)))


def gradient(model, loss, live, version=0, budget=10_000, scale=1.0):
    """∇J as the learner takes it."""
    objective = Objective.of(
        live, loss, version, Correction(), "k2", 0.0, None, torch.device("cpu")
    )
    model.zero_grad()
    for micro in pack(live.pairs, live.temperatures).microbatches(budget):
        accumulate(model, micro, objective, live.who)
    return scale * torch.cat([p.grad.flatten() for p in model.parameters()])


@ALL
def test_the_split_into_micro_batches_does_not_matter(loss, mean):
    model = tiny()
    live = lively(model, mean, noise=0.3)
    parts = []
    for budget in (1, 20, 10_000):  # the first pass is cut as well
        ready = prepare(model, loss, live, version=1, budget=budget)
        parts.append(gradient(model, loss, ready, version=1, budget=budget))
    assert parts[0].norm() > 1e-2
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0], atol=1e-6, rtol=1e-4)


@ALL
def test_minibatches_share_the_group_of_the_whole_batch(loss, mean):
    model = tiny()
    ready = prepare(model, loss, lively(model, mean), 0, 10_000)
    whole = gradient(model, loss, ready)
    parts = by_episode(ready.episode, 4, generator(0))
    summed = sum(
        gradient(model, loss, ready.take(part, len(parts)), scale=1 / len(parts)) for part in parts
    )
    torch.testing.assert_close(summed, whole, atol=1e-6, rtol=1e-4)


def test_balance_descends_the_written_objective():
    """By autograd through whole trajectories, log Z held."""
    model, beta = tiny(), 0.2
    live = lively(model, SUMS)
    ready = prepare(model, TrajectoryBalance(beta), live, 0, 10_000)
    found = gradient(model, TrajectoryBalance(beta), ready)

    model.zero_grad()
    starts = np.cumsum(live.lengths) - live.lengths
    sums = {}
    for i, (prompt, ids) in enumerate(live.pairs):
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        lp = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None]).sum()
        reference = live.reference[starts[i] : starts[i] + live.lengths[i]].sum()
        key = (int(live.group[i]), int(live.agent[i]), int(live.episode[i]))
        worth = live.advantages[starts[i]] / beta
        sums[key] = sums.get(key, -worth) + lp - reference
    loss = 0.0
    for group, agent, _ in sums:
        members = [x for key, x in sums.items() if key[:2] == (group, agent)]
        log_z = -torch.stack(members).mean().detach()
        loss = loss + sum((log_z + x) ** 2 for x in members) / len(members)
    (loss / len(live.pairs)).backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-4)


def test_on_the_first_step_it_is_reinforce_with_the_kl_in_the_reward():
    model, beta = tiny(), 0.2
    turns, batch = lot(model)
    live = lively(model, SUMS)
    ready = prepare(model, TrajectoryBalance(beta), live, 0, 10_000)
    found = gradient(model, TrajectoryBalance(beta), ready)

    k1 = np.add.reduceat(batch.logprobs - live.reference, batch.offsets[:-1])
    charged = replace(batch, reward=batch.reward - beta * k1)
    credit = DrGRPO().estimate(charged)
    plain = live_turns(turns, charged, credit, np.ones(len(turns)), SUMS)
    expected = gradient(model, Reinforce(importance=False), plain)
    torch.testing.assert_close(found, 2 / beta * expected, atol=1e-4, rtol=1e-4)


def test_a_loss_of_one_pass_takes_the_turns_as_they_are():
    model = tiny()
    live = lively(model, SUMS)
    assert prepare(model, PPOClip(), live, 0, 10_000) is live


def test_balance_needs_no_kl_setting_and_evens_the_group_out():
    """After many steps log π - log π_ref - A/β is nearly the same in every group."""
    model = tiny()
    turns, batch = lot(model)
    settings = LearnerSettings(
        lr=5e-2, loss=TrajectoryBalance(2.0), aggregation=SUMS, ratio_tolerance=None
    )
    learner = Learner("main", model, settings)
    credit = DrGRPO().estimate(batch)
    norms = [
        learner.update(turns, batch, credit, np.ones(len(turns)))["grad_norm"] for _ in range(30)
    ]
    assert norms[-1] < 0.1 * norms[0]


def test_delta_weighs_tokens_with_mean_one():
    model = tiny()
    live = lively(model, Aggregation("token"))
    ready = prepare(model, DelTA(), live, 0, 10_000)
    some = live.advantages != 0
    weight = ready.advantages[some] / live.advantages[some]
    assert weight.std() > 0.01
    assert weight.max() / weight.min() <= 1.5 + 1e-9  # 1.2 / .8
    assert np.average(weight, weights=live.weights[some]) == pytest.approx(1)


def test_delta_with_one_weight_for_all_is_the_loss_inside():
    model = tiny()
    live = lively(model, Aggregation("token"))
    ready = prepare(model, DelTA(least=1.0, most=1.0), live, 0, 10_000)
    np.testing.assert_allclose(ready.advantages, live.advantages)


@pytest.mark.parametrize("budget", [1, 10_000])
def test_features_are_what_the_output_layer_saw(budget):
    model = tiny()
    live = lively(model, SUMS)
    rows = pack(live.pairs, live.temperatures)
    logprobs, hidden = hidden_all(model, rows, budget)
    np.testing.assert_allclose(logprobs, score_all(model, rows, budget), atol=1e-6)
    ids = torch.tensor([i for _, reply in live.pairs for i in reply])
    logits = hidden @ model.get_output_embeddings().weight.detach().T
    again = torch.log_softmax(logits, -1).gather(1, ids[:, None]).squeeze(1)
    np.testing.assert_allclose(again, logprobs, atol=1e-5)


def test_a_mean_that_counts_length_again_is_refused_with_the_settings():
    with pytest.raises(ConfigError, match=r"aggregation.mode 'turn' would count it again"):
        LearnerSettings(loss=TrajectoryBalance(0.05))
    LearnerSettings(loss=DelTA())
    assert not LearnerSettings(loss=DelTA()).needs_reference
    assert LearnerSettings(loss=FlowRL(), aggregation=SUMS).needs_reference
    assert LearnerSettings(kl=KL(0.1)).needs_reference


def test_nothing_to_learn_is_normal():
    model = tiny()
    turns, batch = lot(model)
    settings = LearnerSettings(loss=TrajectoryBalance(0.05), aggregation=SUMS)
    credit = Credit(np.zeros(len(turns)), np.zeros(len(turns)))
    stats = Learner("main", model, settings).update(turns, batch, credit, np.ones(len(turns)))
    assert stats["steps"] == 0
