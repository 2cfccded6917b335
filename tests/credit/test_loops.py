"""The plain loops of all estimators agree with them under the settings of their YAML."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marl_llm import config
from marl_llm.bench.episodes import drawn, made_up
from marl_llm.bench.loops import find
from marl_llm.credit import assign
from marl_llm.credit.drawn import LEFT_OUT, replays
from marl_llm.credit.given import Given
from marl_llm.credit.signals import KNOWN

LOOPS = find(Path(__file__).parent)


@pytest.fixture(scope="module")
def batch():
    whole = made_up(32, tokens=6)
    return whole.with_signals(drawn(whole, [name for name in KNOWN if name != LEFT_OUT]))


def test_every_estimator_has_a_loop():
    assert sorted(LOOPS) == config.choices("credit")


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_the_loop_says_the_same(name, batch):
    estimator = config.build(config.node("credit", name))
    credit = assign(estimator, batch, Given(np.random.default_rng(0), replays(batch)))
    expected = LOOPS[name](estimator, batch)
    np.testing.assert_allclose(credit.advantage, expected, atol=1e-5, rtol=1e-5)
    assert credit.advantage.any()
