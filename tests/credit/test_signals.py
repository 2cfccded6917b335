"""What the names of signals say."""

from __future__ import annotations

from marl_llm.credit.signals import KNOWN, SIGNAL_KEYS, described, lacking


def test_parts_of_the_reward_are_known_by_how_their_names_begin():
    part = described("reward/format")
    assert part is not None
    assert part.over == "turn"
    assert lacking("reward/format") == "it is a part of the turn's reward, and comes from the game"
    assert described("reward") is None


def test_what_nobody_declared_offers_the_nearest():
    assert described("valeu") is None
    assert "did you mean 'value'" in lacking("valeu")
    assert described("value") is KNOWN["value"]


def test_keys_are_the_signals_to_pool_by():
    assert "node" in SIGNAL_KEYS
    assert "value" not in SIGNAL_KEYS
