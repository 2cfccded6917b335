r"""Parsers: the written form of a reply, read and written by one object.

A parser reads an action out of a reply (`parse`) and writes the canonical reply for an action
(`render`), so that demonstrations, scoring and reading can never disagree:

    parse(render(thought, action), Finish.STOP) == Move(action)
    render(thought, action) == before_action(thought) + action_text(action)

What all of them promise:

- Any text gives a `Move`, never an exception, in time linear in its length.
- The action comes back as it was written, case included: surrounding space is dropped and each
  inner run of white space becomes one space. Whether "Bet" means "bet" is the game's affair.
- A reply that is complete counts, even when the token limit or the context's end fell on its very
  last token; one that was cut before is a fault of that name. A reply after its deadline is a
  fault however good it is, since its deadline says when, not what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from marl_llm.errors import ConfigError
from marl_llm.types import Finish, Move, Outcome

_FAULT = {
    Finish.STOP: Outcome.FORMAT,
    Finish.LENGTH: Outcome.LENGTH,
    Finish.CONTEXT: Outcome.CONTEXT,
    Finish.TIME: Outcome.TIME,
}
_BRACES = re.compile(r"[{}]")


class Parser(Protocol):
    """What a role needs of a written form. Settings only: equal parsers read alike."""

    def __hash__(self) -> int:
        """So that readings can be cached."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Text that ends a reply and stays part of it; () = only the model's end of turn does."""

    @property
    def instructions(self) -> str:
        """The form in words, for a prompt; shows no action, so none can be illegal."""

    def parse(self, reply: str, finish: Finish) -> Move:
        """The action that a reply names, or the fault that stands in its place."""

    def thought(self, reply: str) -> str | None:
        """The thought of a well-formed reply; None when it has none or is not well-formed."""

    def before_action(self, thought: str | None) -> str:
        """A reply up to the first character of its action."""

    def action_text(self, action: str) -> str:
        """The action and what closes it; its probability after `before_action` is the action's."""

    def render(self, thought: str | None, action: str) -> str:
        """The canonical reply; a thought of None is left out, or empty where one must be."""


def move_of(action: str | None, finish: Finish) -> Move:
    """The move for an action read from a complete reply (None or "" = not readable)."""
    if action and finish is not Finish.TIME:
        return Move(action)
    return Move(None, _FAULT[finish])


def plain(text: str) -> str:
    """Surrounding white space dropped, inner runs of it made one space."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Tags:
    """``<think>...</think><answer>ACTION</answer>`` and nothing else, from first to last character.

    White space around the two blocks and inside them is free. Each tag stands at most once, spelled
    exactly so, case included; zero answers, two answers, or any other text is a format fault. The
    thought may be empty, and so may not the action.
    """

    think: Literal["required", "optional", "none"] = "optional"
    opened: bool = False  # the prompt ends with the opening think tag, so the reply begins after it
    think_tag: str = "think"
    answer_tag: str = "answer"

    def __post_init__(self) -> None:
        if self.think not in ("required", "optional", "none"):
            raise ConfigError(
                f"parser.think must be 'required', 'optional' or 'none', got {self.think!r}"
            )
        if self.opened and self.think == "none":
            raise ConfigError(
                "parser.opened says that the prompt opens a thought, parser.think='none' forbids "
                "one; set think to 'required' or opened to false"
            )
        for tag in (self.think_tag, self.answer_tag):
            if not tag or not set(tag).isdisjoint("<>/") or any(map(str.isspace, tag)):
                raise ConfigError(
                    f"a tag's name is not empty and free of '<', '>', '/' and spaces, got {tag!r}"
                )
        if self.think_tag == self.answer_tag:
            raise ConfigError(
                f"thought and answer need different tags, both are {self.think_tag!r}"
            )

    @property
    def stop(self) -> tuple[str, ...]:
        """The closing answer tag."""
        return (f"</{self.answer_tag}>",)

    @property
    def instructions(self) -> str:
        """The form in words."""
        answer = f"<{self.answer_tag}>your action</{self.answer_tag}>"
        if self.think == "none":
            return f"Reply with exactly one action and nothing else, as {answer}."
        thought = f"<{self.think_tag}>your thoughts</{self.think_tag}>"
        need = "Think first" if self.think == "required" else "You may think first"
        return (
            f"{need}, then name exactly one action. Reply as {thought}{answer} "
            "and write nothing else."
        )

    def parse(self, reply: str, finish: Finish) -> Move:
        """The action between the answer tags of a well-formed reply, or a fault."""
        blocks = self._blocks(reply)
        return move_of(blocks[1] if blocks else None, finish)

    def thought(self, reply: str) -> str | None:
        """The text between the think tags, stripped."""
        blocks = self._blocks(reply)
        return blocks[0] if blocks else None

    def before_action(self, thought: str | None) -> str:
        """The thought's block, if there is one, and the opening answer tag."""
        return f"{self._thought_block(thought)}<{self.answer_tag}>"

    def action_text(self, action: str) -> str:
        """The action and the closing answer tag."""
        return f"{action}</{self.answer_tag}>"

    def render(self, thought: str | None, action: str) -> str:
        """The canonical reply.

        Raises:
            ConfigError: thought or action hold one of the tags or are not in plain form.
        """
        reply = self.before_action(thought) + self.action_text(action)
        blocks = self._blocks(reply)
        if blocks is None or blocks[1] != action:
            raise ConfigError(
                f"action {action!r} with thought {thought!r} cannot be written between "
                f"{self.answer_tag!r} tags; actions and thoughts hold no tags, and an action "
                "neither doubled nor outer spaces: rename it in the game or choose another parser"
            )
        return reply

    def _thought_block(self, thought: str | None) -> str:
        if thought is None and self.think != "required" and not self.opened:
            return ""
        if self.think == "none":
            raise ConfigError(
                "parser.think='none' leaves no place for a thought; set it to 'optional', or "
                "leave the thought out"
            )
        head = "" if self.opened else f"<{self.think_tag}>"
        return f"{head}{thought or ''}</{self.think_tag}>"

    def _blocks(self, reply: str) -> tuple[str | None, str] | None:
        """(thought, action) of a well-formed reply, else None.

        Only counts and searches for fixed texts: linear, where a pattern such as ``.*?`` between
        tags would be tried from every opening tag of a hostile reply.
        """
        opening, closing = f"<{self.answer_tag}>", f"</{self.answer_tag}>"
        text = reply.strip()
        if not text.endswith(closing) or text.count(closing) != 1 or text.count(opening) != 1:
            return None
        before, _, rest = text.partition(opening)
        action = plain(rest[: -len(closing)])
        if not action:
            return None
        opening, closing = f"<{self.think_tag}>", f"</{self.think_tag}>"
        if opening in action or closing in action:
            return None
        before = before.strip()
        if self.opened:
            before = opening + before
        if not before:
            return None if self.think == "required" else (None, action)
        if (
            self.think == "none"
            or not before.startswith(opening)
            or not before.endswith(closing)
            or before.count(opening) != 1
            or before.count(closing) != 1
        ):
            return None
        return before[len(opening) : -len(closing)].strip(), action


@dataclass(frozen=True, slots=True)
class Boxed:
    r"""Free text with ``\boxed{ACTION}``; the last box is the answer, nested braces are its own.

    The form of SPIRAL (arXiv 2506.24119). Earlier boxes are drafts: a thought that tries out a
    move and then decides otherwise is read as decided. When the last box is empty or its brace
    never closes there is no answer, and no earlier box takes its place. Text may follow the box
    of a reply that ended by itself; a reply cut by a limit counts only when nothing follows,
    since it might have gone on to another box.
    """

    @property
    def stop(self) -> tuple[str, ...]:
        """None: a closing brace may also stand inside the thought or the action."""
        return ()

    @property
    def instructions(self) -> str:
        """The form in words."""
        return (
            "Reason step by step, then put exactly one action in a box: \\boxed{your action}. "
            "The last box counts."
        )

    def parse(self, reply: str, finish: Finish) -> Move:
        """The action in the last box, or a fault."""
        box = _last_box(reply)
        if box is None:
            return move_of(None, finish)
        start, end = box
        if finish is not Finish.STOP and reply[end + 1 :].strip():
            return move_of(None, finish)
        return move_of(plain(reply[start:end]), finish)

    def thought(self, reply: str) -> str | None:
        """The text before the last box, stripped; None when it is empty."""
        box = _last_box(reply)
        return (reply[: box[0] - len(r"\boxed{")].strip() or None) if box else None

    def before_action(self, thought: str | None) -> str:
        """The thought on lines of its own, and the opening of the box."""
        return f"{thought}\n\\boxed{{" if thought else "\\boxed{"

    def action_text(self, action: str) -> str:
        """The action and the closing brace."""
        return f"{action}}}"

    def render(self, thought: str | None, action: str) -> str:
        """The canonical reply.

        Raises:
            ConfigError: the action's braces do not balance, or it is not in plain form.
        """
        reply = self.before_action(thought) + self.action_text(action)
        if self.parse(reply, Finish.STOP).action != action:
            raise ConfigError(
                f"action {action!r} cannot be written in a box; its braces must balance, and it "
                "holds no box, doubled or outer spaces: rename it in the game or choose another "
                "parser"
            )
        return reply


def _last_box(text: str) -> tuple[int, int] | None:
    r"""(start, end) of what the last ``\boxed{`` holds; None if it is missing or never closed."""
    opening = text.rfind(r"\boxed{")
    if opening < 0:
        return None
    start = opening + len(r"\boxed{")
    depth = 1
    for brace in _BRACES.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return start, brace.start()
    return None
