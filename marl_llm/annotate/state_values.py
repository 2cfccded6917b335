"""A critic that counts: what others got from the same information state on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.annotate.material import Material
from marl_llm.credit import checks, returns
from marl_llm.credit.gae import filled
from marl_llm.credit.segments import Array, cells, extremes, following, sums
from marl_llm.credit.tokens import spread
from marl_llm.rollout.retelling import Retelling


def mean_of_others(
    x: Array, weight: Array, keys: Sequence[Array], episode: Array
) -> tuple[Array, Array]:
    """The mean over the rows with equal keys, the own episode left out.

        m_i = Σ_j w_j x_j / Σ_j w_j   over j with the keys of i in other episodes

    What an agent does moves the returns of its whole episode, so none of that may enter.

    Args:
        x: [N].
        weight: w, whole numbers, [N]; 0 = has a mean and counts in none.
        keys: integer columns, each [N].
        episode: [N] int.

    Returns:
        m, [N], NaN where nobody else counts; and Σ w_j, [N].
    """
    cell, count = cells(keys, len(x))
    own, owns = cells((cell, episode), len(x))

    def others(values: Array) -> Array:
        return sums(values, cell, count)[cell] - sums(values, own, owns)[own]

    counted = np.rint(others(weight))
    mean = np.divide(others(weight * x), counted, out=np.full(len(x), np.nan), where=counted > 0)
    low, high = extremes(x[weight > 0], cell[weight > 0], count)
    return np.clip(mean, low[cell], high[cell]), counted  # equal floats have exactly their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class StateValues:
    """V(s) = mean return-to-go from the same information state in the other episodes of the batch.

    States that fewer than `least` turns of other episodes met take the mean over equal `parent`
    columns. So it is a critic without parameters, for games whose states come back; where nobody
    else is in the parent's cell either, the value is missing.

    After the last turn of an agent whose episode was cut short, V is that of the state in which the
    game, told again, leaves the agent. All tokens of a turn have the V before the turn: whoever
    speaks finds nothing out. A missing V is filled in from behind there, so that the turn changes
    nothing.

    Where returns are bootstrapped (λ below 1) the parent's mean is a bias for the rare states.
    """

    signals: ClassVar[tuple[str, ...]] = ("value", "value_next", "token_value")

    least: int = 2  # turns of other episodes that a state's own mean needs
    parent: tuple[str, ...] = ("game", "role", "agent")  # equal values make a cell for the rare
    gamma: float = 1.0  # discount of the return, per turn of the agent

    def __post_init__(self) -> None:
        checks.within("state_values.least", self.least, 1)
        object.__setattr__(self, "parent", checks.key_names("state_values.parent", self.parent))
        checks.within("state_values.gamma", self.gamma, 0.0, 1.0)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        batch, agents = material.batch, material.batch.agents()
        reward = np.asarray(batch.reward, dtype=np.float64)
        cut = np.flatnonzero(batch.truncated)
        # What comes after an episode that was cut short is valued like a turn, and counts as none.
        rows = np.concatenate((np.arange(len(batch)), cut))
        counts = np.concatenate((batch.lengths > 0, np.zeros(len(cut)))).astype(np.float64)
        state = np.concatenate((batch.state_key, states_behind(material, cut)))
        to_go = returns.to_go(reward, agents, self.gamma)[rows]
        episode = batch.episode[rows]
        own, met = mean_of_others(to_go, counts, (state,), episode)
        parent = [batch.column(name)[rows] for name in self.parent]
        rare, _ = mean_of_others(to_go, counts, parent, episode)
        mean = np.where(met >= self.least, own, rare)
        value, end = mean[: len(batch)], np.zeros(len(batch))
        end[cut] = mean[len(batch) :]
        known = ~np.isnan(value)
        whole = filled(reward, value, known, np.nan_to_num(end), agents, self.gamma)
        return {
            "value": value,
            "value_next": following(value, agents, end),
            "token_value": spread(whole, batch.offsets),
        }


def states_behind(material: Material, rows: Array) -> Array:
    """The state that each of these turns, the last of its agent, leaves the agent in, [R] int.

    A state that no turn of the batch met has a number of its own.
    """
    batch = material.batch
    known: dict[tuple[str, str, str], int] = {}
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    for row, turn in enumerate(material.turns):
        seen = turn.observation
        game = batch.name("game", int(batch.game[row]))
        known[game, seen.role, seen.key] = int(batch.state_key[row])
    states = []
    for row in rows.tolist():
        episode = material.replays.episodes[int(batch.episode[row])]
        telling = Retelling(episode, material.reach.games[episode.game](), material.reach.seats)
        telling.go(len(episode.turns))
        seen = telling.game.observation(material.turns[row].observation.agent)
        key = episode.game, seen.role, seen.key
        states.append(known.setdefault(key, len(known) + len(batch)))
    return np.array(states, dtype=np.int64)
