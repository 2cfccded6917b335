"""What an estimator is given, and what it says when it is not."""

from __future__ import annotations

import numpy as np
import pytest

from marl_llm.credit.given import NOTHING, Given
from marl_llm.errors import ConfigError


def test_what_is_there_is_handed_out(make_batch, make_replays):
    rng, replays = np.random.default_rng(0), make_replays(make_batch([1.0]))
    given = Given(rng, replays)
    assert given.draws("vine") is rng
    assert given.resampler("vine") is replays


def test_what_is_not_there_is_named_with_who_asks():
    with pytest.raises(ConfigError, match="vine draws at random; give it a generator"):
        NOTHING.draws("vine")
    with pytest.raises(ConfigError, match=r"vine plays on .* needs a resampler"):
        NOTHING.resampler("vine")
    assert NOTHING.state is None
