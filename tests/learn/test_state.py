"""Going on: a learner saved and restored, on full weights and on LoRA adapters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from marl_llm.credit.batch import Credit
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.errors import CheckpointError, ConfigError, ModelError
from marl_llm.learn import checkpoints
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.learn.logprobs import score_all
from marl_llm.learn.lora import Lora
from marl_llm.learn.reference import KL
from marl_llm.learn.rows import pack
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn
from marl_llm.weights import assign, checksum, named_weights, read, verified


def tiny(width=32):
    config = Qwen3Config(
        vocab_size=64, hidden_size=width, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).eval()


def episodes(number):
    """Eight one-turn episodes; half of the turns are the same at every update, half are new."""
    rng = np.random.default_rng(number)
    replies = [(1, 2), (3,), (4, 5, 6), (7, 8)]
    replies += [tuple(rng.integers(0, 64, rng.integers(1, 6)).tolist()) for _ in range(4)]
    return [
        Episode(
            id=i, attempt=0, game="toy", group=0, seed=0, terminated=True,
            seats={"player_0": "self"}, returns={"player_0": 0.0},
            outcomes={"player_0": Outcome.DRAW},
            turns=(
                Turn(
                    observation=Observation("player_0", "player", "", "", None, ""),
                    policy="main", player="self", prompt_ids=(9, 10, 11), ids=reply,
                    logprobs=(0.0,) * len(reply), versions=((number, 0, len(reply)),), reply="",
                    action="a", fault=None, finish=Finish.STOP, reward=0.0, shaping=0.0,
                ),
            ),
        )
        for i, reply in enumerate(replies)
    ]  # fmt: skip


def train(learner, model, updates):
    """Updates `updates`, each on turns sampled by the weights before it."""
    for number in updates:
        played = episodes(number)
        turns = turns_of(played, "main")
        rows = pack([(turn.prompt_ids, turn.ids) for turn in turns])
        batch = replace(
            from_episodes(played, "main"), logprobs=score_all(model, rows, 99).astype(np.float64)
        )
        advantage = np.random.default_rng(number).normal(size=len(turns))
        ones = np.ones(len(turns))
        learner.update(turns, batch, Credit(advantage, ones), ones)


SETTINGS = [
    LearnerSettings(lr=1e-2, schedule="cosine", updates=5, warmup=1, weight_decay=0.1),
    LearnerSettings(lr=1e-2, kl=KL(0.2, final=0.1, over=3)),
    LearnerSettings(lr=1e-2, kl=KL(0.2, "ratio_k3"), epochs=2, minibatches=2),
    LearnerSettings(lr=1e-2, kl=KL(0.2), lora=Lora(rank=2, alpha=4), micro_tokens=20),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "kl", "steps", "lora"])
def test_four_updates_are_two_and_two_to_the_last_bit(settings, tmp_path):
    model = tiny()
    whole = Learner("main", model, settings, seed=5)
    train(whole, model, range(4))

    model = tiny()
    first = Learner("main", model, settings, seed=5)
    train(first, model, range(2))
    checkpoints.save(tmp_path, 2, {"main": first.save}, {}, keep=1)
    train(first, model, range(2, 3))  # what happens after a checkpoint is not in it

    model = tiny()
    with torch.no_grad():
        if settings.lora is None:
            for parameter in model.parameters():
                parameter.add_(0.1)  # restoring must not lean on how the learner was made
    second = Learner("main", model, settings, seed=5)
    second.restore(checkpoints.latest(tmp_path).folder("main"))
    assert second.version == 2
    train(second, model, range(2, 4))
    assert second.weights().version == 4
    assert second.weights().checksum == whole.weights().checksum
    ours, theirs = second.state_dict().tensors, whole.state_dict().tensors
    assert checksum(ours) == checksum(theirs)


def test_published_weights_are_a_copy_with_its_checksum():
    model = tiny()
    learner = Learner("main", model, LearnerSettings(lr=1e-2))
    published = learner.weights()
    train(learner, model, range(1))
    verified(published)  # what was published did not move with the learner
    newer = learner.weights()
    assert newer.version == 1
    assert newer.checksum != published.checksum
    other = tiny()
    assign(other, verified(newer))
    assert checksum(named_weights(other)) == newer.checksum


def test_the_saved_weights_are_what_an_engine_takes(tmp_path):
    for lora in (None, Lora(rank=2)):
        model = tiny()
        learner = Learner("main", model, LearnerSettings(lr=1e-2, lora=lora))
        train(learner, model, range(1))
        (tmp_path / str(lora)).mkdir()
        learner.save(tmp_path / str(lora))
        other = tiny()
        assign(other, read(tmp_path / str(lora) / "weights.safetensors"))
        assert checksum(named_weights(other)) == learner.weights().checksum


# ---- LoRA


def test_lora_trains_only_adapters_and_publishes_the_merge():
    start = {name: t.clone() for name, t in named_weights(tiny()).items()}
    model = tiny()
    learner = Learner("main", model, LearnerSettings(lr=1e-2, lora=Lora(rank=2, alpha=4)))
    fresh = learner.weights().tensors
    assert set(fresh) == set(start)
    assert all(torch.equal(fresh[name], start[name]) for name in start)  # B = 0

    train(learner, model, range(2))
    state = learner.state_dict()
    trained = {name.split("/")[-1] for name in state.tensors if name.startswith("optimizer/")}
    assert trained and all(".lora_" in name for name in trained)
    base = {
        name.removeprefix("model/base_model.model.").replace(".base_layer.", "."): tensor
        for name, tensor in state.tensors.items()
        if name.startswith("model/") and ".lora_" not in name
    }
    assert all(torch.equal(base[name], start[name]) for name in start)

    # A plain model with the merged weights says what base and adapters say together.
    merged = learner.weights().tensors
    changed = {name for name in start if not torch.equal(merged[name], start[name])}
    assert len(changed) == 2 * 7  # every linear layer of both blocks, not the embedding
    plain = tiny()
    assign(plain, merged)
    rows = pack([((1, 2, 3), (4, 5, 6)), ((7,), (8, 9))])
    together = score_all(model, rows, 99)
    np.testing.assert_allclose(score_all(plain, rows, 99), together, atol=1e-5)
    assert np.abs(together - score_all(tiny(), rows, 99)).max() > 0.01


def test_loras_reference_is_the_model_without_adapters():
    model = tiny()
    settings = LearnerSettings(lr=1e-2, kl=KL(0.1, "reward"), lora=Lora(rank=2))
    learner = Learner("main", model, settings)
    train(learner, model, range(2))
    played = episodes(2)
    turns, batch = turns_of(played, "main"), from_episodes(played, "main")
    rows = pack([(turn.prompt_ids, turn.ids) for turn in turns])
    # Log-probs of 0 in the batch leave -Σ log π_ref per turn.
    found = learner.divergence(turns, batch, np.ones(len(turns)))
    expected = -np.add.reduceat(score_all(tiny(), rows, 99), batch.offsets[:-1])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    train(learner, model, range(2, 3))  # adapters are back on: the ratio is one


def test_loras_first_values_hang_on_the_seed_alone():
    states = []
    for noise, seed in ((0, 1), (1, 1), (0, 2)):
        torch.manual_seed(noise)
        learner = Learner("main", tiny(), LearnerSettings(lora=Lora(rank=2)), seed=seed)
        states.append(checksum(learner.state_dict().tensors))
    assert states[0] == states[1] != states[2]


def test_lora_trains_on_a_low_precision_base():
    model = tiny().to(torch.bfloat16)
    settings = LearnerSettings(lr=1e-2, lora=Lora(rank=2), ratio_tolerance=0.2)
    learner = Learner("main", model, settings)
    train(learner, model, range(1))
    assert all(t.dtype == torch.bfloat16 for t in learner.weights().tensors.values())


def test_lora_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"lora\.rank"):
        Lora(rank=0)


# ---- refusals


def test_a_state_that_does_not_fit_is_refused(tmp_path):
    plain = Learner("main", tiny(), LearnerSettings())
    with pytest.raises(CheckpointError, match="policy 'main''s, this is 'other'"):
        Learner("other", tiny(), LearnerSettings()).load_state_dict(plain.state_dict())
    with pytest.raises(CheckpointError, match=r"no 'reference' tensors.*other kl or lora settings"):
        Learner("main", tiny(), LearnerSettings(kl=KL(0.1))).load_state_dict(plain.state_dict())
    with pytest.raises(CheckpointError, match="no 'model' tensors"):
        Learner("main", tiny(), LearnerSettings(lora=Lora())).load_state_dict(plain.state_dict())
    with pytest.raises(ModelError, match="shape"):
        Learner("main", tiny(64), LearnerSettings()).load_state_dict(plain.state_dict())
    with pytest.raises(CheckpointError, match=r"learner\.json cannot be read"):
        plain.restore(tmp_path)
