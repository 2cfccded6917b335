"""Policy softmax(.3, -.2, .5), reference (.2, .5, .3): KL .177386, all by exact enumeration."""

import numpy as np
import pytest
import torch

from marl_llm.errors import ConfigError
from marl_llm.learn.reference import KL, Reference, k2, k3, ratio_k3

REFERENCE = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
KL_NATS = 0.177386
KL_GRADIENT = [0.138796, -0.219580, 0.080784]
FORWARD_GRADIENT = [0.153615, -0.285522, 0.131906]  # of KL(reference ‖ policy): softmax - reference


@pytest.fixture
def logits():
    return torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)


def on_average(logits, term):
    """Gradient of a loss term, averaged over actions that the policy (held) samples."""
    logprobs = torch.log_softmax(logits, 0)
    (found,) = torch.autograd.grad((logprobs.detach().exp() * term(logprobs)).sum(), logits)
    return found.numpy()


def test_k2_as_a_loss_has_the_gradient_of_the_kl(logits):
    np.testing.assert_allclose(
        on_average(logits, lambda lp: k2(lp, REFERENCE)), KL_GRADIENT, atol=1e-6
    )


def test_ratio_k3_as_a_loss_has_the_gradient_of_the_kl(logits):
    np.testing.assert_allclose(
        on_average(logits, lambda lp: ratio_k3(lp, lp.detach(), REFERENCE)), KL_GRADIENT, atol=1e-6
    )


def test_ratio_k3_is_right_off_policy_too(logits):
    # Sampled by another policy: weigh by its probabilities instead.
    old = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    term = ratio_k3(torch.log_softmax(logits, 0), old, REFERENCE)
    (found,) = torch.autograd.grad((old.exp() * term).sum(), logits)
    np.testing.assert_allclose(found, KL_GRADIENT, atol=1e-6)


def test_k1_in_the_reward_has_the_gradient_of_the_kl(logits):
    # REINFORCE with reward -k1: loss -(-k1) lp
    np.testing.assert_allclose(
        on_average(logits, lambda lp: (lp - REFERENCE).detach() * lp), KL_GRADIENT, atol=1e-6
    )


def test_why_k1_and_k3_are_refused(logits):
    np.testing.assert_allclose(on_average(logits, lambda lp: lp - REFERENCE), 0, atol=1e-12)
    np.testing.assert_allclose(
        on_average(logits, lambda lp: k3(lp, REFERENCE)), FORWARD_GRADIENT, atol=1e-6
    )
    with pytest.raises(ConfigError, match="'k1' is refused: as a loss its gradient is 0"):
        KL(0.1, "k1")
    with pytest.raises(ConfigError, match=r"'k3' is refused: .* forward KL"):
        KL(0.1, "k3")


def test_values_on_average(logits):
    logprobs = torch.log_softmax(logits, 0).detach()
    p = logprobs.exp()
    assert (p * k3(logprobs, REFERENCE)).sum().item() == pytest.approx(KL_NATS, abs=1e-6)
    assert (p * k2(logprobs, REFERENCE)).sum().item() == pytest.approx(0.162928, abs=1e-6)


def test_the_coefficient_moves_linearly():
    kl = KL(0.2, final=0.1, over=10)
    # .2 - .01 per update, then .1
    assert [kl.at(u) for u in (0, 5, 10, 99)] == pytest.approx([0.2, 0.15, 0.1, 0.1])
    assert KL(0.2).at(1000) == 0.2
    assert not KL().used
    assert KL(0.0, final=0.1, over=5).used


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"form": "k22"}, "did you mean 'k2'"),
        ({"coefficient": -1.0}, ">= 0"),
        ({"coefficient": 0.1, "final": 0.0}, "go together"),
        ({"coefficient": 0.1, "over": 5}, "go together"),
    ],
)
def test_settings_out_of_range_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        KL(**values)


def counting_scorer(calls):
    """Log-probs that tell pair and temperature apart, and a record of what was asked."""

    def score(pairs, temperatures):
        calls.append(len(pairs))
        values = [
            -(sum(prompt) + token) / t
            for (prompt, reply), t in zip(pairs, temperatures, strict=True)
            for token in reply
        ]
        return np.array(values, np.float32)

    return score


def test_known_turns_are_not_scored_again():
    calls = []
    reference = Reference(counting_scorer(calls))
    pairs = [((1,), (2, 3)), ((4,), (5,)), ((1,), (2, 3))]
    first = reference.logprobs(pairs, np.ones(3))
    assert first.tolist() == [-3, -4, -9, -3, -4]
    assert calls == [2]  # the repeated turn once
    again = reference.logprobs([*pairs, ((1,), (2,))], np.ones(4))
    assert again.tolist() == [-3, -4, -9, -3, -4, -3]
    assert calls == [2, 1]
    reference.logprobs(pairs[:1], np.array([0.5]))  # another temperature is another turn
    reference.logprobs([((1, 2), (3,))], np.ones(1))  # as is another split of the same ids
    assert calls == [2, 1, 1, 1]
    assert reference.logprobs([], np.ones(0)).shape == (0,)


def test_the_longest_unused_goes_first():
    calls = []
    reference = Reference(counting_scorer(calls), room=4)
    a, b, c = ((1,), (1, 1)), ((2,), (2, 2)), ((3,), (3, 3))
    one = np.ones(1)
    for pair in (a, b, a, c):  # c pushes b out, since a was used after b
        reference.logprobs([pair], one)
    assert len(calls) == 3
    reference.logprobs([a], one)
    assert len(calls) == 3
    reference.logprobs([b], one)
    assert len(calls) == 4


def test_memory_survives_its_state():
    calls = []
    reference = Reference(counting_scorer(calls))
    pairs = [((1,), (2, 3)), ((4,), (5,))]
    before = reference.logprobs(pairs, np.ones(2))
    fresh = Reference(counting_scorer(calls))
    fresh.load_state_dict(reference.state_dict())
    assert fresh.logprobs(pairs, np.ones(2)).tolist() == before.tolist()
    assert len(calls) == 1
    empty = Reference(counting_scorer(calls))
    empty.load_state_dict(Reference(counting_scorer(calls)).state_dict())
    assert empty.logprobs(pairs, np.ones(2)).tolist() == before.tolist()
