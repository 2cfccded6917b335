"""`TextGame`: PettingZoo's book-keeping, faults, retries and snapshots, done once for every game.

A game is played through the contract of this package (`acting`, `observation`, `act`,
`take_rewards`) or as an ordinary PettingZoo AEC environment (`agent_iter`, `last`, `step`); both
are the same episode, since `step(i)` is `act` with the i-th action name. Arrays exist only in
`observe`, so a rollout that works with text pays nothing for them.

A subclass names its facts in `__init__` and supplies the rules through these hooks:

    start(rng, options)    set up an episode; every random draw from here on comes from rng
    movers()               agents who move now, at once if several; () when the game is over
    legal(agent)           names of the actions that this agent may take now
    play(moves)            carry out the moves of all movers
    earnings()             what the rules have paid each agent since the start
    view(agent)            all that this agent may know, in words
    rules()                the rules in words

and may replace `accepts`, `result`, `stake`, `numbers`, `answer`, `sample`, `instructions`,
`caller` and `stand_in`, whose defaults fit most games:

    class Nim(TextGame):
        '''Take one or two of seven stones; whoever takes the last one wins.'''

        def __init__(self, table: OutcomeTable | str = "zero_sum"):
            super().__init__(
                name="nim", actions=("1", "2"), natural_turns=7, table=table,
                scoring=Scoring(2, "opposed", "result", {Outcome.WIN: (1.0,), Outcome.LOSS:
                (-1.0,)}),
            )

        def start(self, rng, options):
            self.stones, self.mover = 7, 0

        def movers(self):
            return (self.possible_agents[self.mover],) if self.stones else ()

        def legal(self, agent):
            return ("1", "2") if self.stones > 1 else ("1",)

        def play(self, moves):
            self.stones -= int(moves[self.possible_agents[self.mover]])
            self.mover = 1 - self.mover

        def earnings(self):
            if self.stones:
                return (0.0, 0.0)
            return (-1.0, 1.0) if self.mover == 0 else (1.0, -1.0)

        def view(self, agent):
            words = str(self.stones)
            return View(f"Stones left: {words}.", brief=words, key=words)

        def rules(self):
            return "Two players take 1 or 2 stones in turn; whoever takes the last one wins."
"""

from __future__ import annotations

import json
import string
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from marl_llm.errors import GameError
from marl_llm.games.outcomes import OutcomeTable, Payoff, Scoring
from marl_llm.seeds import derive, generator
from marl_llm.types import FORFEITS, Move, Observation, Outcome

TEXT_LIMIT = 100_000  # characters of an observation; gymnasium's text space asks for a bound
ACTION_LIMIT = 1_000  # characters of an action, where actions are free text

Legal = tuple[str, ...]


class AnyText(spaces.Text):
    """Text of any characters up to a length: samples are printable ASCII, members need not be."""

    def __init__(self, max_length: int):
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether x is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


@dataclass(frozen=True, slots=True)
class View:
    """What one agent may know, before its legal actions are added."""

    text: str
    brief: str
    key: str


class TextGame(AECEnv[str, dict[str, Any], Any]):
    """A turn-based or simultaneous game whose observations and actions are text."""

    render_mode = "ansi"

    def __init__(
        self,
        *,
        name: str,
        actions: Sequence[str],
        natural_turns: int,
        scoring: Scoring,
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
        roles: Mapping[str, str] | None = None,
    ):
        """Facts that hold for every episode.

        Args:
            name: of the game, also in records.
            actions: all action names, index = the Discrete action of PettingZoo; empty = free text.
            natural_turns: decisions after which the rules end the game at the latest.
            scoring: what the rules can pay.
            table: what each ending pays, or the name of a preset.
            list_legal: say in each observation which actions are legal.
            max_turns: cut the episode short after this many turns; None = only the rules end it.
            roles: the role of each agent, in the order of `scoring`; None = `player_0`, `player_1`
                and so on, all of them players.
        """
        super().__init__()
        if isinstance(table, str):
            table = OutcomeTable.named(table, scoring.pays)
        longest = natural_turns * (1 if table.illegal_ends else table.tries)
        if max_turns is not None and max_turns < 1:
            raise GameError(f"max_turns of {name} must be at least 1 or null, got {max_turns}")
        self.name = name
        self.actions = tuple(actions)
        self.scoring = scoring
        self.table = table
        self.list_legal = list_legal
        self.max_turns = longest if max_turns is None else min(max_turns, longest)
        self.roles = dict(roles or {f"player_{i}": "player" for i in range(scoring.agents)})
        self.possible_agents = list(self.roles)
        self.metadata = {"name": name, "render_modes": ["ansi"], "is_parallelizable": False}
        self.agents: list[str] = []
        self._index = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._spaces: tuple[dict[str, spaces.Dict], dict[str, spaces.Space]] | None = None
        self._seed: int | None = None
        self._waiting: tuple[str, ...] = ()
        self._outcomes: dict[str, Outcome] = {}
        self._refused: dict[str, int] = {}

    # The rules, supplied by a subclass.

    @abstractmethod
    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Set up an episode; `rng` is its only source of chance, `options` may place it."""

    @abstractmethod
    def movers(self) -> tuple[str, ...]:
        """Agents who move now, at once if several; () when the game is over."""

    @abstractmethod
    def legal(self, agent: str) -> Legal:
        """Names of the actions that an agent who is to move may take."""

    @abstractmethod
    def play(self, moves: Mapping[str, str]) -> None:
        """Carry out the moves of all movers, all of them legal."""

    @abstractmethod
    def earnings(self) -> Sequence[float]:
        """What the rules have paid since the start, one number per agent."""

    @abstractmethod
    def view(self, agent: str) -> View:
        """All that this agent may know, whoever's turn it is."""

    @abstractmethod
    def rules(self) -> str:
        """The rules and the names of the actions, in words, for a system prompt."""

    def accepts(self, agent: str, action: str) -> bool:
        """Whether the rules allow this action to an agent who is to move."""
        return action in self.legal(agent)

    def result(self, agent: str) -> Outcome:
        """How a finished game ended for this agent: by default, its return against the mean of all.

        Rules that know faults or a limit of their own may also give one of those outcomes: a fault
        is then paid by the table, on top of `earnings`.
        """
        returns = self._earned
        own = returns[self._index[agent]]
        margin = own - sum(returns) / len(returns)
        if abs(margin) < 1e-9:
            return Outcome.DRAW
        return Outcome.WIN if margin > 0 else Outcome.LOSS

    def stake(self, agent: str) -> float:
        """What this agent can lose now: its points where the rules pay points, else 1."""
        return self.earnings()[self._index[agent]] if self.scoring.pays == "points" else 1.0

    def answer(self) -> str | None:
        """The action that answers this episode's question right; None = there is no such thing.

        It is asked for after `start` and shown to nobody who plays.
        """
        return None

    def sample(self, agent: str, rng: np.random.Generator) -> str:
        """Any action that this agent, who is to move, may take: what random play does.

        Raises:
            GameError: actions are free text, and the game does not say how to make one up.
        """
        legal = self.legal(agent)
        if not legal:
            raise GameError(
                f"the actions of {self.name} are free text, so random play needs its `sample`"
            )
        return legal[int(rng.integers(len(legal)))]

    def instructions(self, role: str) -> str:
        """The rules as this role is told them, for a system prompt."""
        return self.rules()

    def caller(self, agent: str) -> int | None:
        """The turn, counted from the start, that called this agent; None = nobody did."""
        return None

    def void(self) -> str | None:
        """Why a failure of the machinery made the episode worthless; None = it counts.

        A game that knows such failures ends at once when one happens, whatever anybody did. Reset
        with the option ``attempt``, 1 and so on, it meets others.
        """
        return None

    def stand_in(self, agent: str, fault: Outcome) -> str | None:
        """What `play` is given in the place of a fault; None = the fault ends the game."""
        return None

    def numbers(self, agent: str) -> np.ndarray:
        """The observation as numbers in [0, 1], for learners without language; always one shape."""
        numbers = np.zeros(self.scoring.agents + 1, dtype=np.float32)
        numbers[self._index[agent]] = 1.0
        numbers[-1] = len(self._log) / self.max_turns
        return numbers

    # The contract of this package.

    @property
    def zero_sum(self) -> bool:
        """Whether the returns of every episode sum to zero, by the rules and by the table."""
        return self.table.balanced(self.scoring)

    def gap(self) -> float:
        """The smallest difference between two endings' returns; shaping stays below half of it."""
        return self.table.gap(self.scoring)

    def agent(self, player: int) -> str:
        """The name of the agent in this seat."""
        return self.possible_agents[player]

    def player(self, agent: str) -> int:
        """The seat of this agent.

        Raises:
            GameError: no agent of this game has that name.
        """
        if agent not in self._index:
            raise GameError(
                f"{self.name} has no agent {agent!r}; its agents are "
                f"{', '.join(self.possible_agents)}"
            )
        return self._index[agent]

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Start an episode; every random draw of it comes from this seed.

        Args:
            seed: None goes on from the last episode's seed, or takes one from the operating system.
            options: for the game's `start`; unknown keys are ignored, as PettingZoo has it.
        """
        if seed is None:
            last = self._seed
            seed = (
                int(np.random.SeedSequence().generate_state(1)[0]) if last is None else derive(last)
            )
        self._seed = int(seed)
        self._options = dict(options or {})
        agents = self.possible_agents
        self.agents = list(agents)
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        self._skip_agent_selection = None
        self._log: list[tuple[str, str | None, str | None]] = []  # (agent, action, fault)
        self._unread = [0.0] * len(agents)
        self._moves: dict[str, str] = {}
        self._faults: dict[str, Outcome] = {}
        self._refused.clear()
        self._outcomes = {}
        self.start(generator(self._seed, "game"), self._options)
        self._earned = tuple(self.earnings())
        movers = self.movers()
        if not movers:
            raise GameError(f"{self.name} is over before anybody has moved; start it earlier")
        self._next_round(movers)

    def acting(self) -> tuple[str, ...]:
        """Agents who must move now, none of whom sees the others' pending moves; () = over."""
        return self._waiting

    def observation(self, agent: str) -> Observation:
        """All that this agent may know now."""
        view = self.view(agent)
        text = view.text
        legal = self.legal(agent) if agent in self._waiting else ()
        listed = self.list_legal and bool(self.actions)
        if legal and listed:
            text = f"{text}\nLegal actions: {', '.join(legal)}."
        if agent in self._refused:
            text = f"{text}\nYour last action is not allowed here; choose another."
        return Observation(
            agent=agent,
            role=self.roles[agent],
            text=text,
            brief=view.brief,
            legal=legal if listed else None,
            key=view.key,
            parent=self.caller(agent),
        )

    def act(self, agent: str, move: Move) -> None:
        """Play a move. An illegal action or a fault ends or penalises as the outcome table says.

        Raises:
            GameError: it is not this agent's turn. Nothing an agent says raises.
        """
        if agent not in self._waiting:
            turn = ", ".join(self._waiting) or "nobody, as it is over or was never reset"
            raise GameError(f"{agent} cannot move in {self.name} now; to move: {turn}")
        fault = move.fault
        action = move.action
        if action is not None and not self.accepts(agent, action):
            fault, action = Outcome.ILLEGAL, None
        self._log.append((agent, action, fault))
        self.rewards = dict.fromkeys(self.rewards, 0.0)
        self._cumulative_rewards[agent] = 0.0
        if fault is Outcome.ILLEGAL and self._asks_again(agent):
            return
        if fault is not None:
            action = self.stand_in(agent, fault)
        if action is not None:
            self._moves[agent] = action
        elif fault is not None:
            self._faults[agent] = fault
        if len(self._waiting) > 1:
            self._waiting = tuple([other for other in self._waiting if other != agent])
            self.agent_selection = self._waiting[0]
        elif self._faults:
            self._forfeit()
        else:
            self._advance()

    def take_rewards(self) -> Mapping[str, float]:
        """Strategic reward per agent since the last call; agents who got none are absent."""
        unread = self._unread
        if not any(unread):
            return {}
        self._unread = [0.0] * len(unread)
        return {
            agent: reward
            for agent, reward in zip(self.possible_agents, unread, strict=True)
            if reward
        }

    def outcomes(self) -> Mapping[str, Outcome]:
        """How it ended for each agent; empty while the game goes on."""
        return dict(self._outcomes)

    def snapshot(self) -> bytes:
        """The whole state: the seed, the start and what was played, from which it is rebuilt.

        Raises:
            GameError: there is no episode yet.
        """
        if self._seed is None:
            raise GameError(f"{self.name} has no episode to take a snapshot of; reset it first")
        state = {
            "game": self.name,
            "seed": self._seed,
            "options": self._options,
            "log": self._log,
            "unread": self._unread,
            "agents": self.agents,
        }
        return json.dumps(state).encode()

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot of this game, by playing its moves again.

        Raises:
            GameError: the snapshot is another game's.
        """
        saved = json.loads(state)
        if saved["game"] != self.name:
            raise GameError(
                f"this snapshot is of {saved['game']} and cannot be restored into {self.name}"
            )
        self.reset(saved["seed"], saved["options"])
        for agent, action, fault in saved["log"]:
            self.act(agent, Move(action, None if fault is None else Outcome(fault)))
        while len(self.agents) > len(saved["agents"]):
            self._was_dead_step(None)
        self._unread = saved["unread"]

    # PettingZoo's AEC interface.

    def step(self, action: Any) -> None:
        """PettingZoo's step: the action by index, or as text where actions are free text.

        Raises:
            GameError: the index is not one of an action.
        """
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
        elif not self.actions:
            self.act(agent, Move(str(action)))
        elif action is None or not 0 <= action < len(self.actions):
            raise GameError(
                f"action {action!r} of {agent} is no action of {self.name}: it has "
                f"{len(self.actions)}, 0 is {self.actions[0]!r}"
            )
        else:
            self.act(agent, Move(self.actions[int(action)]))

    def observe(self, agent: str) -> dict[str, Any]:
        """PettingZoo's observation: numbers, text, and a mask of the legal actions."""
        seen: dict[str, Any] = {
            "observation": self.numbers(agent),
            "text": self.observation(agent).text,
        }
        if self.actions:
            legal = self.legal(agent) if agent in self._waiting else ()
            seen["action_mask"] = np.array([name in legal for name in self.actions], dtype=np.int8)
        return seen

    def observation_space(self, agent: str) -> spaces.Dict:
        """A Dict of `observation`, `text` and, where actions are listed, `action_mask`."""
        return self._both_spaces()[0][agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Discrete over the action names, or Text where actions are free text."""
        return self._both_spaces()[1][agent]

    def render(self) -> str:
        """What each agent knows, for a person to read."""
        return "\n\n".join(
            f"[{agent}]\n{self.observation(agent).text}" for agent in self.possible_agents
        )

    def close(self) -> None:
        """Nothing is held open."""

    # Inside.

    def _both_spaces(self) -> tuple[dict[str, spaces.Dict], dict[str, spaces.Space]]:
        if self._spaces is None:  # made on first use: a rollout never asks
            if self._seed is None:
                self.reset(seed=0)
            seen: dict[str, spaces.Dict] = {}
            acts: dict[str, spaces.Space] = {}
            for agent in self.possible_agents:
                parts: dict[str, spaces.Space] = {
                    "observation": spaces.Box(0.0, 1.0, self.numbers(agent).shape, np.float32),
                    "text": AnyText(TEXT_LIMIT),
                }
                acts[agent] = AnyText(ACTION_LIMIT)
                if self.actions:
                    n = len(self.actions)
                    parts["action_mask"] = spaces.Box(0, 1, (n,), np.int8)
                    acts[agent] = spaces.Discrete(n)
                seen[agent] = spaces.Dict(parts)
            self._spaces = (seen, acts)
        return self._spaces

    def _asks_again(self, agent: str) -> bool:
        """Penalise an illegal action and leave the agent to move, if the table has it so."""
        tries = 1 if self.table.illegal_ends else self.table.tries
        refused = self._refused.get(agent, 0) + 1
        if refused >= tries:
            return False
        self._refused[agent] = refused
        self._settle({self._index[agent]: self.table.retry})
        self._stop_at_limit()
        return True

    def _advance(self) -> None:
        """All movers have made a legal move: play the round, pay it, go on or end."""
        self.play(self._moves)
        before, self._earned = self._earned, tuple(self.earnings())
        movers = self.movers()
        if movers:
            if self._earned != before:
                self._pay([b - a for a, b in zip(before, self._earned, strict=True)])
            self._next_round(movers)
        else:
            self._finish(before)

    def _finish(self, before: Sequence[float]) -> None:
        """The rules have ended the game: pay what the table gives that ending."""
        self._outcomes = {agent: self.result(agent) for agent in self.possible_agents}
        self._faults = {agent: o for agent, o in self._outcomes.items() if o in FORFEITS}
        if self._faults:
            self._forfeit()
            return
        self._pay(self._last_rewards(before))
        cut = Outcome.TRUNCATED in self._outcomes.values()
        self._end(self.truncations if cut else self.terminations)

    def _last_rewards(self, before: Sequence[float]) -> list[float]:
        """What a last step pays, so that each return is what the table gives that ending."""
        rewards = [
            self.table.ending(self._outcomes[agent], self._earned[player]) - before[player]
            for player, agent in enumerate(self.possible_agents)
        ]
        if self.table.last_zero is not None and self.scoring.pays == "points":
            rewards = [reward or self.table.last_zero for reward in rewards]
        return rewards

    def _forfeit(self) -> None:
        """All movers have moved and some of them by a fault: settle and end."""
        payoffs = {self._index[agent]: self.table.fault(f) for agent, f in self._faults.items()}
        self._outcomes = {
            agent: self._faults.get(agent, Outcome.OTHER_FORFEIT) for agent in self.possible_agents
        }
        self._settle(payoffs)
        self._end(self.terminations)

    def _next_round(self, movers: tuple[str, ...]) -> None:
        self._moves.clear()
        self._refused.clear()
        self._waiting = movers
        self._stop_at_limit()

    def _stop_at_limit(self) -> None:
        """End the episode if the turns that are due would go beyond the limit."""
        if len(self._log) + len(self._waiting) <= self.max_turns:
            self.agent_selection = self._waiting[0]
            return
        self._outcomes = dict.fromkeys(self.possible_agents, Outcome.TRUNCATED)
        if self.table.truncated is not None:
            self._settle({self._index[agent]: self.table.truncated for agent in self._waiting})
        self._end(self.truncations)

    def _settle(self, payoffs: Mapping[int, Payoff]) -> None:
        stakes = {player: self.stake(self.possible_agents[player]) for player in payoffs}
        self._pay(self.table.settle(payoffs, self._earned, stakes, self.scoring))

    def _pay(self, rewards: Sequence[float]) -> None:
        for player, agent in enumerate(self.possible_agents):
            reward = rewards[player]
            if reward:
                self._unread[player] += reward
                self.rewards[agent] += reward
                self._cumulative_rewards[agent] += reward

    def _end(self, flags: dict[str, bool]) -> None:
        self._waiting = ()
        for agent in self.possible_agents:
            flags[agent] = True
            self.infos[agent] = {"outcome": self._outcomes[agent].value}
        self.agent_selection = self.possible_agents[0]
