"""Two turns of three and two tokens, with A = +1 and -1: ratios 1.35, .74, 1 and .55, 1.65."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.learn.aggregation import Aggregation, token_weights
from marl_llm.learn.losses import CISPO, GMPO, GSPO, SAPO, PPOClip, Reinforce

OLD = torch.tensor([-1.0, -2.0, -0.5, -0.3, -1.2], dtype=torch.float64)
NEW = torch.tensor([-0.7, -2.3, -0.5, -0.9, -0.7], dtype=torch.float64)
A = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
LENGTHS = torch.tensor([3, 2])
ALL = [
    PPOClip(), PPOClip(0.2, 0.28), GSPO(), CISPO(), GMPO(), SAPO(), Reinforce(),
    Reinforce(importance=False),
]  # fmt: skip


def terms(loss, new=NEW, old=OLD, a=A, lengths=LENGTHS):
    return loss.terms(new, old, a, lengths)


def gradient(loss, new=NEW, old=OLD, a=A, lengths=LENGTHS):
    leaf = new.clone().requires_grad_()
    terms(loss, leaf, old, a, lengths).loss.sum().backward()
    return leaf.grad


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # ρ = e^.3, e^-.3, 1 / e^-.6, e^.5; clip to .8 .. 1.2 where that is the larger loss
        (PPOClip(), [-1.2, -0.740818, -1.0, 0.8, 1.648721]),
        (PPOClip(0.2, 0.28), [-1.28, -0.740818, -1.0, 0.8, 1.648721]),
        # s = exp(mean log ρ) = e^0 = 1 and e^(-.05) = .951229, below 1 - 3e-4 with A < 0: clipped
        (GSPO(), [-1.0, -1.0, -1.0, 0.9997, 0.9997]),
        # -clip(ρ, .8, 1.28) A lp: 1.28 × .7, .8 × 2.3, 1 × .5 / -.8 × .9, -1.28 × .7
        (CISPO(), [0.896, 1.84, 0.5, -0.72, -0.896]),
        # absolute cap 5 and no floor: the ratio itself
        (CISPO(0.0, 5.0), [0.944901, 1.703882, 0.5, -0.493930, -1.154105]),
        # log ρ .3, -.3, 0 stay within .4: exp(0) = 1. -.6 is cut to -.4 where A < 0, and .5, which
        # costs, is not: exp(.1/2) = 1.051271
        (GMPO(), [-1.0, -1.0, -1.0, 1.051271, 1.051271]),
        # 4/τ σ(τ (ρ - 1)): τ = 1: σ(.349859) = .586583, σ(-.259182) = .435565, σ(0) = .5;
        # τ = 1.05: σ(-.473747) = .383729, σ(.681157) = .663997
        (SAPO(), [-2.346333, -1.742259, -2.0, 1.461827, 2.529512]),
        (Reinforce(), [0.944901, 1.703882, 0.5, -0.493930, -1.154105]),
        (Reinforce(importance=False), [0.7, 2.3, 0.5, -0.9, -0.7]),
        (Reinforce(cap=1.0), [0.7, 1.703882, 0.5, -0.493930, -0.7]),
    ],
)
def test_terms_worked_by_hand(loss, expected):
    np.testing.assert_allclose(terms(loss).loss, expected, atol=1e-6)


def test_clipped_tokens_are_the_ones_without_gradient():
    # PPO holds the first (gain above 1.2) and the fourth (A < 0, ratio below .8).
    assert terms(PPOClip()).clipped.tolist() == [True, False, False, True, False]
    assert gradient(PPOClip())[[0, 3]].tolist() == [0.0, 0.0]
    assert torch.all(gradient(PPOClip())[[1, 2, 4]] != 0)
    assert terms(GSPO()).clipped.tolist() == [False, False, False, True, True]
    assert terms(CISPO()).clipped.tolist() == [True, True, False, True, True]
    assert terms(GMPO()).clipped.tolist() == [False, False, False, True, False]
    assert gradient(GMPO())[3].item() == 0.0
    assert torch.all(gradient(GMPO())[[0, 1, 2, 4]] != 0)
    assert not terms(SAPO()).clipped.any()
    # Without an advantage there is no gain to be taken away.
    assert not terms(GMPO(), a=0 * A).clipped.any()


def test_dual_clip():
    # A = -1, ρ = 5: max(5, 1.2) = 5, and no more than 3. With A = +1 it changes nothing.
    new, old = torch.tensor([math.log(5.0)]), torch.tensor([0.0])
    one = torch.tensor([1])
    assert terms(PPOClip(dual=3.0), new, old, -torch.ones(1), one).loss.item() == 3.0
    assert terms(PPOClip(dual=None), new, old, -torch.ones(1), one).loss.item() == pytest.approx(5)
    assert terms(PPOClip(dual=3.0), new, old, torch.ones(1), one).loss.item() == pytest.approx(-1.2)
    assert terms(PPOClip(dual=3.0), new, old, -torch.ones(1), one).clipped.item()
    assert gradient(PPOClip(dual=3.0), new, old, -torch.ones(1), one).item() == 0.0


@pytest.mark.parametrize("loss", ALL)
def test_at_ratio_one_the_gradient_is_reinforces(loss):
    # d/d lp = -A for every token, in every member of the family
    np.testing.assert_allclose(gradient(loss, new=OLD), -A, atol=1e-12)


@pytest.mark.parametrize(
    "loss", [PPOClip(), PPOClip(0.1, 0.3, None), PPOClip(dual=1.5), GMPO(), GMPO(0.1, 0.2), SAPO()]
)
def test_gradients_by_finite_differences(loss):
    h = 1e-6
    for i in range(len(NEW)):
        step = torch.zeros_like(NEW)
        step[i] = h
        up, down = (terms(loss, NEW + sign * step).loss.sum() for sign in (1, -1))
        assert gradient(loss)[i].item() == pytest.approx((up - down).item() / (2 * h), abs=1e-6)


def test_reinforce_gradient_by_finite_differences_with_its_weight_held():
    h = 1e-6
    weight = (NEW - OLD).exp()
    for i in range(len(NEW)):
        step = torch.zeros_like(NEW)
        step[i] = h
        up, down = ((-weight * A * (NEW + sign * step)).sum() for sign in (1, -1))
        assert gradient(Reinforce())[i].item() == pytest.approx((up - down).item() / (2 * h))


def test_stop_gradient_losses_have_their_written_gradient():
    # Differences of the value cannot see a stop-gradient. CISPO: -clip(ρ) A, never 0.
    ratio = (NEW - OLD).exp()
    np.testing.assert_allclose(gradient(CISPO()), -ratio.clamp(0.8, 1.28) * A, atol=1e-12)
    assert torch.all(gradient(CISPO()) != 0)
    # GSPO's token form: -s_i A through each token's own log-prob; a wide band leaves it unclipped.
    s = torch.tensor([1.0, math.exp(-0.05)], dtype=torch.float64).repeat_interleave(LENGTHS)
    np.testing.assert_allclose(gradient(GSPO(0.9, 0.9)), -s * A, atol=1e-12)


def test_gspo_token_form_is_sequence_gspo_when_the_turn_has_one_advantage():
    # Sequence form: -A exp(mean_t log ρ), whose gradient is 1/L of the sum over tokens.
    leaf = NEW.clone().requires_grad_()
    means = torch.stack([(leaf - OLD)[:3].mean(), (leaf - OLD)[3:].mean()])
    (-torch.tensor([1.0, -1.0], dtype=torch.float64) * means.exp()).sum().backward()
    np.testing.assert_allclose(
        gradient(GSPO(0.9, 0.9)) / LENGTHS.repeat_interleave(LENGTHS), leaf.grad, atol=1e-12
    )


@pytest.mark.parametrize("loss", ALL)
def test_the_policy_gradient_by_exact_enumeration(loss):
    # Three actions, each once, weighed by its probability: the gradient of -E[A] by the logits.
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    logprobs = torch.log_softmax(logits, 0)
    old = logprobs.detach()
    found = loss.terms(logprobs, old, advantages, torch.ones(3, dtype=torch.int64))
    (estimate,) = torch.autograd.grad((old.exp() * found.loss).sum(), logits, retain_graph=True)
    (truth,) = torch.autograd.grad(-(logprobs.exp() * advantages).sum(), logits)
    np.testing.assert_allclose(estimate, truth, atol=1e-12)


@pytest.mark.parametrize("loss", ALL)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-90, 0), st.floats(-90, 0), st.floats(-3, 3)), min_size=1))
def test_any_finite_input_gives_finite_terms_and_gradients(loss, rows):
    new, old, a = (torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True))
    lengths = torch.ones(len(rows), dtype=torch.int64)
    assert torch.all(torch.isfinite(terms(loss, new, old, a, lengths).loss))
    assert torch.all(torch.isfinite(gradient(loss, new, old, a, lengths)))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # the PPO-clip terms above: sums -2.940818 and 2.448721
        (Aggregation("token"), -0.098419),  # (-2.940818 + 2.448721) / 5
        (Aggregation("turn"), 0.122044),  # (-2.940818 / 3 + 2.448721 / 2) / 2
        (Aggregation("constant", length=3), -0.082016),  # (-2.940818 + 2.448721) / (2 × 3)
        (Aggregation("constant", length=1), -0.246048),
        # one trajectory holds both turns: the same mean; see the aggregation tests for more
        (Aggregation("trajectory"), 0.122044),
    ],
)
def test_the_same_terms_under_each_mean(aggregation, expected):
    zero = np.zeros(2, np.int64)
    weights = token_weights(aggregation, LENGTHS.numpy(), np.ones(2), zero, zero, zero)
    assert np.dot(weights, terms(PPOClip()).loss.numpy()) == pytest.approx(expected, abs=1e-6)


def test_gmpo_under_the_turn_mean_is_one_term_per_turn():
    # (-1 + 1.051271) / 2
    zero = np.zeros(2, np.int64)
    weights = token_weights(Aggregation("turn"), LENGTHS.numpy(), np.ones(2), zero, zero, zero)
    assert np.dot(weights, terms(GMPO()).loss.numpy()) == pytest.approx(0.025636, abs=1e-6)


def test_gmpo_without_bounds_is_gspo_whose_gradient_is_shared_by_the_turn():
    np.testing.assert_allclose(terms(GMPO(9, 9)).loss, terms(GSPO(0.9, 0.9)).loss)
    np.testing.assert_allclose(gradient(GMPO(9, 9)), gradient(GSPO(0.9, 0.9)), atol=1e-12)


def test_sapo_fades_where_the_ratio_is_far_from_one():
    # The gradient in log π is -A ρ 4 σ (1 - σ) at τ (ρ - 1): less than REINFORCE's on both sides.
    new, old = torch.log(torch.tensor([0.1, 1.0, 10.0])), torch.zeros(3)
    size = gradient(SAPO(), new, old, torch.ones(3), torch.tensor([3])).abs()
    assert size[1] == 1.0
    assert torch.all(size[[0, 2]] < 0.1)


def test_gspo_under_the_turn_mean():
    # (-1 + .9997) / 2
    zero = np.zeros(2, np.int64)
    weights = token_weights(Aggregation("turn"), LENGTHS.numpy(), np.ones(2), zero, zero, zero)
    assert np.dot(weights, terms(GSPO()).loss.numpy()) == pytest.approx(-0.00015)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PPOClip(low=1.5), "PPOClip.low"),
        (lambda: PPOClip(high=-0.1), "high at least 0"),
        (lambda: PPOClip(high=0.5, dual=1.4), "above 1 \\+ high = 1.5"),
        (lambda: GSPO(low=-1), "GSPO.low"),
        (lambda: CISPO(floor=1.1), "absolute ratios"),
        (lambda: GMPO(low=-0.1), "GMPO.low"),
        (lambda: SAPO(harm=0.0), "SAPO.gain and harm"),
        (lambda: Reinforce(cap=0.5), "Reinforce.cap"),
        (lambda: Reinforce(importance=False, cap=2.0), "importance on"),
        # NaN is below nothing and above nothing.
        (lambda: PPOClip(low=math.nan), "PPOClip.low"),
        (lambda: PPOClip(dual=math.nan), "PPOClip.dual"),
        (lambda: GSPO(high=math.nan), "GSPO.low"),
        (lambda: CISPO(cap=math.nan), "absolute ratios"),
        (lambda: GMPO(high=math.nan), "GMPO.low"),
        (lambda: SAPO(harm=math.nan), "SAPO.gain and harm"),
        (lambda: Reinforce(cap=math.nan), "Reinforce.cap"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
