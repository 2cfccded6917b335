"""Dr. GRPO's own values; what it shares with GRPO and RLOO is in `test_grpo`."""

from __future__ import annotations

import numpy as np

from marl_llm.credit.dr_grpo import DrGRPO


def test_worked_values(f1):
    # Means .5, .5 and, for the one alone, its own 2.
    assert DrGRPO().estimate(f1).advantage.tolist() == [0.5, -0.5, -0.5, 0.5, 0, 0, 0]


def test_counting_tokens_is_a_length_weighted_mean(f1):
    # Group a: (1*1 + 3*1)/(1+3+2+3) = 4/9.
    got = DrGRPO(unit="token").estimate(f1).advantage
    np.testing.assert_allclose(got[:4], [5 / 9, -4 / 9, -4 / 9, 5 / 9])
    assert abs(np.sum(got * f1.lengths)) < 1e-12
