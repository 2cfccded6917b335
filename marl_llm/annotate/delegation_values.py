"""A critic of delegations that counts, from the bare statistics of the turns that others took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from marl_llm.annotate.material import Material, OfStatistics
from marl_llm.annotate.state_values import mean_of_others
from marl_llm.credit import checks
from marl_llm.credit.segments import Array
from marl_llm.types import Episode, Turn

Rewards = Literal["own", "team"]


class Course(NamedTuple):
    """What came of the T turns of an episode, all agents. Made by `course`."""

    ahead: Array  # [T] int: the turn with which the agent, or its caller, goes on; T = none
    others: Array  # [T]: what others earned until then, discounted
    to_go: Array  # [T]: the return from the turn on


def goes_on(turns: Sequence[Turn]) -> list[int]:
    """The turn with which each turn's agent goes on, and behind a call's last turn its caller.

    Returns:
        [T], each larger than its own number; T where nobody goes on.
    """
    ahead, latest = [len(turns)] * len(turns), dict[tuple[str, int | None], int]()
    for number, turn in enumerate(turns):
        call = turn.observation.agent, turn.parent
        if call in latest:
            ahead[latest[call]] = number
        latest[call] = number
    for number, turn in enumerate(turns):  # callers stand before their calls
        if ahead[number] == len(turns) and turn.parent is not None:
            place = ahead[turn.parent]
            while place < number:  # a caller that did not wait
                place = ahead[place]
            ahead[number] = place
    return ahead


def course(turns: Sequence[Turn], rewards: Rewards, gamma: float) -> Course:
    """The returns of an episode's turns.

        G_k = R_k + γ^d · G_next,   d turns from k to next, R_k = r_k, with "team" and all of theirs

    Args:
        turns: of all agents, in playing order.
        rewards: whether what others earn meanwhile belongs to R_k.
        gamma: γ per turn of the episode.
    """
    ahead = goes_on(turns)
    others, to_go = np.zeros(len(turns)), np.zeros(len(turns) + 1)
    everybody = np.zeros(len(turns) + 1)  # what all earn from a turn on
    for number in reversed(range(len(turns))):
        turn, then = turns[number], ahead[number]
        reward, decay = turn.reward + turn.shaping, gamma ** (then - number)
        everybody[number] = reward + gamma * everybody[number + 1]
        if rewards == "team":
            others[number] = everybody[number] - reward - decay * everybody[then]
        to_go[number] = reward + others[number] + decay * to_go[then]
    return Course(np.array(ahead, dtype=np.int64), others, to_go[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationValues(OfStatistics):
    """The signals of `credit.hae_split`, with values as mean returns over the other episodes.

        value          V before the turn: mean G of the turns of the policy in that state that
                       were called from that state; where fewer than `least` turns of other
                       episodes met both, of all in that state; else missing
        value_behind   V of the turn with which the agent goes on, or behind its call the caller
        span           d, turns of anybody until then
        reward_others  what others earned until then; 0 with rewards: own

    G is the return from the turn on: in its call what the agent earns ("own"), or what everybody
    earns ("team"), and behind the call the G with which its caller goes on. With "own" an executor
    works for what it earns in its call and for its planner, and the planner for itself. A game that
    pays the common result to both (`Pay.sub_main`) counts it twice in the executor's G. With "team"
    a planner gains by each call whose agent is paid.

    A missing value behind is filled in from what came then. Where an episode was cut short the mean
    G of the game's uncalled turns in other episodes follows, or 0.

    It reads of the other policies nothing but whose turn it was, a digest of the state, the caller
    and the reward, so a learner that has it gets thin records (`store.episodes.thin`).
    """

    signals: ClassVar[tuple[str, ...]] = ("value", "value_behind", "span", "reward_others")

    rewards: Rewards = "own"  # or "team": what G counts within a call
    least: int = 1  # turns of other episodes that a mean needs
    gamma: float = 1.0  # discount per turn of the episode, whoever takes it

    def __post_init__(self) -> None:
        checks.one_of("delegation_values.rewards", self.rewards, ("own", "team"))
        checks.within("delegation_values.least", self.least, 1)
        checks.within("delegation_values.gamma", self.gamma, 0.0, 1.0)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        courses = [course(e.turns, self.rewards, self.gamma) for e in material.episodes]
        value, end = self._values(material.episodes, courses)
        columns: dict[str, list[float]] = {name: [] for name in self.signals}
        start = 0
        for number, (episode, told) in enumerate(zip(material.episodes, courses, strict=True)):
            counted = value[start : start + len(episode.turns)]
            start += len(episode.turns)
            whole = self._filled(episode, told, counted, end[number])
            for place, turn in enumerate(episode.turns):
                if turn.policy == material.policy:
                    columns["value"].append(counted[place])
                    columns["value_behind"].append(whole[told.ahead[place]])
                    columns["span"].append(told.ahead[place] - place)
                    columns["reward_others"].append(told.others[place])
        return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}

    def _values(
        self, episodes: Sequence[Episode], courses: Sequence[Course]
    ) -> tuple[Array, Array]:
        """V of all turns of all episodes, NaN if missing, [U]; what follows each episode, [E]."""
        numbers: dict[Any, int] = {}

        def number(*key: Any) -> int:
            return numbers.setdefault(key, len(numbers))

        state: list[int] = []
        caller, game, where, uncalled = [], [], [], []
        for place, episode in enumerate(episodes):
            start = len(state)
            for turn in episode.turns:
                seen = turn.observation
                state.append(number(episode.game, turn.policy, seen.role, seen.key))
                caller.append(-1 if turn.parent is None else state[start + turn.parent])
                game.append(number(episode.game))
                where.append(place)
                uncalled.append(float(turn.parent is None))
        keys = [np.array(column, dtype=np.int64) for column in (state, caller, game, where)]
        to_go = np.concatenate([np.zeros(0), *(told.to_go for told in courses)])
        weight = np.ones(len(to_go))
        pair, met = mean_of_others(to_go, weight, keys[:2], keys[3])
        alone, seen_by = mean_of_others(to_go, weight, keys[:1], keys[3])
        value = np.where(met >= self.least, pair, np.where(seen_by >= self.least, alone, np.nan))
        anywhere, _ = mean_of_others(to_go, np.array(uncalled), keys[2:3], keys[3])
        end = np.zeros(len(episodes))
        end[keys[3]] = np.nan_to_num(anywhere)
        cut = np.array([not episode.terminated for episode in episodes], dtype=bool)
        return value, np.where(cut, end, 0.0)

    def _filled(self, episode: Episode, told: Course, counted: Array, end: float) -> list[float]:
        """V of an episode's turns with the missing ones filled in from behind, and its end's."""
        whole = [*counted.tolist(), end]
        for place in reversed(range(len(counted))):
            if np.isnan(whole[place]):
                turn, then = episode.turns[place], int(told.ahead[place])
                gained = turn.reward + turn.shaping + told.others[place]
                whole[place] = float(gained + self.gamma ** (then - place) * whole[then])
        return whole
