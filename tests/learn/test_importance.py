"""The importance correction: unbiased up to its cap; fresh tokens stay untouched."""

import math

import numpy as np
import pytest
import torch

from marl_llm.errors import ConfigError
from marl_llm.learn.importance import Correction

LENGTHS = torch.tensor([2, 1])
BEFORE = torch.tensor([-1.0, -1.0, -1.0])
SAMPLER = torch.tensor([-1.5, -0.8, -3.0])  # ratios e^.5, e^-.2 and e^2
STALE = torch.zeros(3, dtype=torch.bool)


def of(form, cap=2.0, fresh=STALE):
    old, weight = Correction(form=form, cap=cap).of(SAMPLER, BEFORE, fresh, LENGTHS)
    return old.tolist(), weight.tolist()


def test_each_form_by_hand():
    assert of("ratio") == (SAMPLER.tolist(), [1, 1, 1])
    assert of("none") == (BEFORE.tolist(), [1, 1, 1])
    old, weight = of("token")
    assert old == BEFORE.tolist()
    np.testing.assert_allclose(weight, [math.exp(0.5), math.exp(-0.2), 2.0], rtol=1e-6)
    _, weight = of("sequence")
    np.testing.assert_allclose(weight, [math.exp(0.3), math.exp(0.3), 2.0], rtol=1e-6)


@pytest.mark.parametrize("form", ["ratio", "token", "sequence", "none"])
def test_fresh_tokens_count_one_and_start_from_the_trainer(form):
    assert of(form, fresh=~STALE) == (BEFORE.tolist(), [1, 1, 1])


def test_uncapped_weights_make_an_expectation_right():
    # Two actions; sampled from μ, weighted, the mean of f is that under π_old.
    mu, old, f = np.array([0.7, 0.3]), np.array([0.4, 0.6]), np.array([1.0, 5.0])
    _, weight = Correction(form="token", cap=1e9).of(
        torch.log(torch.tensor(mu)), torch.log(torch.tensor(old)),
        torch.zeros(2, dtype=torch.bool), torch.tensor([1, 1]),
    )  # fmt: skip
    assert (mu * weight.numpy() * f).sum() == pytest.approx((old * f).sum())


def test_an_exploded_ratio_is_finite():
    _, weight = Correction(form="sequence", cap=1e30).of(
        torch.full((3,), -500.0), torch.zeros(3), STALE, LENGTHS
    )
    assert torch.isfinite(weight).all()


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="cap"):
        Correction(cap=0.5)
    with pytest.raises(ConfigError, match="form"):
        Correction(form="tis")
