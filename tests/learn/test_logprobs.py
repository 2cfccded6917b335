import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from marl_llm.learn.logprobs import score, score_all
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
