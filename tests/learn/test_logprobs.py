import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from marl_llm.learn.logprobs import STATISTICS, score, score_all, statistics_all
from marl_llm.learn.rows import pack

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def qwen():
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True))


def gemma():
    # caps its logits after the output layer, at a height that these logits feel
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=0.5))


@pytest.fixture(params=[qwen, gemma], ids=["qwen3", "gemma2"])
def model(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = request.param().eval()
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.3)  # far from uniform
    return made


def turns(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (
            tuple(rng.integers(0, 64, rng.integers(1, 9)).tolist()),
            tuple(rng.integers(0, 64, rng.integers(0, 6)).tolist()),
        )
        for _ in range(count)
    ]


@torch.no_grad()
def plainly(model, pairs, temperatures):
    """One turn at a time, no padding, all logits."""
    out = []
    for (prompt, reply), t in zip(pairs, temperatures, strict=True):
        if reply:
            logits = model(input_ids=torch.tensor([prompt + reply])).logits[0]
            logprobs = torch.log_softmax(logits.double() / t, -1)
            out += [logprobs[len(prompt) - 1 + j, token].item() for j, token in enumerate(reply)]
    return out


@pytest.mark.parametrize("budget", [1, 16, 10_000])
def test_equal_to_one_turn_at_a_time(model, budget):
    pairs = turns(12)
    pairs += [pairs[0], (pairs[1][0] + pairs[1][1], (5, 6))]  # a repeat, and a dialogue's next turn
    temperatures = np.linspace(0.5, 2.0, len(pairs))
    found = score_all(model, pack(pairs, temperatures), budget)
    np.testing.assert_allclose(found, plainly(model, pairs, temperatures), atol=2e-5)


def test_temperature_zero_is_scored_at_one(model):
    pairs = turns(4)
    np.testing.assert_allclose(
        score_all(model, pack(pairs, np.zeros(4)), 100),
        plainly(model, pairs, np.ones(4)),
        atol=2e-5,
    )


def test_entropy(model):
    pair = ((1, 2, 3), (4,))
    (batch,) = pack([pair], np.array([0.7])).microbatches(10)
    with torch.no_grad():
        p = torch.softmax(model(input_ids=torch.tensor([pair[0]])).logits[0, -1] / 0.7, -1)
    # H = -Σ p log p
    assert score(model, batch).entropy.item() == pytest.approx(
        -(p * p.log()).sum().item(), abs=1e-5
    )


def test_the_output_layer_is_as_before_afterwards(model):
    (batch,) = pack([((1, 2), (3,))]).microbatches(10)
    score(model, batch)
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 64)


def test_a_barred_id_has_no_entropy(model):
    # A hook after the model bars all ids but two, as some models do with unused ones.
    def bar(_module, _inputs, output):
        output.logits[..., 2:] = float("-inf")
        output.logits[..., :2] = 0
        return output

    hook = model.register_forward_hook(bar)
    (batch,) = pack([((5, 6), (1,))]).microbatches(10)
    with torch.no_grad():
        scored = score(model, batch)
    hook.remove()
    assert scored.logprobs.item() == pytest.approx(-np.log(2))
    assert scored.entropy.item() == pytest.approx(np.log(2))


def test_statistics_of_tokens_by_plain_sums(model):
    pairs, temperatures = turns(12), np.linspace(0.5, 2.0, 12)
    found = statistics_all(model, pack(pairs, temperatures), 16)
    expected = {name: [] for name in STATISTICS}
    for (prompt, reply), t in zip(pairs, temperatures, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + reply])).logits[0].double()
        for j, token in enumerate(reply):
            raw = logits[len(prompt) - 1 + j]
            p = torch.softmax(raw / t, -1)
            expected["old_logprob"].append(p[token].log().item())
            expected["entropy"].append(-(p * p.log()).sum().item())
            # Σ u log(u / p) over the 64 ids, u = 1/64
            expected["certainty"].append(((1 / 64) * torch.log((1 / 64) / p)).sum().item())
            expected["logit"].append(raw[token].item())
            expected["collision"].append((p * p).sum().item())
    for name in STATISTICS:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5, err_msg=name)
    np.testing.assert_allclose(
        found["old_logprob"], score_all(model, pack(pairs, temperatures), 16), atol=1e-6
    )


def test_a_uniform_policy_is_certain_of_nothing(model):
    def flatten(_module, _inputs, output):
        output.logits[:] = 1.5
        return output

    hook = model.register_forward_hook(flatten)
    found = statistics_all(model, pack([((5, 6), (1, 2))]), 100)
    hook.remove()
    values = {name: column.tolist() for name, column in found.items()}
    assert values["certainty"] == pytest.approx([0, 0], abs=1e-6)
    assert values["entropy"] == pytest.approx([np.log(64)] * 2)
    assert values["collision"] == pytest.approx([1 / 64] * 2)
    assert values["logit"] == [1.5, 1.5]


def test_barred_ids_leave_statistics_finite(model):
    def bar(_module, _inputs, output):
        output.logits[..., 2:] = float("-inf")
        output.logits[..., :2] = 0
        return output

    hook = model.register_forward_hook(bar)
    found = statistics_all(model, pack([((5, 6), (1,))]), 100)
    hook.remove()
    # 2 ids at log(1/2), 62 at -100: mean -(2 · 0.6931 + 62 · 100) / 64 = -96.897
    assert found["certainty"][0] == pytest.approx(96.89666 - np.log(64), abs=1e-3)
    assert found["entropy"][0] == pytest.approx(np.log(2))


def test_no_tokens_no_statistics(model):
    found = statistics_all(model, pack([((5, 6), ())]), 100)
    assert {name: column.shape for name, column in found.items()} == dict.fromkeys(STATISTICS, (0,))
