"""Roles: what a model is told, how its reply is read, what it remembers.

A `Role` is settings only and belongs to no game, model or tokenizer. A `Seat` is one agent in one
episode: it turns observations into prompt ids and completions into moves, and holds the memory.

What a prompt holds, by the memory and thought rules:

    memory       the start, then                          then
    observation  -                                        the observation of now
    k (a number) the last k exchanges                     the observation of now
    dialogue     all exchanges of this episode            the observation of now

An exchange is an observation and the reply to it. With ``thought: keep`` the reply enters as the
very ids that were sampled, so with ``memory: dialogue`` each prompt begins with the last prompt
and the reply to it: one training row for the whole episode. With ``thought: strip`` it enters as
the canonical reply with the same action and no thought (empty if it named no action), and each
turn is a training row of its own.

With the parser `PlanExecute` a seat also remembers the agent's sub-goal of now, whatever the rules
say, and ``{subgoal}`` shows it in the next prompt.
"""

from __future__ import annotations

import string
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Parser, Tags
from marl_llm.agents.plan_execute import NO_SUBGOAL, Plan, PlanExecute
from marl_llm.errors import ConfigError, EpisodeError, nearest
from marl_llm.types import Completion, Finish, Move, Observation, Sampling

_SYSTEM_PLACES = ("rules", "agent", "format")
_USER_PLACES = ("rules", "agent", "format", "observation", "legal", "brief", "subgoal")
_SHORT = 512  # characters; longer replies hardly ever repeat, so their moves are not cached


@dataclass(frozen=True, slots=True)
class Role:
    """How a model plays. Templates are filled in with ``{placeholders}``; ``{{`` is a brace.

    Placeholders of both templates: ``{rules}`` of the game, ``{agent}`` (its name in the game),
    ``{format}`` (the parser's instructions). Of the user template also ``{observation}``,
    ``{brief}`` (the same in a few words), ``{legal}`` (the legal actions, separated by commas) and
    ``{subgoal}`` (that of the parser `PlanExecute`, which needs it there). A line of the user
    template that holds ``{legal}`` is left out when they are not listed. An empty system template
    means no system turn.
    """

    name: str
    system: str = ""
    user: str = "{observation}"
    parser: Parser = field(default_factory=Tags)
    sampling: Sampling = field(default_factory=Sampling)
    memory: Literal["dialogue", "observation"] | int = "observation"
    thought: Literal["keep", "strip"] = "keep"
    list_legal: bool = True  # show the legal actions if the game gives them
    _form: str = field(init=False, repr=False, compare=False)  # the parser's instructions

    def __post_init__(self) -> None:
        object.__setattr__(self, "_form", self.parser.instructions)
        check_places(f"role {self.name!r}: system", self.system, _SYSTEM_PLACES)
        check_places(f"role {self.name!r}: user", self.user, _USER_PLACES)
        shown = any(place == "subgoal" for _, place, _, _ in string.Formatter().parse(self.user))
        if shown != isinstance(self.parser, PlanExecute):
            raise ConfigError(
                f"role {self.name!r}: {{subgoal}} stands in the user template if the parser is "
                f"PlanExecute, and else not; the parser is {type(self.parser).__name__}, the "
                f"template {self.user!r}"
            )
        if self.memory not in ("dialogue", "observation") and not (
            type(self.memory) is int and self.memory >= 1
        ):
            raise ConfigError(
                f"role {self.name!r}: memory is 'dialogue', 'observation' or how many of the last "
                f"turns are remembered (at least 1), got {self.memory!r}"
            )
        if self.thought not in ("keep", "strip"):
            raise ConfigError(
                f"role {self.name!r}: thought is 'keep' or 'strip', got {self.thought!r}"
            )

    @property
    def request_sampling(self) -> Sampling:
        """The sampling settings with the parser's stop texts added."""
        return _with_stop(self.sampling, self.parser.stop)

    @property
    def window(self) -> int | None:
        """How many exchanges are remembered; None = all of them."""
        if isinstance(self.memory, int):
            return self.memory
        return None if self.memory == "dialogue" else 0

    def system_text(self, rules: str, agent: str) -> str:
        """The system turn's text, "" = none."""
        return self.system.format(rules=rules, agent=agent, format=self._form)

    def user_text(self, rules: str, observation: Observation, subgoal: str = NO_SUBGOAL) -> str:
        """The user turn's text for an observation, with the agent's sub-goal where it has one."""
        legal, template = observation.legal, self.user
        if legal is None or not self.list_legal:
            legal, template = (), _without_legal(template)
        return template.format(
            rules=rules,
            agent=observation.agent,
            format=self._form,
            observation=observation.text,
            brief=observation.brief,
            legal=", ".join(legal),
            subgoal=subgoal,
        )


class Seat:
    """One agent in one episode: ask `prompt`, let an engine sample, hand the reply to `read`.

    Attributes:
        subgoal: the agent's of now, if the role's parser knows such.
    """

    __slots__ = ("_asked", "_chat", "_exchanges", "_role", "_rules", "subgoal")

    def __init__(self, role: Role, chat: Chat, rules: str) -> None:
        """Sit down with nothing remembered.

        Args:
            role: what to play.
            chat: of the model that answers.
            rules: the game's, in words.
        """
        self._role, self._chat, self._rules = role, chat, rules
        self.subgoal = NO_SUBGOAL
        self._asked: str | None = None  # the user text that waits for its reply
        # (user text, reply ids, does the reply end its own turn)
        self._exchanges: deque[tuple[str, tuple[int, ...], bool]] = deque(maxlen=role.window)

    def prompt(self, observation: Observation, note: str = "") -> tuple[int, ...]:
        """The ids to sample a reply after. Asking again before `read` replaces the question.

        Args:
            observation: of now.
            note: words behind the user text, which are not remembered.
        """
        role, chat = self._role, self._chat
        self._asked = role.user_text(self._rules, observation, self.subgoal)
        user = f"{self._asked}\n{note}" if note else self._asked
        system = role.system_text(self._rules, observation.agent) if role.system else ""
        if not self._exchanges:
            return chat.first(system, user)
        (text, reply, closed), *later = self._exchanges
        ids = [*chat.first(system, text), *reply]
        for text, reply, next_closed in later:
            ids += chat.follow(text, closed)
            ids += reply
            closed = next_closed
        ids += chat.follow(user, closed)
        return tuple(ids)

    def read(self, completion: Completion) -> tuple[Move, str]:
        """The move that a reply makes and the reply as text; both are remembered by the rule.

        Raises:
            EpisodeError: no prompt is waiting for a reply.
        """
        if self._asked is None:
            raise EpisodeError("a reply was read before its prompt was asked for")
        role, chat = self._role, self._chat
        reply = chat.decode(completion.ids)
        move, plan = self._understood(reply, completion.finish)
        if plan is not None:
            self.subgoal = plan.then(self.subgoal)
        if role.window != 0:
            if role.thought == "keep":
                kept, closed = completion.ids, chat.closed(completion.ids)
            else:
                kept, closed = chat.encode(self._bare(move, plan)), False
            self._exchanges.append((self._asked, kept, closed))
        self._asked = None
        return move, reply

    def recall(self, observation: Observation, completion: Completion) -> None:
        """Remember an exchange of before, as `prompt` and `read` would have."""
        if self._role.window != 0 or isinstance(self._role.parser, PlanExecute):
            self._asked = self._role.user_text(self._rules, observation, self.subgoal)
            self.read(completion)

    def _understood(self, reply: str, finish: Finish) -> tuple[Move, Plan | None]:
        """The move of a reply, and its plan if it has one."""
        parser, short = self._role.parser, len(reply) <= _SHORT
        if isinstance(parser, PlanExecute):
            go_on = _go_on if short else PlanExecute.go_on
            return go_on(parser, self.subgoal, reply, finish)
        return (_parse(parser, reply, finish) if short else parser.parse(reply, finish)), None

    def _bare(self, move: Move, plan: Plan | None) -> str:
        """The canonical reply without a thought, behind which the sub-goal is that of now."""
        parser = self._role.parser
        if move.action is None:
            return ""
        if isinstance(parser, PlanExecute) and plan is not None:
            return parser.render_plan(None, self.subgoal, move.action, switch=plan.switch)
        return parser.render(None, move.action)


@lru_cache(8192)
def _parse(parser: Parser, reply: str, finish: Finish) -> Move:
    return parser.parse(reply, finish)


@lru_cache(8192)
def _go_on(
    parser: PlanExecute, subgoal: str, reply: str, finish: Finish
) -> tuple[Move, Plan | None]:
    return parser.go_on(subgoal, reply, finish)


@lru_cache(64)
def _with_stop(sampling: Sampling, stop: tuple[str, ...]) -> Sampling:
    return replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *stop))))


@lru_cache(64)
def _without_legal(template: str) -> str:
    lines = template.splitlines(keepends=True)
    return "".join(line for line in lines if "{legal}" not in line)


def check_places(where: str, template: str, known: Iterable[str]) -> None:
    """Refuse a template whose placeholders cannot be filled in."""
    try:
        places = [place for _, place, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; write a plain brace twice, as {{{{") from error
    for place in places:
        if place is not None and place not in known:
            raise ConfigError(
                f"{where}: unknown placeholder {{{place}}}; {nearest(place, known)} "
                "(write a plain brace twice, as {{)"
            )
