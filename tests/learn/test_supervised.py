from itertools import islice

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from marl_llm.errors import ConfigError, TrainingError
from marl_llm.learn.rows import pack
from marl_llm.learn.supervised import FitSettings, batches, fit, likelihood
from marl_llm.weights import checksum, named_weights


def tiny():
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).eval()


# Twice the same prompt with 3 of 4 replies (10, 2) and one (11, 2); another with always (12, 2).
PAIRS = [((5, 6), (10, 2))] * 3 + [((5, 6), (11, 2))] + [((7,), (12, 2))] * 4


def test_fits_the_conditional_distribution_and_only_the_replies():
    model = tiny()
    losses = fit(model, PAIRS, FitSettings(steps=120, batch=8, lr=1e-2), seed=0)
    assert len(losses) == 120
    # Entropy of (3/4, 1/4) is .562335 nats; only one token in four is uncertain so.
    assert losses[0] > 3
    assert losses[-1] == pytest.approx(0.562335 / 4, abs=0.02)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6]])).logits[0]
    assert torch.softmax(logits[1], 0)[10].item() == pytest.approx(0.75, abs=0.03)
    # Prompts were not learnt: 6 does not follow 5.
    assert torch.softmax(logits[0], 0)[6].item() < 0.1


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    sums = []
    for seed in (0, 0, 1):
        model = tiny()
        fit(model, PAIRS, FitSettings(steps=5, batch=3), seed=seed)
        sums.append(checksum(named_weights(model)))
    assert sums[0] == sums[1] != sums[2]


def test_no_global_randomness_is_used():
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    fit(tiny(), PAIRS, FitSettings(steps=2, batch=3), seed=0)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("budget", [1, 1000])
def test_repeats_weigh_as_often_as_they_occur(budget):
    # Mean over all reply tokens, repeats and all, one at a time.
    model = tiny()
    with torch.no_grad():
        each = [
            -torch.log_softmax(model(input_ids=torch.tensor([p + r])).logits[0], -1)[
                len(p) - 1 + j, token
            ].item()
            for p, r in PAIRS
            for j, token in enumerate(r)
        ]
    assert likelihood(model, pack(PAIRS), budget) == pytest.approx(np.mean(each), abs=1e-5)


def test_gradient_does_not_depend_on_the_split():
    gradients = []
    for budget in (1, 3, 1000):
        model = tiny()
        likelihood(model, pack(PAIRS), budget)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=1e-5)


def test_batches_go_through_all_before_any_comes_again():
    drawn = list(islice(batches(5, 3, seed=0), 5))
    flat = np.concatenate(drawn)
    assert [len(batch) for batch in drawn] == [3] * 5
    for start in (0, 5, 10):
        assert sorted(flat[start : start + 5].tolist()) == [0, 1, 2, 3, 4]
    assert flat[:5].tolist() != flat[5:10].tolist()
    assert len(next(batches(2, 7, seed=0))) == 7  # larger than the set


def test_bad_input():
    with pytest.raises(ConfigError, match="no demonstration has a reply"):
        fit(tiny(), [((1,), ())], FitSettings(steps=1, warmup=0), seed=0)
    with pytest.raises(ConfigError, match="at least 1"):
        FitSettings(batch=0)
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        FitSettings(schedule="cosin")
    model = tiny()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(TrainingError, match="step 0 of supervised training has loss nan"):
        fit(model, PAIRS, FitSettings(steps=1, warmup=0), seed=0)
