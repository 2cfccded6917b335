"""What is measured between updates: exact NashConv where there is a solver, matches against a panel.

Every measurement draws its own seeds and uses the engines as they are, so that training goes on as if
nobody had looked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_llm.agents import Player
from marl_llm.evaluate.matches import Match, panel_matches
from marl_llm.evaluate.nash_conv import Measured as Exploited
from marl_llm.evaluate.nash_conv import measure as measure_nash_conv
from marl_llm.rollout.play import ModelSeat
from marl_llm.seeds import derive
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one look at the policies."""

    metrics: Mapping[str, float]  # `evaluate/<seat>/<quantity>`
    tables: Mapping[str, Exploited] = field(default_factory=dict)  # by game
    matches: tuple[Match, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {
            "metrics": dict(self.metrics),
            "matches": [match.as_json() for match in self.matches],
            "nash_conv": {game: table.as_json() for game, table in self.tables.items()},
        }
