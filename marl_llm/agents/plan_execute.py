"""Plan and execute: a reply in parts, in the manner of HiPER (arXiv 2602.16165).

    <switch>KEEP</switch><action>ACTION</action>
    <switch>SWITCH</switch><subgoal>SUB-GOAL</subgoal><action>ACTION</action>

The agent has one sub-goal at a time. It is kept by saying nothing about it: a reply that keeps it
has no block for it, and the next prompt shows it again (``{subgoal}`` of a role). At the start of
an episode it is "none". With `copied` a reply that keeps the sub-goal writes it out once more, as
in the paper. Whatever is missing or out of place is a format fault and never counts as KEEP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from marl_llm.agents.parsers import move_of, plain
from marl_llm.errors import ConfigError
from marl_llm.types import Finish, Move, Outcome

NO_SUBGOAL = "none"  # what an agent has at the start of an episode
KEEP, SWITCH = "KEEP", "SWITCH"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a well-formed reply says about the sub-goal, and where its parts begin."""

    switch: bool
    subgoal: str | None  # as it is written; None = there is no such block
    subgoal_at: int  # first character of the sub-goal's block, or of the action's if there is none
    action_at: int  # first character of the action's block

    def then(self, subgoal: str) -> str:
        """The sub-goal after this reply.

        Args:
            subgoal: the one before.
        """
        return self.subgoal if self.switch and self.subgoal is not None else subgoal


class _Parts(NamedTuple):
    thought: str | None
    plan: Plan
    action: str


@dataclass(frozen=True, slots=True)
class PlanExecute:
    """KEEP or SWITCH, a new sub-goal if it is SWITCH, and an action; nothing else in between.

    White space around the parts and inside them is free. Each tag stands at most once, spelled
    exactly so, case included, and so are KEEP and SWITCH. Neither sub-goal nor action may be empty.
    A thought, where one is allowed, comes first.
    """

    copied: bool = False  # KEEP writes the sub-goal out, too; a copy that differs is a format fault
    think: Literal["required", "optional", "none"] = "none"
    think_tag: str = "think"
    switch_tag: str = "switch"
    subgoal_tag: str = "subgoal"
    action_tag: str = "action"
    _tags: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.think not in ("required", "optional", "none"):
            raise ConfigError(
                f"parser.think must be 'required', 'optional' or 'none', got {self.think!r}"
            )
        names = (self.think_tag, self.switch_tag, self.subgoal_tag, self.action_tag)
        for name in names:
            if not name or not set(name).isdisjoint("<>/") or any(map(str.isspace, name)):
                raise ConfigError(
                    f"a tag's name is not empty and free of '<', '>', '/' and spaces, got {name!r}"
                )
        if len(set(names)) < len(names):
            raise ConfigError(f"the parts need different tags, got {', '.join(names)}")
        tags = tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))
        object.__setattr__(self, "_tags", tags)

    @property
    def stop(self) -> tuple[str, ...]:
        """The closing action tag."""
        return (f"</{self.action_tag}>",)

    @property
    def instructions(self) -> str:
        """The form in words."""
        thought = "" if self.think == "none" else _block(self.think_tag, "your thoughts")
        may = "you may think first; then " if self.think == "optional" else ""
        kept = _block(self.subgoal_tag, "the same sub-goal") if self.copied else ""
        action = _block(self.action_tag, "your action")
        new = _block(self.subgoal_tag, "your new sub-goal")
        return (
            f"You work on one sub-goal at a time; {may}say whether you keep it or switch to "
            "another, and name exactly one action. To keep it, reply as "
            f"{thought}{_block(self.switch_tag, KEEP)}{kept}{action}; to switch, as "
            f"{thought}{_block(self.switch_tag, SWITCH)}{new}{action}. Write nothing else."
        )

    def parse(self, reply: str, finish: Finish) -> Move:
        """The action of a well-formed reply, or a fault."""
        parts = self._parts(reply)
        return move_of(parts.action if parts else None, finish)

    def thought(self, reply: str) -> str | None:
        """The text between the think tags, stripped."""
        parts = self._parts(reply)
        return parts.thought if parts else None

    def plan(self, reply: str) -> Plan | None:
        """What a reply says about the sub-goal; None = it is not well-formed."""
        parts = self._parts(reply)
        return parts.plan if parts else None

    def go_on(self, subgoal: str, reply: str, finish: Finish) -> tuple[Move, Plan | None]:
        """The move and the plan of a reply to a prompt that showed a sub-goal.

        Args:
            subgoal: the one that was shown.
            reply: the text.
            finish: how sampling ended.

        Returns:
            What `parse` and `plan` say, and a format fault where a copied sub-goal is no copy. A
            fault has no plan: the sub-goal stays as it was.
        """
        move, plan = self.parse(reply, finish), self.plan(reply)
        if move.action is None or plan is None:
            return move, None
        if not plan.switch and plan.subgoal not in (None, subgoal):
            return Move(None, Outcome.FORMAT), None
        return move, plan

    def before_action(self, thought: str | None) -> str:
        """A reply that keeps the sub-goal of the start, up to the first character of its action."""
        return self._before(thought, NO_SUBGOAL, switch=False)

    def action_text(self, action: str) -> str:
        """The action and the closing action tag."""
        return f"{action}</{self.action_tag}>"

    def render(self, thought: str | None, action: str) -> str:
        """The canonical reply that keeps the sub-goal of the start.

        Raises:
            ConfigError: thought or action hold one of the tags or are not in plain form.
        """
        return self.render_plan(thought, NO_SUBGOAL, action, switch=False)

    def render_plan(self, thought: str | None, subgoal: str, action: str, *, switch: bool) -> str:
        """The canonical reply.

        Args:
            thought: what comes first, or None.
            subgoal: the one that it switches to, or keeps.
            action: what is done.
            switch: whether it switches.

        Raises:
            ConfigError: a part holds one of the tags or is not in plain form.
        """
        reply = self._before(thought, subgoal, switch=switch) + self.action_text(action)
        parts = self._parts(reply)
        written = subgoal if switch or self.copied else None
        if parts is None or (parts.plan.switch, parts.plan.subgoal, parts.action) != (
            switch,
            written,
            action,
        ):
            raise ConfigError(
                f"action {action!r} with sub-goal {subgoal!r} and thought {thought!r} cannot be "
                "written between tags; no part holds a tag, and neither action nor sub-goal is "
                "empty or has doubled or outer spaces: rename it in the game or choose another "
                "parser"
            )
        return reply

    def _before(self, thought: str | None, subgoal: str, *, switch: bool) -> str:
        if thought is not None and self.think == "none":
            raise ConfigError(
                "parser.think='none' leaves no place for a thought; set it to 'optional', or "
                "leave the thought out"
            )
        head = ""
        if thought is not None or self.think == "required":
            head = _block(self.think_tag, thought or "")
        head += _block(self.switch_tag, SWITCH if switch else KEEP)
        goal = _block(self.subgoal_tag, subgoal) if switch or self.copied else ""
        return f"{head}{goal}<{self.action_tag}>"

    def _parts(self, reply: str) -> _Parts | None:
        """The parts of a well-formed reply, else None.

        Only counts and searches for fixed texts: linear in the length of the reply.
        """
        if any(reply.count(tag) > 1 for tag in self._tags):
            return None
        place, end = 0, len(reply.rstrip())
        found: dict[str, tuple[int, str]] = {}  # first character of the block, what it holds
        for name in (self.think_tag, self.switch_tag, self.subgoal_tag, self.action_tag):
            while place < end and reply[place].isspace():
                place += 1
            opening, closing = f"<{name}>", f"</{name}>"
            if not reply.startswith(opening, place):
                continue
            close = reply.find(closing, place)
            if close < 0:
                return None
            found[name] = place, reply[place + len(opening) : close]
            place = close + len(closing)
        if place != end or any(tag in text for _, text in found.values() for tag in self._tags):
            return None
        return self._checked(found)

    def _checked(self, found: dict[str, tuple[int, str]]) -> _Parts | None:
        """The parts, if those are there that must be and no others."""
        if self.switch_tag not in found or self.action_tag not in found:
            return None
        thought = found.get(self.think_tag)
        if self.think != "optional" and (thought is None) != (self.think == "none"):
            return None
        said = found[self.switch_tag][1].strip()
        switch = said == SWITCH
        written = found.get(self.subgoal_tag)
        if said not in (KEEP, SWITCH) or (written is None) == (switch or self.copied):
            return None
        at, action = found[self.action_tag][0], plain(found[self.action_tag][1])
        subgoal = None if written is None else plain(written[1])
        if not action or subgoal == "":
            return None
        plan = Plan(switch, subgoal, at if written is None else written[0], at)
        return _Parts(None if thought is None else thought[1].strip(), plan, action)


def _block(tag: str, text: str) -> str:
    return f"<{tag}>{text}</{tag}>"
