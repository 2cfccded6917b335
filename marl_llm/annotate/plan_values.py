"""A critic of plans that counts: what others got from the same state with the same sub-goal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.annotate.plans import stated
from marl_llm.annotate.state_values import mean_of_others, states_behind
from marl_llm.credit import checks, returns
from marl_llm.credit.segments import Array, following


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanValues:
    """HiPER's three values as mean returns-to-go over the other episodes of the batch.

        value_switch  V^T(s, o)   over the turns in state s whose prompt showed sub-goal o
        value_high    V^H(s)      over the turns in s that start a sub-goal
        value         V^L(s, o)   over the turns in s that act under o

    So `credit.hae` needs no learned critic where states come back, as they do in groups of episodes
    with the same start. A state and sub-goal that fewer than `least` turns of other episodes met
    has no value: HAE fills it in from behind, so that what came of it counts where others have been
    and nowhere else.

    Where an episode was cut short, "value_next" is V^T of the state in which the game, told again,
    leaves the agent; if nobody else was there, the mean return-to-go of the other turns of the
    role, or 0.
    """

    signals: ClassVar[tuple[str, ...]] = ("value", "value_high", "value_switch", "value_next")

    least: int = 1  # turns of other episodes that a mean needs
    gamma: float = 1.0  # discount of the return, per turn of the agent

    def __post_init__(self) -> None:
        checks.within("plan_values.least", self.least, 1)
        checks.within("plan_values.gamma", self.gamma, 0.0, 1.0)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        batch, turns = material.batch, stated(material)
        agents, size = batch.agents(), len(batch)
        to_go = returns.to_go(np.asarray(batch.reward, dtype=np.float64), agents, self.gamma)
        numbers: dict[str, int] = {}
        before = _numbered((each.before for each in turns), numbers)
        after = _numbered((each.after for each in turns), numbers)
        counts = (batch.lengths > 0).astype(np.float64)
        starts = np.array([each.switches for each in turns], dtype=np.float64)
        state, episode = batch.state_key, batch.episode

        def mean(rows: Array, weight: Array, *keys: Array) -> Array:
            found, met = mean_of_others(to_go[rows], weight, keys, episode[rows])
            return np.where(met >= self.least, found, np.nan)

        every = np.arange(size)
        low = mean(every, counts, state, after)
        high = mean(every, counts * starts, state)
        # What comes after an episode that was cut short is valued like a turn, and counts as none.
        cut = np.flatnonzero(batch.truncated)
        rows = np.concatenate((every, cut))
        weight = np.concatenate((counts, np.zeros(len(cut))))
        reached = np.concatenate((state, states_behind(material, cut)))
        shown = np.concatenate((before, after[cut]))
        switch = mean(rows, weight, reached, shown)
        anywhere = mean(rows, weight, batch.game[rows], batch.role[rows])
        end = np.zeros(size)
        end[cut] = np.nan_to_num(np.where(np.isnan(switch), anywhere, switch))[size:]
        return {
            "value": low,
            "value_high": high,
            "value_switch": switch[:size],
            "value_next": following(switch[:size], agents, end),
        }


def _numbered(texts: Iterable[str], numbers: dict[str, int]) -> Array:
    """A number per text, equal for equal ones, [N] int."""
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
