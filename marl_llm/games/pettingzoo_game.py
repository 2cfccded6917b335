"""`PettingZooGame`: any PettingZoo environment as a text game, given a codec that speaks for it.

The environment keeps its rules, rewards and endings; AEC and Parallel environments both work, and
the agents of a Parallel one move at once. The codec says three things: the rules, what an
observation means in words, and which environment action a text names. `DiscreteCodec` serves any
environment with discrete actions: names per action, arrays as rows of numbers.

    _target_: marl_llm.games.pettingzoo_game.PettingZooGame
    name: rock_paper_scissors
    env: {_target_: pettingzoo.classic.rps_v2.parallel_env, max_cycles: 1}
    codec:
      _target_: marl_llm.games.pettingzoo_game.DiscreteCodec
      rules: "Rock beats scissors, scissors beat paper, paper beats rock."
      actions: [rock, paper, scissors]
    interest: opposed
    max_turns: 2

Its agents are called player_0, player_1, ... here, in the order of its `possible_agents`. One that
ends early (terminated or truncated) is no longer asked, and its outcome is told at the end. A
snapshot or a copy (pickling) replays the episode, since PettingZoo's own environments start anew
when they are pickled; so an environment must repeat itself under the same seed, as PettingZoo's
`seed_test` asks of every one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marl_llm.errors import GameError
from marl_llm.games.outcomes import Interest, OutcomeTable, Scoring
from marl_llm.games.text_game import Legal, TextGame, View
from marl_llm.types import Outcome


class TextCodec(Protocol):
    """What a PettingZoo environment needs to be played in words."""

    @property
    def rules(self) -> str:
        """The rules in words, with the form of the actions where they are free text."""

    @property
    def actions(self) -> Sequence[str]:
        """Action names, index = the environment's action; empty = free text."""

    def words(self, player: int, observation: Any) -> tuple[str, str]:
        """The text and the brief of what this player sees."""

    def decode(self, player: int, action: str) -> Any:
        """The environment's action that a text names; None = it names none."""


@dataclass(frozen=True, slots=True)
class DiscreteCodec:
    """A codec for discrete actions: their names in order, and observations as rows of numbers."""

    rules: str
    actions: Sequence[str]

    def words(self, player: int, observation: Any) -> tuple[str, str]:
        """The numbers of the observation, one row of the array per line, the mask left out."""
        if isinstance(observation, Mapping):
            parts = {key: part for key, part in observation.items() if key != "action_mask"}
            rows = [f"{key}:\n{_rows(part)}" for key, part in parts.items()]
            text = "\n".join(rows) if len(parts) != 1 else _rows(*parts.values())
        else:
            text = _rows(observation)
        return f"You are player_{player}. You see:\n{text}", " ".join(text.split())

    def decode(self, player: int, action: str) -> int | None:
        """The index of the name."""
        return list(self.actions).index(action) if action in self.actions else None


class PettingZooGame(TextGame):
    """A PettingZoo environment and its codec."""

    def __init__(
        self,
        *,
        env: AECEnv | ParallelEnv,
        codec: TextCodec,
        max_turns: int,
        name: str = "pettingzoo",
        interest: Interest = "mixed",
        returns: Sequence[float] = (-1.0, 0.0, 1.0),
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
    ):
        """Wrap an environment.

        Args:
            env: AEC or Parallel, with `possible_agents`.
            codec: its voice.
            max_turns: cut an episode short after this many decisions of all agents together.
            name: of the game.
            interest: whether the agents' returns are opposed (sum to zero), shared or mixed.
            returns: what an agent's return can be, the lowest and the highest included; a forfeit
                costs the lowest unless the table says otherwise.
            table: what each ending pays, or the name of a preset.
            list_legal: say in each observation which actions are legal.
        """
        if not isinstance(env, AECEnv | ParallelEnv):
            raise GameError(
                f"{name} needs a PettingZoo AECEnv or ParallelEnv, got {type(env).__name__}; call "
                "the environment's env() or parallel_env() first"
            )
        try:
            agents = list(env.possible_agents)
        except AttributeError as error:
            raise GameError(
                f"{name} does not say which agents it can have; an environment needs "
                "possible_agents"
            ) from error
        _check_actions(name, env, agents, codec)
        super().__init__(
            name=name,
            actions=tuple(codec.actions),
            natural_turns=max_turns,
            scoring=_scoring(len(agents), interest, returns),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )
        self._codec = codec
        self._rules: _AEC | _Parallel = (
            _AEC(env, agents) if isinstance(env, AECEnv) else _Parallel(env, agents)
        )

    def rules(self) -> str:
        """The codec's, and the names of the actions."""
        if not self.actions:
            return self._codec.rules
        return f"{self._codec.rules}\nActions: {', '.join(self.actions)}."

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Reset the environment under a seed from the episode's generator."""
        self._rules.reset(int(rng.integers(2**31)), dict(options))

    def movers(self) -> tuple[str, ...]:
        """The selected agent, or all living ones of a Parallel environment."""
        return tuple(self.possible_agents[player] for player in self._rules.movers())

    def legal(self, agent: str) -> Legal:
        """All actions, or those of the environment's `action_mask`."""
        mask = self._rules.mask(self._index[agent])
        if mask is None:
            return self.actions
        return tuple(action for action, allowed in zip(self.actions, mask, strict=True) if allowed)

    def accepts(self, agent: str, action: str) -> bool:
        """A legal name, or a free text that the codec understands."""
        if self.actions:
            return action in self.legal(agent)
        return self._codec.decode(self._index[agent], action) is not None

    def play(self, moves: Mapping[str, str]) -> None:
        """Step the environment."""
        players = {self._index[agent]: action for agent, action in moves.items()}
        self._rules.play({i: self._codec.decode(i, action) for i, action in players.items()})

    def earnings(self) -> Sequence[float]:
        """The sum of the environment's rewards."""
        return list(self._rules.totals)

    def result(self, agent: str) -> Outcome:
        """By the returns, unless the environment itself cut the episode short."""
        return Outcome.TRUNCATED if self._rules.cut else super().result(agent)

    def view(self, agent: str) -> View:
        """What the environment shows this agent, in the codec's words."""
        player = self._index[agent]
        text, brief = self._codec.words(player, self._rules.observe(player))
        return View(text, brief, key=f"{agent}: {text}")

    def close(self) -> None:
        """Close the environment."""
        self._rules.env.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_episode": None if self._seed is None else self.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        episode = state.pop("_episode")
        self.__dict__.update(state)
        if episode is not None:
            self.restore(episode)


class _AEC:
    """An AEC environment: one agent moves at a time, and the dead are stepped over."""

    def __init__(self, env: AECEnv, agents: list[Any]):
        self.env, self.agents = env, agents
        self.totals = [0.0] * len(agents)
        self.cut = False
        self._last_seen: dict[Any, Any] = {}

    def reset(self, seed: int, options: dict[str, Any]) -> None:
        self.totals = [0.0] * len(self.agents)
        self.cut = False
        self._last_seen = {}
        self.env.reset(seed=seed, options=options)
        self._collect()
        self._bury()

    def movers(self) -> list[int]:
        return [self.agents.index(self.env.agent_selection)] if self.env.agents else []

    def play(self, moves: Mapping[int, Any]) -> None:
        (action,) = moves.values()
        self.env.step(action)
        self._collect()
        self._bury()

    def observe(self, player: int) -> Any:
        agent = self.agents[player]
        return self._last_seen[agent] if agent in self._last_seen else self.env.observe(agent)

    def mask(self, player: int) -> Any:
        return _mask(self.observe(player), self.env.infos.get(self.agents[player], {}))

    def _collect(self) -> None:
        for player, agent in enumerate(self.agents):
            self.totals[player] += float(self.env.rewards.get(agent, 0.0))

    def _bury(self) -> None:
        env = self.env
        while env.agents and self._dead(env.agent_selection):
            agent = env.agent_selection
            self.cut = env.truncations[agent]
            self._last_seen[agent] = env.observe(agent)  # a removed agent may not be asked for it
            env.step(None)

    def _dead(self, agent: Any) -> bool:
        return self.env.terminations[agent] or self.env.truncations[agent]


class _Parallel:
    """A Parallel environment: all living agents move at once."""

    def __init__(self, env: ParallelEnv, agents: list[Any]):
        self.env, self.agents = env, agents
        self.totals = [0.0] * len(agents)
        self.cut = False
        self._seen: dict[Any, Any] = {}
        self._infos: dict[Any, Any] = {}

    def reset(self, seed: int, options: dict[str, Any]) -> None:
        self.totals = [0.0] * len(self.agents)
        self.cut = False
        self._seen, self._infos = self.env.reset(seed=seed, options=options)

    def movers(self) -> list[int]:
        return [self.agents.index(agent) for agent in self.env.agents]

    def play(self, moves: Mapping[int, Any]) -> None:
        actions = {self.agents[player]: action for player, action in moves.items()}
        seen, rewards, _, truncations, self._infos = self.env.step(actions)
        self._seen = {**self._seen, **seen}  # the dead keep their last sight
        for player, agent in enumerate(self.agents):
            self.totals[player] += float(rewards.get(agent, 0.0))
        self.cut = not self.env.agents and any(truncations.values())

    def observe(self, player: int) -> Any:
        return self._seen[self.agents[player]]

    def mask(self, player: int) -> Any:
        agent = self.agents[player]
        return _mask(self._seen[agent], self._infos.get(agent, {}))


def _mask(observation: Any, info: Mapping[str, Any]) -> Any:
    if isinstance(observation, Mapping) and "action_mask" in observation:
        return observation["action_mask"]
    return info.get("action_mask")


def _rows(part: Any) -> str:
    array = np.atleast_1d(np.asarray(part))
    lines = array.reshape(-1, array.shape[-1]).tolist()
    return "\n".join(" ".join(f"{value:g}" for value in line) for line in lines)


def _scoring(agents: int, interest: Interest, returns: Sequence[float]) -> Scoring:
    """Lowest return = loss, highest = win, anything between = draw, as far as facts go."""
    if len(set(returns)) < 2:
        raise GameError(f"returns must name at least a lowest and a highest number, got {returns}")
    low, *middle, high = sorted(float(value) for value in set(returns))
    endings = {Outcome.LOSS: (low,), Outcome.WIN: (high,), Outcome.DRAW: tuple(middle)}
    return Scoring(agents, interest, "result", endings)


def _check_actions(
    name: str, env: AECEnv | ParallelEnv, agents: Sequence[Any], codec: TextCodec
) -> None:
    for agent in agents if codec.actions else ():
        space = env.action_space(agent)
        if not isinstance(space, spaces.Discrete) or space.n != len(codec.actions):
            raise GameError(
                f"the codec of {name} names {len(codec.actions)} actions, but {agent} has the "
                f"action space {space}; name each of its discrete actions, or none and decode free "
                "text"
            )
