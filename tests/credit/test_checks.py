"""What estimators refuse to be set to."""

from __future__ import annotations

import pytest

from marl_llm.credit import checks
from marl_llm.credit.hgpo import HGPO
from marl_llm.credit.m_grpo import MGRPORandom
from marl_llm.credit.trace_logratio import TraceLogRatio
from marl_llm.errors import ConfigError


@pytest.mark.parametrize("value", [1, 2.0, 2.5, True, "3", None])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(ConfigError, match=r"some.count must be a whole number >= 2, got "):
        checks.whole("some.count", value, 2)
    checks.whole("some.count", 2, 2)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(HGPO, {"history": 1.5}), (TraceLogRatio, {"window": 2.5}), (MGRPORandom, {"size": 8.5})],
)
def test_half_a_turn_is_refused_when_it_is_set_and_not_in_the_run(kind, options):
    with pytest.raises(ConfigError, match="must be a whole number"):
        kind(**options)
