"""One update of a tiny Qwen3: what it computes, what it refuses, and whom it names."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.errors import ConfigError, EpisodeError, TrainingError
from marl_llm.learn.aggregation import Aggregation
from marl_llm.learn.importance import Correction
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.learn.live import by_episode, live_turns
from marl_llm.learn.logprobs import score_all
from marl_llm.learn.losses import CISPO, GMPO, GSPO, SAPO, PPOClip, Reinforce, Terms
from marl_llm.learn.objective import Objective, accumulate
from marl_llm.learn.optimizer import learning_rate
from marl_llm.learn.reference import KL
from marl_llm.learn.rows import pack
from marl_llm.seeds import generator
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn
from marl_llm.weights import checksum, named_weights

VOCABULARY = 64


def tiny():
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    return model


def make_turn(agent, prompt, ids, version=0):
    return Turn(
        observation=Observation(agent, "player", "text", "brief", None, f"{prompt}"),
        policy="main", player="self", prompt_ids=prompt, ids=ids,
        logprobs=(0.0,) * len(ids), versions=((version, 0, len(ids)),),
        reply="", action="a", fault=None, finish=Finish.STOP, reward=0.0, shaping=0.0,
    )  # fmt: skip


def make_episode(number, turns):
    agents = {turn.observation.agent for turn in turns}
    return Episode(
        id=number, attempt=0, game="toy", group=0, seed=0, turns=tuple(turns),
        seats=dict.fromkeys(agents, "self"), returns=dict.fromkeys(agents, 0.0),
        outcomes=dict.fromkeys(agents, Outcome.DRAW), terminated=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Lot:
    """What an update takes."""

    turns: list
    batch: TurnBatch
    credit: Credit
    temperatures: np.ndarray

    def weighed(self, weight):
        return replace(self, credit=replace(self.credit, weight=np.array(weight, float)))


def make_lot(model, episodes, advantage, weight=None, temperature=1.0):
    """Turns as if the model had sampled them."""
    turns = turns_of(episodes, "main")
    temperatures = np.full(len(turns), temperature)
    rows = pack([(turn.prompt_ids, turn.ids) for turn in turns], temperatures)
    logprobs = score_all(model, rows, 10_000).astype(np.float64)
    return Lot(
        turns,
        replace(from_episodes(episodes, "main"), logprobs=logprobs),
        Credit(advantage, np.ones(len(turns)) if weight is None else weight),
        temperatures,
    )


def lot(model, version=0, temperature=1.0, seed=0):
    """Six episodes of two agents with two turns each; one turn is empty.

    player_0's second prompt goes on where its first reply ended; player_1's prompts are fresh.
    """
    rng = np.random.default_rng(seed)

    def ids(count):
        return tuple(int(i) for i in rng.integers(0, VOCABULARY, count))

    played = []
    for number in range(6):
        first = make_turn("player_0", ids(3), ids(rng.integers(1, 5)), version)
        turns = [
            first,
            make_turn("player_1", ids(4), ids(rng.integers(1, 5)), version),
            make_turn("player_0", first.prompt_ids + first.ids + ids(2), ids(2), version),
            make_turn("player_1", ids(2), () if number == 0 else ids(3), version),
        ]
        played.append(make_episode(number, turns))
    return make_lot(model, played, rng.normal(size=24), temperature=temperature)


def update(learner, given):
    return learner.update(given.turns, given.batch, given.credit, given.temperatures)


def gradient(model, given, settings, budget=8192, version=0, reference=None):
    """∇J by the learner's own path, and its per-micro-batch records."""
    live = live_turns(
        given.turns, given.batch, given.credit, given.temperatures, settings.aggregation
    )
    live = replace(live, reference=reference)
    objective = Objective.of(
        live, settings.loss, version, settings.correction, settings.kl.form, settings.kl.at(0),
        None, torch.device("cpu"),
    )  # fmt: skip
    model.zero_grad()
    for micro in pack(live.pairs, live.temperatures).microbatches(budget):
        accumulate(model, micro, objective, live.who)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


LOSSES = [PPOClip(), GSPO(), CISPO(), Reinforce()]
MEANS = [
    Aggregation("turn"),
    Aggregation("token"),
    Aggregation("trajectory", per_role=True),
    Aggregation("constant", length=8),
]


@pytest.mark.parametrize(
    ("loss", "mean"),
    [
        *zip(LOSSES, MEANS, strict=True),
        (PPOClip(), MEANS[1]),
        (GSPO(), MEANS[0]),
        (GMPO(), MEANS[0]),
        (SAPO(), MEANS[0]),
    ],
)
def test_the_split_into_micro_batches_does_not_matter(loss, mean):
    model = tiny()
    given = lot(model)
    # Sampled by an older version that disagrees a little, so that ratios differ from 1.
    noise = np.random.default_rng(1).normal(scale=0.2, size=len(given.batch.logprobs))
    given = replace(given, batch=replace(given.batch, logprobs=given.batch.logprobs + noise))
    settings = LearnerSettings(loss=loss, aggregation=mean, kl=KL(0.3))
    reference = given.batch.logprobs - 0.1
    whole = gradient(model, given, settings, 10_000, version=1, reference=reference)
    for budget in (1, 40):
        part = gradient(model, given, settings, budget, version=1, reference=reference)
        torch.testing.assert_close(part, whole, atol=1e-6, rtol=1e-5)
    assert whole.norm() > 1e-3


@pytest.mark.parametrize("loss", LOSSES)
def test_the_policy_gradient_of_a_model_by_exact_enumeration(loss):
    # Every one-token reply to two prompts, by its probability: -∇ mean over prompts of E[A].
    model = tiny()
    prompts = [(1, 2, 3), (4, 5)]
    advantage = np.random.default_rng(0).normal(size=(2, VOCABULARY))
    turns = [make_turn("player_0", p, (v,)) for p in prompts for v in range(VOCABULARY)]
    given = make_lot(model, [make_episode(0, turns)], advantage.flatten())
    # N = 2 × 64 turns: the mean over turns of 64 p A is the mean over prompts of Σ p A.
    given = given.weighed(VOCABULARY * np.exp(given.batch.logprobs))
    found = gradient(model, given, LearnerSettings(loss=loss))

    model.zero_grad()
    value = sum(
        (torch.softmax(model(input_ids=torch.tensor([p])).logits[0, -1], 0)
         * torch.from_numpy(a).float()).sum()
        for p, a in zip(prompts, advantage, strict=True)
    )  # fmt: skip
    (-value / 2).backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, truth, atol=1e-6, rtol=1e-4)


def test_the_gradient_at_a_temperature_is_that_of_the_softened_policy():
    model = tiny()
    given = lot(model, temperature=0.5)
    found = gradient(model, given, LearnerSettings())

    model.zero_grad()
    lengths = given.batch.lengths
    total = 0.0
    for turn, a, n in zip(given.turns, given.credit.advantage, lengths, strict=True):
        if n:
            logits = model(input_ids=torch.tensor([turn.prompt_ids + turn.ids])).logits[0] / 0.5
            at = torch.log_softmax(logits, -1)[len(turn.prompt_ids) - 1 : -1]
            lp = at.gather(1, torch.tensor(turn.ids)[:, None]).sum()
            total = total - a * lp / (n * np.sum(lengths > 0))
    total.backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, truth, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_dead_turns_are_as_if_they_were_not_there(loss):
    model = tiny()
    given = lot(model)
    keep = np.arange(len(given.turns)) % 3 != 0
    first = LearnerSettings(loss=loss)
    with_dead = gradient(model, given.weighed(keep), first)
    alone = [
        make_episode(number, [given.turns[i] for i in part if keep[i]])
        for number, part in enumerate(np.split(np.arange(24), 6))
    ]
    left = make_lot(model, alone, given.credit.advantage[keep])
    torch.testing.assert_close(gradient(model, left, first), with_dead, atol=1e-6, rtol=1e-5)


def test_nothing_to_learn_leaves_the_weights_and_counts_as_an_update():
    learner = Learner("main", tiny(), LearnerSettings(lr=1e-2))
    before = learner.weights()
    stats = update(learner, lot(tiny()).weighed(np.zeros(24)))
    after = learner.weights()
    assert (before.version, after.version) == (0, 1)
    assert before.checksum == after.checksum
    assert (stats["tokens"], stats["turns"], stats["steps"]) == (0, 0, 0)


def test_an_update_makes_good_turns_likelier():
    model = tiny()
    given = lot(model)
    learner = Learner("main", model, LearnerSettings(lr=1e-3))
    stats = update(learner, given)
    gain = lot(model).batch.logprobs - given.batch.logprobs
    assert np.dot(np.repeat(given.credit.advantage, given.batch.lengths), gain) > 0.1
    assert learner.version == 1
    assert stats["ratio_max"] == 1.0
    assert stats["clip_fraction"] == 0.0
    assert stats["sampler_gap"] < 1e-5
    assert stats["tokens"] == given.batch.lengths.sum()
    assert stats["turns"] == len(given.turns) - 1  # one is empty
    # 6 dialogues merge into 6 rows; player_1 has 12 turns, one of them empty
    assert stats["rows"] == 6 + 11
    assert 0 < stats["entropy"] < np.log(VOCABULARY)


def test_several_steps_per_batch_clip_and_keep_the_old_policy_fixed():
    model = tiny()
    given = lot(model)
    settings = LearnerSettings(lr=1e-2, epochs=3, minibatches=2)
    learner = Learner("main", model, settings)
    stats = update(learner, given)
    assert stats["steps"] == 6
    assert stats["ratio_max"] > 1.2
    assert 0 < stats["clip_fraction"] < 1
    assert learner.version == 1


def test_minibatches_hold_whole_episodes_and_share_the_weight():
    episode = np.array([3, 3, 5, 7, 5, 9, 9, 9])
    parts = by_episode(episode, 2, generator(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(8))
    for part in parts:
        assert sorted(part) == part.tolist()
        assert len(set(episode[part])) == 2
    assert len(by_episode(episode, 99, generator(0))) == 4
    # Their gradients average to the batch's.
    model = tiny()
    given = lot(model)
    settings = LearnerSettings()
    live = live_turns(
        given.turns, given.batch, given.credit, given.temperatures, settings.aggregation
    )
    parts = by_episode(live.episode, 3, generator(0))
    model.zero_grad()
    for part in parts:
        chosen = live.take(part, len(parts))
        objective = Objective.of(
            chosen, settings.loss, 0, settings.correction, "k2", 0.0, None, torch.device("cpu")
        )
        for micro in pack(chosen.pairs, chosen.temperatures).microbatches(100):
            accumulate(model, micro, objective, chosen.who)
    summed = torch.cat([p.grad.flatten() for p in model.parameters()])
    whole = gradient(model, given, settings)
    torch.testing.assert_close(summed / len(parts), whole, atol=1e-6, rtol=1e-5)


def test_the_same_inputs_give_the_same_bits():
    sums = []
    for _ in range(2):
        model = tiny()
        learner = Learner("main", model, LearnerSettings(lr=1e-2, epochs=2, kl=KL(0.1)), seed=3)
        for number in range(2):
            update(learner, lot(model, version=number, seed=number))
        sums.append(learner.weights().checksum)
    assert sums[0] == sums[1]
    assert sums[0] == checksum(named_weights(model))


@pytest.mark.parametrize("form", ["k2", "ratio_k3", "reward"])
def test_kl_pulls_back_to_the_start(form):
    # A drifts away for 5 updates; then credit is 0 everywhere and only the KL term is left.
    model = tiny()
    learner = Learner("main", model, LearnerSettings(lr=3e-3, kl=KL(0.5, form)))
    given = lot(model)
    update(learner, given)
    drifts = []
    for version in range(1, 5):
        given = lot(model, version=version)
        batch = learner.penalised(given.turns, given.batch, given.temperatures)
        charge = batch.reward - given.batch.reward
        np.testing.assert_allclose(charge, batch.shaping - given.batch.shaping)
        assert np.any(charge != 0) == (form == "reward")
        quiet = replace(given, credit=replace(given.credit, advantage=charge))
        drifts.append(update(learner, quiet)["kl_nats"])
    assert drifts[-1] < 0.9 * drifts[0]


def test_divergence_is_the_sum_of_k1_over_the_turn():
    model = tiny()
    learner = Learner("main", model, LearnerSettings(lr=1e-2, kl=KL(0.25, "reward")))
    given = lot(model)
    update(learner, given)
    moved = lot(model, version=1)  # the same ids, log-probs of the moved model
    k1 = moved.batch.logprobs - given.batch.logprobs
    ends = moved.batch.offsets
    expected = [k1[start:end].sum() for start, end in pairwise(ends)]
    found = learner.divergence(moved.turns, moved.batch, moved.temperatures)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    batch = learner.penalised(moved.turns, moved.batch, moved.temperatures)
    np.testing.assert_allclose(batch.reward, -0.25 * found)


# ---- refusals


def tampered(given, turn, value):
    """The sampler's first log-prob of a turn replaced."""
    logprobs = given.batch.logprobs.copy()
    logprobs[given.batch.offsets[turn]] = value(logprobs[given.batch.offsets[turn]])
    return replace(given, batch=replace(given.batch, logprobs=logprobs))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_tampered_log_prob_is_noticed_and_its_turn_named(steps):
    model = tiny()
    learner = Learner("main", model, LearnerSettings(epochs=steps, micro_tokens=16))
    before = learner.weights().checksum
    # Row 13 is turn 1 of episode 3, player_1's.
    with pytest.raises(
        TrainingError,
        match=r"turn 1 of episode 3 \(player_1\): before the first step .* differ by 0.05, more",
    ):
        update(learner, tampered(lot(model), 13, lambda lp: lp + 0.05))
    assert learner.weights().checksum == before
    assert learner.version == 0
    update(learner, lot(model))  # it can go on


def test_wrong_temperature_is_noticed():
    model = tiny()
    given = lot(model, temperature=0.5)
    with pytest.raises(TrainingError, match="temperature"):
        update(Learner("main", model, LearnerSettings()), replace(given, temperatures=np.ones(24)))


def test_the_ratio_check_can_be_wider_or_off_and_does_not_judge_older_versions():
    given = tampered(lot(tiny()), 13, lambda lp: lp + 0.05)
    update(Learner("main", tiny(), LearnerSettings(ratio_tolerance=0.1)), given)
    update(Learner("main", tiny(), LearnerSettings(ratio_tolerance=None)), given)
    ratio = Correction(form="ratio")
    learner = Learner("main", tiny(), LearnerSettings(lr=0.0, correction=ratio))
    update(learner, lot(tiny()))
    stats = update(learner, given)  # sampled by version 0, and now it is 1
    assert stats["stale_turns"] == stats["turns"]
    # With "ratio" that is current over sampled: e^-.05 at the token, 1 elsewhere.
    tokens = stats["tokens"]
    assert stats["ratio_mean"] == pytest.approx((tokens - 1 + np.exp(-0.05)) / tokens, abs=1e-5)
    assert stats["sampler_gap"] == 0


@pytest.mark.parametrize("what", ["advantage", "weight", "logprob"])
def test_a_number_that_is_not_finite_names_its_turn(what):
    model = tiny()
    learner = Learner("main", model, LearnerSettings())
    before = learner.weights().checksum
    given = lot(model)
    if what == "logprob":
        given = tampered(given, 13, lambda _: np.nan)
    elif what == "weight":
        given = given.weighed([np.nan if i == 13 else 1 for i in range(24)])
    else:
        given.credit.advantage[13] = np.nan  # Credit itself would refuse it
    with pytest.raises(TrainingError, match=r"turn 1 of episode 3 \(player_1\): .* is nan"):
        update(learner, given)
    assert learner.weights().checksum == before


def test_a_model_that_breaks_names_a_turn_that_broke_it():
    model = tiny()
    learner = Learner("main", model, LearnerSettings())
    given = lot(model)
    with torch.no_grad():
        model.model.embed_tokens.weight[given.turns[13].prompt_ids[0]] = float("inf")
    with pytest.raises(
        TrainingError, match=r"turn \d of episode \d .*log-prob nan and loss term nan"
    ):
        update(learner, given)
    assert learner.version == 0


@dataclass(frozen=True)
class Cusp:
    """A loss with finite terms and no gradient where A = 7: sqrt at 0."""

    def terms(self, logprobs, old, advantages, lengths):
        edge = torch.where(advantages == 7, logprobs - logprobs.detach(), logprobs.square() + 1)
        return Terms(edge.sqrt(), torch.ones_like(old), torch.zeros_like(old, dtype=torch.bool))


def test_a_gradient_that_is_not_finite_names_its_turn():
    model = tiny()
    learner = Learner("main", model, LearnerSettings(loss=Cusp()))
    before = learner.weights().checksum
    given = lot(model)
    given.credit.advantage[13] = 7
    with pytest.raises(
        TrainingError, match=r"turn 1 of episode 3 \(player_1\): its gradient is not finite"
    ):
        update(learner, given)
    assert learner.weights().checksum == before
    assert all(p.grad is None for p in model.parameters())


def test_turns_and_columns_of_different_batches_are_refused():
    model = tiny()
    learner = Learner("main", model, LearnerSettings())
    given = lot(model)
    with pytest.raises(EpisodeError, match="23 turns"):
        update(learner, replace(given, turns=given.turns[1:]))
    with pytest.raises(EpisodeError, match=r"has \d sampled ids, its columns have \d"):
        update(learner, replace(given, turns=[*given.turns[1:], given.turns[0]]))


def test_low_precision_weights_are_refused():
    with pytest.raises(ConfigError, match=r"is torch.bfloat16, .* load the model in float32"):
        Learner("main", tiny().to(torch.bfloat16), LearnerSettings())


# ---- schedules


def test_learning_rates_worked_by_hand():
    def rates(schedule, floor=0.0):
        return [learning_rate(8.0, schedule, 2, 6, floor, done) for done in range(8)]

    # warm-up 8 × 1/2, 8 × 2/2; then x = 0, 1/4, 1/2, 3/4, 1, 1
    assert rates("constant") == [4, 8, 8, 8, 8, 8, 8, 8]
    assert rates("linear") == pytest.approx([4, 8, 8, 6, 4, 2, 0, 0])
    assert rates("linear", 0.5) == pytest.approx([4, 8, 8, 7, 6, 5, 4, 4])
    # (1 + cos π/4) / 2 = .853553
    assert rates("cosine") == pytest.approx([4, 8, 8, 6.828427, 4, 1.171573, 0, 0])


def test_the_learner_follows_its_schedule():
    model = tiny()
    learner = Learner("main", model, LearnerSettings(lr=1e-3, schedule="linear", updates=2))
    found = [update(learner, lot(model, version=v))["lr"] for v in range(3)]
    assert found == pytest.approx([1e-3, 5e-4, 0])


def test_the_gradient_is_clipped_before_the_step():
    # Plain AdamW divides scale away on its first step, so look at its first moment: .1 × clipped g.
    model = tiny()
    learner = Learner("main", model, LearnerSettings(max_grad_norm=0.01))
    stats = update(learner, lot(model))
    assert stats["grad_norm"] > 0.1
    moments = [v for k, v in learner.state_dict().tensors.items() if "/exp_avg/" in k]
    norm = torch.cat([m.flatten() for m in moments]).norm().item()
    assert norm == pytest.approx(0.1 * 0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schedule": "step"}, "schedule 'step' is unknown"),
        ({"schedule": "cosine"}, "needs the total number"),
        ({"lr": -1.0}, "lr must be in"),
        ({"epochs": 0}, "at least 1"),
        ({"ratio_tolerance": 0.0}, "ratio_tolerance"),
    ],
)
def test_settings_out_of_range_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        LearnerSettings(**values)
