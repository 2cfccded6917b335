"""What a card refuses."""

from __future__ import annotations

import pytest

from marl_llm.credit.card import Card
from marl_llm.errors import ConfigError


def test_a_card_of_a_reading_says_so():
    text = {"name": "x", "title": "X", "granularity": "turn", "methodology": "judge"}
    with pytest.raises(ConfigError, match="x: the source of a reading says so"):
        Card(**text, source="arXiv 1", evidence="reading")
    assert Card(**text, source="our reading of arXiv 1", evidence="reading").level == "turn"
