"""RLOO's own values; what it shares with GRPO and Dr. GRPO is in `test_grpo`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from marl_llm.credit.rloo import RLOO


def test_worked_values(f1):
    # 1 - (0 + 0 + 1)/3 = 2/3;  0 - (1 + 0 + 1)/3 = -2/3;  .5 - .5 = 0; alone: 0.
    got = RLOO().estimate(f1).advantage
    np.testing.assert_allclose(got, np.array([2, -2, -2, 2, 0, 0, 0]) / 3)


def test_the_baseline_does_not_move_with_the_own_return(f1):
    reward = f1.reward + np.array([5.0, 0, 0, 0, 0, 0, 0])
    before, after = (RLOO().estimate(b).advantage for b in (f1, replace(f1, reward=reward)))
    np.testing.assert_allclose(after[0] - before[0], 5.0)


def test_alone_can_stay_raw(f1):
    assert RLOO(singleton="raw").estimate(f1).advantage[-1] == 2
