"""Mistakes that others made in their losses and reported, each on a few numbers.

The number in a comment is the public issue that describes it. What needs a model is elsewhere:
scoring at the wrong temperature, in the wrong precision, of the wrong weights or one position off
in `test_learner.py`, `test_logprobs.py` and `test_rows.py`; the KL's forms in `test_reference.py`.
Those of credit are in `tests/credit/test_traps_tokens.py`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marl_llm.errors import ConfigError, EpisodeError
from marl_llm.learn.aggregation import Aggregation, token_weights
from marl_llm.learn.balance import FlowRL
from marl_llm.learn.importance import Correction
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.losses import GMPO, GSPO, Reinforce
from marl_llm.learn.objective import Objective
from marl_llm.learn.reference import KL
from marl_llm.learn.twopass import Seen
from marl_llm.types import Completion, Finish

MODES = [
    Aggregation("turn"),
    Aggregation("token"),
    Aggregation("trajectory"),
    Aggregation("constant", length=4),
]


def weigh(aggregation, lengths, weight=None):
    """Weights of the tokens of turns, each an episode of its own."""
    n = len(lengths)
    zero = np.zeros(n, np.int64)
    counted = np.ones(n) if weight is None else np.array(weight, float)
    return token_weights(aggregation, np.array(lengths), counted, np.arange(n), zero, zero)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.mode)
def test_trap_of_groups_without_signal_in_the_denominator(mode):
    # TRL#7068: they still counted. A credit weight of 0 takes a turn out of every count,
    without = weigh(mode, [3, 2])
    np.testing.assert_allclose(weigh(mode, [3, 2, 5], [1, 1, 0]), [*without, 0, 0, 0, 0, 0])


def test_trap_of_the_kl_of_groups_without_signal():
    # TRL#6365: ... and, with the weight, out of the KL; an advantage of 0 does not.
    logprobs, reference = tensor(-1.0, -2.0).requires_grad_(), tensor(-1.5, -1.5)
    weights = torch.as_tensor(weigh(Aggregation("turn"), [1, 1], [1, 0]))
    objective = Objective(
        loss=Reinforce(),
        advantages=tensor(0.0, 0.0),
        weights=weights,
        sampler=logprobs.detach(),
        fresh=torch.tensor([True, True]),
        reference=reference,
        kl_coefficient=0.1,
        correction=Correction(),
    )
    _, terms = objective.terms(logprobs, logprobs.detach(), torch.tensor([1, 1]))
    (weights * terms).sum().backward()
    # d/dx of .1/2 (reference - x)² is -.1 (reference - x) = .05 for the one that counts.
    np.testing.assert_allclose(logprobs.grad, [0.05, 0.0])


def test_trap_of_the_mean_that_is_not_named():
    # verl#593, TRL#2995: at ratio one the value is 0 under the mean of turns, and not under that of
    # tokens. A = 1 and -1 in turns of 1 and 3 tokens: (-1 + 3)/4.
    loss = np.array([-1.0, 1, 1, 1])
    assert weigh(Aggregation("turn"), [1, 3]) @ loss == pytest.approx(0.0)
    assert weigh(Aggregation("token"), [1, 3]) @ loss == pytest.approx(0.5)


def test_trap_of_the_mean_of_the_means_of_micro_batches():
    # verl#906, TRL#3021: a row of one token with loss 1 and one of nine with 0 made 1/2 if apart.
    weights, loss = weigh(Aggregation("token"), [1, 9]), np.array([1.0] + [0.0] * 9)
    assert weights @ loss == pytest.approx(0.1)
    assert weights[:1] @ loss[:1] + weights[1:] @ loss[1:] == pytest.approx(0.1)


def test_trap_of_a_sum_that_is_not_divided_by_the_rows():
    # verl#3741: the gradient grew with the batch. TRL#3138: C was the longest reply of the batch.
    constant = Aggregation("constant", length=10)
    assert weigh(constant, [3, 3]).sum() == pytest.approx(weigh(constant, [3] * 8).sum())
    np.testing.assert_allclose(weigh(constant, [3, 3])[:3], weigh(constant, [3, 9])[:3])


def test_trap_of_length_that_counts_twice():
    # TRL#3823: one loss per sequence, -1 and 1 with 4 and 1 tokens, was 0 and became -.6.
    loss = np.repeat([-1.0, 1.0], [4, 1])
    assert weigh(Aggregation("turn"), [4, 1]) @ loss == pytest.approx(0.0)
    assert weigh(Aggregation("token"), [4, 1]) @ loss == pytest.approx(-0.6)


@pytest.mark.parametrize("form", ["k1", "k3"])
def test_trap_of_a_kl_whose_gradient_is_another(form):
    # OpenRLHF#1309, TRL#4967: k1 as a loss has none, k3 descends the KL the other way round.
    with pytest.raises(ConfigError, match=f"'{form}' is refused"):
        KL(coefficient=0.1, form=form)


@pytest.mark.parametrize(("length", "gap"), [(100, 0.02), (2000, 0.001)])
def test_trap_of_long_rows_that_are_dropped(length, gap):
    # TRL#4772: a mean log-ratio of ln(3)/L, .0110 of 100 tokens, took a whole row out. A cap keeps
    # it, at the cap. Two rows with equal log-probs: residuals are ∓scale, coefficients -2 w r / L.
    n = 2 * length
    zero = np.zeros(2, np.int64)
    live = LiveTurns(
        pairs=(((1,), (2,) * length),) * 2,
        places=np.arange(2),
        name=str,
        temperatures=np.ones(2),
        lengths=np.array([length, length]),
        episode=np.arange(2),
        group=zero,
        agent=zero,
        version=zero,
        advantages=np.repeat([1.0, -1.0], length),
        weights=np.ones(n),
        sampler=np.zeros(n),
        reference=np.zeros(n),
    )
    seen = Seen(np.full(n, gap), np.zeros(n))
    found = FlowRL(scale=15.0, cap=3.0).coefficients(live, seen)
    np.testing.assert_allclose(found, np.repeat([1, -1], length) * 2 * 3 * 15 / length)


def test_trap_of_a_weight_that_is_called_truncated():
    # OpenRLHF's "seq-mask-tis" does not clamp its tokens. Ratios e^.9, e^-1 and 1 with cap 2.
    new, old = tensor(-1.0, -2.0, -0.5), tensor(-1.9, -1.0, -0.5)
    loss = Reinforce(cap=2.0).terms(new, old, tensor(1.0, 1.0, 1.0), torch.tensor([3])).loss
    np.testing.assert_allclose(loss, [2 * 1, math.exp(-1) * 2, 0.5])


def test_trap_of_a_weight_against_the_current_policy():
    # slime#179: what a stale token is corrected by runs from its sampler to the current policy.
    sampler, before, now = tensor(-2.0, -2.0), tensor(-1.5, -1.5), tensor(-1.0, -1.0)
    for form in ("ratio", "token", "sequence"):
        objective = Objective(
            loss=Reinforce(),
            advantages=tensor(1.0, 1.0),
            weights=tensor(1.0, 1.0),
            sampler=sampler,
            fresh=torch.tensor([True, False]),
            correction=Correction(form=form),
        )
        _, loss = objective.terms(now, before, torch.tensor([1, 1]))
        np.testing.assert_allclose(loss, [math.exp(0.5), math.exp(1.0)])


def test_trap_of_ids_and_log_probs_that_do_not_match():
    # sglang#26555: padding the log-probs of a reply hid that they were those of other ids.
    with pytest.raises(EpisodeError, match="3 ids but 2 log-probs"):
        Completion(
            id=0, ids=(2, 3, 4), logprobs=(-0.5, -0.5), versions=((0, 0, 3),), finish=Finish.STOP
        )


def test_trap_of_the_band_of_another_loss():
    # TRL's and ms-swift's pages on GSPO: a mean log-ratio of .001 is far for a turn of many tokens;
    # PPO's band of .2 never clips it. And verl's GMPO read PPO's .2 as nats.
    new, old = torch.full((50,), -0.999, dtype=torch.float64), torch.full((50,), -1.0).double()
    one, length = torch.ones(50).double(), torch.tensor([50])
    assert GSPO().terms(new, old, one, length).clipped.all()
    assert not GSPO(0.2, 0.2).terms(new, old, one, length).clipped.any()
    assert (GMPO().low, GMPO().high) == (0.4, 0.4)
