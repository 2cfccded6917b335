"""Architectures from transformers, tiny and random: served exactly, or refused with a reason."""

import copy

import pytest
import torch
import transformers as hf

from marl_llm.errors import ModelError
from marl_llm.serve import generate
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.types import Request, Sampling

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip

SERVED = {
    "llama": hf.LlamaConfig(**SIZES),
    "gpt2": hf.GPT2Config(**GPT2),  # learned positions
    "gemma": hf.GemmaConfig(**SIZES, head_dim=8),
    "gemma3": hf.Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=64),  # wide enough windows
    "mixtral": hf.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None),
    "granite": hf.GraniteConfig(**SIZES, logits_scaling=2.0),  # logits are scaled after the head
    "deepseek": hf.DeepseekV3Config(  # keys and values of different sizes
        **{**SIZES, "num_key_value_heads": 4}, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, moe_intermediate_size=16,
        kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=4,
    ),
}  # fmt: skip

REFUSED = {
    "window": (hf.MistralConfig(**SIZES, sliding_window=16), "last 16 tokens"),
    "state": (hf.MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1), "of its own"),
    "alibi": (hf.BloomConfig(vocab_size=100, hidden_size=32, n_layer=1, n_head=4), "attention"),
    "softcap": (hf.Gemma2Config(**SIZES, head_dim=8), "softcap"),
}


@torch.no_grad()
def model_of(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(4)
    return model


@pytest.mark.parametrize("name", SERVED)
def test_served_exactly(name):
    model = model_of(SERVED[name])
    reference = copy.deepcopy(model)
    greedy = Sampling(temperature=0, max_tokens=6)
    requests = [Request(i, tuple(range(3, 5 + 9 * i)), greedy, seed=i) for i in range(6)]
    replies = generate(TransformersEngine(model, end_ids=(), max_batch=3), requests)
    for request, reply in zip(requests, replies, strict=True):
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([request.prompt_ids + reply.ids])).logits[0]
        table = logits[len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        assert tuple(table.argmax(-1).tolist()) == reply.ids
        assert reply.logprobs == pytest.approx(table.max(-1).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name):
    config, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason):
        TransformersEngine(model_of(config), end_ids=(), context=64)


def test_a_window_as_wide_as_the_context_is_no_window():
    TransformersEngine(model_of(REFUSED["window"][0]), end_ids=(), context=16)


def test_frequencies_that_depend_on_the_longest_row():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    config = hf.Phi3Config(**SIZES, original_max_position_embeddings=32, rope_parameters=rope)
    model = model_of(config)
    with pytest.raises(ModelError, match="at most 32"):
        TransformersEngine(model, end_ids=())
    TransformersEngine(model, end_ids=(), context=32)


def test_an_encoder_decoder():
    config = hf.T5Config(vocab_size=100, d_model=32, d_ff=32, num_layers=1, num_heads=4, d_kv=8)
    with pytest.raises(ModelError, match="decoder-only"):
        TransformersEngine(hf.T5ForConditionalGeneration(config), end_ids=(), context=64)


def test_the_context_is_within_the_model():
    model = model_of(SERVED["llama"])
    with pytest.raises(ModelError, match="more than the 64"):
        TransformersEngine(model, end_ids=(), context=65)
    with pytest.raises(ModelError, match="at least 2"):
        TransformersEngine(model, end_ids=(), context=1)
    assert TransformersEngine(model, end_ids=()).context == 64
    assert TransformersEngine(model, end_ids=(), context=20).context == 20


def test_broken_weights():
    model = model_of(SERVED["llama"])
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        TransformersEngine(model, end_ids=())
