"""Play many games at once: moves of different games meet in one batch of their policy's engine.

One loop: start games until `concurrency` are running, ask every agent that must act, hand the model
players' prompts to their engines, and go on with whatever game an answer comes back for. A game
never waits for another. Every draw hangs on (seed, episode, agent, its turn), so who shares a batch
with whom does not matter for what is sampled.

A plan may have an opening: turns of an earlier episode that are carried out again, in the game and
in the memories of the players, before anybody is asked. What they earn counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from marl_llm.agents import Player
from marl_llm.agents.chat import Chat
from marl_llm.agents.role import Role, Seat
from marl_llm.errors import ConfigError, DeadlineError, EpisodeError, nearest
from marl_llm.games import Game
from marl_llm.rollout import deadlines
from marl_llm.rollout.plans import Plan
from marl_llm.rollout.shaping import Shaping
from marl_llm.seeds import derive, generator
from marl_llm.serve import Engine
from marl_llm.types import (
    Completion,
    Episode,
    Move,
    Observation,
    Outcome,
    Request,
    Sampling,
    Turn,
)


@dataclass(frozen=True, slots=True)
class ModelSeat:
    """A seat taken by a model: which role it plays and whose weights answer."""

    role: Role
    chat: Chat
    policy: str
    sampling: Sampling = field(init=False)  # of every reply

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling", self.role.request_sampling)


@dataclass(slots=True)
class _Draft:
    """A turn in the making: first its question, then its move, and all along its reward."""

    observation: Observation
    player: str
    policy: str | None
    prompt_ids: tuple[int, ...] = ()
    move: Move = field(init=False)
    completion: Completion | None = None
    reply: str = ""
    reward: float = 0.0
    shaping: float = 0.0

    @classmethod
    def again(cls, turn: Turn) -> _Draft:
        """An earlier turn, whose rewards are still to come."""
        draft = cls(turn.observation, turn.player, turn.policy, turn.prompt_ids)
        draft.move = Move(turn.action, turn.fault)
        draft.completion, draft.reply = completion_of(turn), turn.reply
        return draft

    def finished(self) -> Turn:
        seen, move, said = self.observation, self.move, self.completion
        return Turn(
            seen,
            self.policy,
            self.player,
            self.prompt_ids,
            said.ids if said else (),
            said.logprobs if said else (),
            said.versions if said else (),
            self.reply,
            move.action,
            move.fault,
            said.finish if said else None,
            self.reward,
            self.shaping,
            seen.parent,
        )


@dataclass(slots=True)
class _Table:
    """One running episode."""

    plan: Plan
    game: Game
    gap: float
    started: float
    seats: dict[str, Seat] = field(default_factory=dict)
    drafts: list[_Draft] = field(default_factory=list)
    latest: dict[str, _Draft] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)  # agent -> questions put to it
    awaited: tuple[str, ...] = ()  # agents of this ply, in order
    answers: dict[str, _Draft] = field(default_factory=dict)
    returns: dict[str, float] = field(default_factory=dict)
    shaped: dict[str, float] = field(default_factory=dict)
    until: dict[int, float] = field(default_factory=dict)  # deadlines by the turn of the call

    def caller(self, turn: int) -> int | None:
        """The turn that called the agent of a turn."""
        return self.drafts[turn].observation.parent


def completion_of(turn: Turn) -> Completion | None:
    """The reply of a finished turn, as an engine gave it; None = nothing was sampled."""
    if turn.finish is None:
        return None
    return Completion(0, turn.ids, turn.logprobs, turn.versions, turn.finish)


def play(
    plans: Sequence[Plan],
    games: Mapping[str, Callable[[], Game]],
    seats: Mapping[str, ModelSeat | Player],
    engines: Mapping[str, Engine],
    *,
    seed: int,
    concurrency: int = 512,
    turn_seconds: float | None = None,
    episode_seconds: float | None = None,
    stall_seconds: float = 600.0,
    shaping: Shaping | None = None,
    idle: dict[str, list[Game]] | None = None,
    lock_step: bool = False,
) -> list[Episode]:
    """Play all planned episodes; they come back in the order of the plans.

    Args:
        plans: what to play; `id`s are distinct.
        games: makers of a fresh game, by name.
        seats: who can sit down, by name: a model in a role, or a scripted player.
        engines: by policy.
        seed: the run's; every draw is derived from it and the episode's id.
        concurrency: games in flight at once.
        turn_seconds: deadline of one reply, None = none.
        episode_seconds: deadline of an episode, divided among its calls as `deadlines` says.
        stall_seconds: how long no reply at all may come before the run is given up.
        shaping: reward for form; None = none.
        idle: games of earlier calls by name, used before new ones are made; finished games are
            added. None = every call makes its own.
        lock_step: all games advance together, one policy at a time: nobody is asked anything before
            all that were asked have answered. To compare with.

    Raises:
        ConfigError: a plan names an unknown game or player, a policy without an engine, or not one
            player for each agent; two plans have one id; `concurrency` is below 1.
        DeadlineError: nothing was finished for `stall_seconds`.
        EpisodeError: the game does not go as a plan's opening says.
    """
    if concurrency < 1:
        raise ConfigError(f"rollout.concurrency must be at least 1 game, got {concurrency}")
    idle = {} if idle is None else idle
    limits = turn_seconds, episode_seconds
    shaping = shaping or Shaping()
    loop = _Loop(games, seats, engines, seed, limits, shaping, idle, lock_step)
    return loop.run(plans, concurrency, stall_seconds)


class _Loop:
    def __init__(
        self,
        games: Mapping[str, Callable[[], Game]],
        seats: Mapping[str, ModelSeat | Player],
        engines: Mapping[str, Engine],
        seed: int,
        limits: tuple[float | None, float | None],
        shaping: Shaping,
        idle: dict[str, list[Game]],
        lock_step: bool,
    ) -> None:
        self._games, self._seats, self._engines = games, seats, engines
        self._seed, (self._turn_seconds, self._episode_seconds) = seed, limits
        self._timed = limits != (None, None)
        self._shaping, self._shapes = shaping, shaping.active
        self._questions: dict[str, list[Request]] = {policy: [] for policy in engines}
        self._asked: dict[int, tuple[_Table, _Draft]] = {}  # what the engines are working on
        self._in_flight = dict.fromkeys(engines, 0)
        self._numbers = count()
        self._idle, self._lock_step = idle, lock_step
        self._rules: dict[tuple[str, str], str] = {}  # by game and role
        self._done: dict[int, Episode] = {}

    def run(self, plans: Sequence[Plan], concurrency: int, stall: float) -> list[Episode]:
        for plan in plans:
            self._check(plan)
        if len({plan.id for plan in plans}) < len(plans):
            raise ConfigError("two plans have the same id; ids must be distinct in a rollout")
        waiting = list(reversed(plans))
        running = 0
        heard = time.monotonic()
        while len(self._done) < len(plans):
            while waiting and running < concurrency:
                running += 1
                running -= self._advance(self._open(waiting.pop()))
            for policy in self._due():
                requests = self._questions[policy]
                self._engines[policy].submit(requests)
                self._in_flight[policy] += len(requests)
                requests.clear()
            for policy, engine in self._engines.items():
                if not self._in_flight[policy]:
                    continue
                completions = engine.poll(stall)
                self._in_flight[policy] -= len(completions)
                if completions:
                    heard = time.monotonic()
                for completion in completions:
                    running -= self._hear(completion)
            if self._asked and time.monotonic() - heard > stall:
                raise DeadlineError(
                    f"no reply for {stall:g} s; {len(self._asked)} are awaited, the oldest for "
                    f"episode {next(iter(self._asked.values()))[0].plan.id}; shorten the "
                    "replies, or raise rollout.stall_seconds"
                )
        return [self._done[plan.id] for plan in plans]

    def _due(self) -> list[str]:
        """The policies whose questions go to their engines now."""
        due = [policy for policy, requests in self._questions.items() if requests]
        if self._lock_step:
            due.sort(key=lambda policy: -len(self._questions[policy]))
            return [] if any(self._in_flight.values()) else due[:1]
        return due

    def _check(self, plan: Plan) -> None:
        if plan.game not in self._games:
            raise ConfigError(f"unknown game {plan.game!r}; {nearest(plan.game, self._games)}")
        for name in plan.players.values():
            if name not in self._seats:
                raise ConfigError(f"unknown player {name!r}; {nearest(name, self._seats)}")
            seat = self._seats[name]
            if isinstance(seat, ModelSeat) and seat.policy not in self._engines:
                raise ConfigError(f"no engine serves policy {seat.policy!r} of player {name!r}")

    def _open(self, plan: Plan) -> _Table:
        idle = self._idle.get(plan.game)
        game = idle.pop() if idle else self._games[plan.game]()
        if set(plan.players) != set(game.possible_agents):
            raise ConfigError(
                f"episode {plan.id} of {plan.game} seats {', '.join(plan.players) or 'nobody'}; "
                f"its agents are {', '.join(game.possible_agents)}"
            )
        game.reset(plan.seed, {"attempt": plan.attempt} if plan.attempt else None)
        gap = game.gap() if self._shapes else 0.0
        table = _Table(plan, game, gap, time.monotonic())
        for turn in plan.opening:
            self._repeat(table, turn)
        table.awaited = self._still_awaited(table)  # of the ply that the opening ends in
        for agent in table.awaited:
            self._ask(table, agent)
        return table

    def _repeat(self, table: _Table, turn: Turn) -> None:
        """Carry out a turn of the opening."""
        plan, agent = table.plan, turn.observation.agent
        table.awaited = self._still_awaited(table) or table.game.acting()
        if agent not in table.awaited:
            raise EpisodeError(
                f"turn {len(table.drafts)} of the opening of episode {plan.id} is {agent}'s, but "
                f"{plan.game} with seed {plan.seed} then waits for "
                f"{', '.join(table.awaited) or 'nobody'}; an opening is made of the first "
                "turns of an episode with the same seed, in a game that its seed and moves fix"
            )
        table.asked[agent] = table.asked.get(agent, 0) + 1
        draft = _Draft.again(turn)
        seat = self._seats[plan.players[agent]]
        if isinstance(seat, ModelSeat) and draft.completion is not None:
            self._memory(table, agent, seat).recall(turn.observation, draft.completion)
        self._move(table, agent, draft)
        table.awaited = tuple(other for other in table.awaited if other != agent)

    def _still_awaited(self, table: _Table) -> tuple[str, ...]:
        return tuple(agent for agent in table.awaited if agent in table.game.acting())

    def _advance(self, table: _Table) -> bool:
        """Go on until a model must be asked or the game is over; True when it is over."""
        game, answers = table.game, table.answers
        while True:
            if not table.awaited:
                table.awaited = game.acting()
                if not table.awaited:
                    self._close(table)
                    return True
                for agent in table.awaited:
                    self._ask(table, agent)
            if len(answers) < len(table.awaited):
                return False
            for agent in table.awaited:
                # The limit of turns can end a game between two simultaneous moves.
                if agent in game.acting():
                    self._move(table, agent, answers[agent])
            table.awaited = ()
            answers.clear()

    def _ask(self, table: _Table, agent: str) -> None:
        plan, game = table.plan, table.game
        name = plan.players[agent]
        seat = self._seats[name]
        turn = table.asked.get(agent, 0)
        table.asked[agent] = turn + 1
        observation = game.observation(agent)
        if not isinstance(seat, ModelSeat):
            rng = generator(self._seed, "player", plan.id, plan.attempt, agent, turn)
            draft = table.answers[agent] = _Draft(observation, name, None)
            draft.move = Move(seat.act(game, agent, rng))
            return
        prompt = self._memory(table, agent, seat).prompt(observation)
        deadline = self._deadline(table, observation.parent) if self._timed else None
        number = next(self._numbers)
        self._asked[number] = table, _Draft(observation, name, seat.policy, prompt)
        self._questions[seat.policy].append(
            Request(
                number,
                prompt,
                seat.sampling,
                derive(self._seed, "reply", plan.id, plan.attempt, agent, turn),
                deadline,
            )
        )

    def _deadline(self, table: _Table, parent: int | None) -> float | None:
        """Of a reply that is asked for now, in a call that this turn made; None = in no call."""
        now, until = time.monotonic(), None
        if self._episode_seconds is not None:
            end = table.started + self._episode_seconds
            until = deadlines.of_agent(now, parent, table.until, end, table.caller)
        return deadlines.of_reply(now, self._turn_seconds, until)

    def _memory(self, table: _Table, agent: str, seat: ModelSeat) -> Seat:
        if agent not in table.seats:
            rules = self._rules_of(table.plan.game, table.game, table.game.roles[agent])
            table.seats[agent] = Seat(seat.role, seat.chat, rules)
        return table.seats[agent]

    def _rules_of(self, name: str, game: Game, role: str) -> str:
        if (name, role) not in self._rules:
            self._rules[name, role] = game.instructions(role)
        return self._rules[name, role]

    def _hear(self, completion: Completion) -> bool:
        table, draft = self._asked.pop(completion.id)
        agent = draft.observation.agent
        draft.move, draft.reply = table.seats[agent].read(completion)
        draft.completion = completion
        table.answers[agent] = draft
        return self._advance(table)

    def _move(self, table: _Table, agent: str, draft: _Draft) -> None:
        game = table.game
        if self._shapes and draft.policy is not None:
            self._shape(table, agent, draft)
        game.act(agent, draft.move)
        table.drafts.append(draft)
        table.latest[agent] = draft
        if rewards := game.take_rewards():
            self._pay(table, rewards)

    def _pay(self, table: _Table, rewards: Mapping[str, float]) -> None:
        for who, reward in rewards.items():
            table.returns[who] = table.returns.get(who, 0.0) + reward
            # A reward before an agent's first turn credits no decision of its own.
            if who in table.latest:
                table.latest[who].reward += reward

    def _shape(self, table: _Table, agent: str, draft: _Draft) -> None:
        action = draft.move.action
        accepted = action is not None and table.game.accepts(agent, action)
        tokens = len(draft.completion.ids) if draft.completion else 0
        more = self._shaping.of_turn(tokens, accepted)
        so_far = table.shaped.get(agent, 0.0)
        draft.shaping = self._shaping.capped(so_far, more, table.gap)
        table.shaped[agent] = so_far + draft.shaping

    def _close(self, table: _Table) -> None:
        plan, game = table.plan, table.game
        outcomes = dict(game.outcomes())
        self._done[plan.id] = Episode(
            id=plan.id,
            attempt=plan.attempt,
            game=plan.game,
            group=plan.group,
            seed=plan.seed,
            turns=tuple(draft.finished() for draft in table.drafts),
            seats=dict(plan.players),
            returns={agent: table.returns.get(agent, 0.0) for agent in plan.players},
            outcomes=outcomes,
            terminated=Outcome.TRUNCATED not in outcomes.values(),
            seconds=time.monotonic() - table.started,
            void=game.void(),
        )
        self._idle.setdefault(plan.game, []).append(game)
