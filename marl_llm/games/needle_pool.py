"""Needle pool: have boxes opened by others, many at once, and know what each call was worth."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Call, Delegation, Pay, Report, Step, Use
from marl_llm.games.faults import NOTHING, Fault, Faults, Kind, spoiled
from marl_llm.games.text_game import View
from marl_llm.seeds import generator

FAINT, LOUD = 1, 3  # what a small and a large needle count
CLUES = 3  # a key is 0, 1 or 2 places after its lock
ROLES = ("planner", "executor", "opener")

Reward = Literal["sum", "product"]


@dataclass(frozen=True, slots=True)
class Size:
    """How hard a level is."""

    boxes: int
    fewest: int  # needles of an episode
    most: int
    keys: int
    calls: int  # that the planner can make, at least as many as there can be needles
    inner: int  # boxes in a crate


LEVELS = {
    1: Size(2, 1, 1, 3, 2, 2),
    2: Size(3, 1, 2, 4, 3, 2),
    3: Size(4, 1, 3, 4, 4, 2),
    4: Size(6, 2, 4, 6, 5, 2),
    5: Size(8, 3, 5, 8, 6, 3),
}


@dataclass(frozen=True, slots=True)
class Box:
    """A locked box, a crate of boxes, or the whole pool."""

    name: str
    weight: int = 0  # of the needle in it, 0 = none
    lock: str = ""
    clue: int = 0
    key: str = ""  # that opens it
    inner: tuple[Box, ...] = ()

    def leaves(self) -> Iterator[Box]:
        """The boxes with a lock in it, or itself."""
        if not self.inner:
            yield self
        for box in self.inner:
            yield from box.leaves()

    @property
    def hint(self) -> str:
        """How it rattles."""
        weight = sum(leaf.weight for leaf in self.leaves())
        return "loud" if weight >= LOUD else "faint" if weight else "silent"

    @property
    def card(self) -> str:
        """All that is told to the agent who is called for it."""
        if not self.inner:
            return f"{self.name} {self.lock} {self.clue}"
        return " ".join([self.name, *(f"{box.name} {box.hint}" for box in self.inner)]).strip()


class NeedlePool(Delegation):
    """Some boxes hold a needle. The planner hears how they rattle and sends executors to open them.

    Any number of executors is sent in one action, each to one box, two to the same box if the
    planner likes. An executor sees a lock and a clue and must name the key; it may inspect the lock
    first, which shows the key and costs a turn. The planner is told which boxes are open and can
    send more, until it is done. What it has found is then counted, so the exact worth of every call
    is known: `worth` and `call_values`.

    With ``depth=2`` each box is a crate, whose executor sends an opener to each box in it.
    """

    def __init__(
        self,
        *,
        name: str = "needle_pool",
        level: int = 3,
        reward: Reward = "sum",
        depth: int = 1,
        calls: int | None = None,
        rounds: int = 2,
        pay: Pay | None = None,
        faults: Faults | None = None,
        list_legal: bool = True,
    ):
        """A game of one level.

        Args:
            name: of the game, also in records.
            level: 1 to 5, see `LEVELS`.
            reward: an answer is right by the share of the needles that were found, by what they
                count ("sum"), or only if all of them were found ("product").
            depth: 1 = boxes, 2 = crates of boxes.
            calls: executors that an episode has; None = as the level has it.
            rounds: turns in which the planner can call; it has one more. So has a crate's executor.
            pay: what the agents get.
            faults: how often an inspection fails; None = never.
            list_legal: of no effect, since actions are free text.
        """
        if level not in LEVELS:
            raise GameError(f"level of {name} is one of {list(LEVELS)}, got {level}")
        if reward not in get_args(Reward):
            raise GameError(f"reward of {name} is 'sum' or 'product', got {reward!r}")
        if depth not in (1, 2):
            raise GameError(f"depth of {name} is 1 or 2, got {depth}")
        self.size = size = LEVELS[level]
        calls = size.calls if calls is None else calls
        if calls < size.most:
            raise GameError(
                f"{name} level {level} has up to {size.most} needles, so calls must be at least "
                f"that, got {calls}"
            )
        self.reward, self.depth, self.keys = reward, depth, string.ascii_lowercase[: size.keys]
        crates = {"executor": rounds + 1, "opener": 3} if depth == 2 else {"executor": 3}
        openers = {"opener": calls * size.inner} if depth == 2 else {}
        self._budget = {"planner": calls, "executor": size.inner}  # calls that one agent can make
        super().__init__(
            name=name,
            seats={"planner": 1, "executor": calls, **openers},
            turns={"planner": rounds + 1, **crates},
            pay=pay,
            list_legal=list_legal,
            faults=faults,
        )

    def rules(self) -> str:
        """All of it."""
        return "\n".join([self._about(), *(self._of_role(role) for role in self._seats)])

    def instructions(self, role: str) -> str:
        """What all know, and what this role does."""
        return f"{self._about()}\n{self._of_role(role)}"

    def gap(self) -> float:
        """The smallest difference between two endings of one question."""
        shares = (self.pay.correct, self.pay.sub_main, self.pay.sub_own)
        most = LOUD * self.size.most
        parts = [part / most for part in shares if part] if self._partial else []
        return min([super().gap(), *parts])

    def question(self, rng: np.random.Generator, options: Mapping[str, Any]) -> str:
        """Needles of chance in boxes with locks of chance."""
        size = self.size
        names = list(string.ascii_uppercase[: size.boxes])
        inner = size.inner if self.depth == 2 else 0
        locked = [f"{name}{k + 1}" for name in names for k in range(inner)] or names
        needles = int(rng.integers(size.fewest, size.most + 1))
        held = {locked[place] for place in rng.permutation(len(locked))[:needles].tolist()}
        made = {name: self._box(rng, name, name in held) for name in locked}
        crates = [Box(n, inner=tuple(made[f"{n}{k + 1}"] for k in range(inner))) for n in names]
        self._pool = Box("", inner=tuple(crates) if inner else tuple(made.values()))
        boxes = [self._pool, *(crates if inner else []), *made.values()]
        self._boxes = {box.card: box for box in boxes}
        return self._pool.card

    def read(self, call: Call, action: str) -> Step | None:
        """Open and done where there are boxes, inspect and key where there is a lock."""
        box = self._boxes[call.task]
        word, *names = action.split(" ")
        if not box.inner:
            if word == "key" and len(names) == 1 and len(names[0]) == 1 and names[0] in self.keys:
                return Report(names[0])
            return Use("inspect") if action == "inspect" else None
        if action == "done":
            return Report(action)
        inner = {each.name: each.card for each in box.inner}
        fits = 0 < len(names) <= self._left(call) and inner.keys() >= set(names)
        if word != "open" or not fits:
            return None
        below = ROLES[ROLES.index(call.role) + 1]
        return Ask(tuple((below, inner[name]) for name in names))

    def use(self, call: Call, step: Use) -> None:
        """Inspect the lock: its key as it came back, which may be none."""
        call.notes.append(self._faulty(self._boxes[call.task].key, step.fault))

    def right(self, call: Call) -> float:
        """Whether the key fits, or how much was found by whom it called."""
        box = self._boxes[call.task]
        if box.inner:
            return self._share(box, self._opened(call))
        return float(call.report == box.key)

    def told(self, call: Call) -> View:
        """The box and what was found out about it."""
        box = self._boxes[call.task]
        if not box.inner:
            found = "".join(f" {key or '?'}" for key in dict.fromkeys(call.notes))
            known = "".join(
                f" You inspected the lock: {f'its key is {key}' if key else NOTHING}."
                for key in dict.fromkeys(call.notes)
            )
            seen = f"Its lock is {box.lock}, its clue {box.clue}.{known}"
            return View(
                f"You are to open box {box.name}. {seen}",
                f"{box.lock} {box.clue}{found}",
                f"{call.task}{found}",
            )
        many = "crates" if self.depth == 2 else "boxes"
        what = f"You are to empty crate {box.name}. In it: " if box.name else f"The {many}: "
        hints = ", ".join(f"{each.name} {each.hint}" for each in box.inner)
        reports = [self._reported(each) for each in call.calls]
        said = "".join(f" {report}." for report in reports)
        left = self._left(call)
        return View(
            f"{what}{hints}.{said} You can send {left} more.",
            " ".join([hints.replace(",", ""), str(left), *reports]),
            f"{call.task} {reports}",
        )

    def solve(self, call: Call, rng: np.random.Generator) -> str:
        """Inspect and name the key; send to all needles that are not found."""
        box = self._boxes[call.task]
        if not box.inner:
            return f"key {box.key}" if call.notes else "inspect"
        opened = self._opened(call)
        names = [
            each.name
            for each in box.inner
            if any(leaf.weight and leaf.name not in opened for leaf in each.leaves())
        ][: self._left(call)]
        return " ".join(["open", *names]) if names else "done"

    def guess(self, call: Call, rng: np.random.Generator) -> str:
        """Some key, or done."""
        if self._boxes[call.task].inner:
            return "done"
        return f"key {self.keys[int(rng.integers(len(self.keys)))]}"

    def wander(self, call: Call, rng: np.random.Generator) -> str:
        """Inspect, or send to some boxes."""
        inner = self._boxes[call.task].inner
        if not inner:
            return "inspect"
        count = int(rng.integers(max(self._left(call), 1))) + 1
        return " ".join(["open", *(inner[k].name for k in rng.integers(len(inner), size=count))])

    def sample(self, agent: str, rng: np.random.Generator) -> str:
        """Inspect or name a key; be done or send to some boxes."""
        call = self._calls[agent]
        inner = self._boxes[call.task].inner
        last = rng.random() < (0.25 if inner else 0.75)
        return (
            self.guess(call, rng)
            if last or (inner and not self._left(call))
            else self.wander(call, rng)
        )

    def worth(self, kept: Set[int]) -> float:
        """How right the answer would be if these calls alone had reported.

        Args:
            kept: numbers of calls below the planner in the order of `all_calls`, from 0.

        Returns:
            The share of the needles that they found, or 1 if those are all and else 0.
        """
        calls = self.all_calls()[1:]
        return self._share(self._pool, self._opened(self._root, {calls[i] for i in kept}))

    # Inside.

    @property
    def _partial(self) -> bool:
        """Whether an answer or a report can be right in part."""
        return self.reward == "sum"

    def _box(self, rng: np.random.Generator, name: str, held: bool) -> Box:
        lock, clue = int(rng.integers(len(self.keys))), int(rng.integers(CLUES))
        weight = (FAINT, LOUD)[int(rng.integers(2))] if held else 0
        key = self.keys[(lock + clue) % len(self.keys)]
        return Box(name, weight, self.keys[lock], clue, key)

    def _faulty(self, key: str, fault: Fault | None) -> str:
        """A key after a content fault: nothing, since half of a letter is none, or another key."""
        if fault is None or fault.kind is not Kind.WRONG:
            return spoiled(key, fault)
        others = self.keys.replace(key, "")
        return others[int(generator(fault.seed).integers(len(others)))]

    def _left(self, call: Call) -> int:
        """Calls that this agent can still make."""
        return self._budget[call.role] - len(call.calls)

    def _opened(self, call: Call, kept: Set[Call] | None = None) -> set[str]:
        """The locked boxes that were opened below a call; `kept` = only these calls reported."""
        opened: set[str] = set()
        for each in call.calls:
            if each.report is None or (kept is not None and each not in kept):
                continue
            box = self._boxes[each.task]
            if box.inner:
                opened |= self._opened(each, kept)
            elif each.report == box.key:
                opened.add(box.name)
        return opened

    def _share(self, box: Box, opened: Set[str]) -> float:
        """How much of what is in a box was found; all of it where there is nothing."""
        total = sum(leaf.weight for leaf in box.leaves())
        found = sum(leaf.weight for leaf in box.leaves() if leaf.name in opened)
        return found / max(total, 1) if self._partial and total else float(found == total)

    def _reported(self, call: Call) -> str:
        """What a caller reads of a call."""
        box = self._boxes[call.task]
        if call.open:
            return f"{box.name} not back"
        if call.report is None:
            return f"{box.name} no report"
        opened = self._opened(call)
        if box.inner:
            return f"{box.name} {' '.join([*sorted(opened), 'open']) if opened else 'shut'}"
        return f"{box.name} {'open' if call.report == box.key else 'shut'}"

    def _about(self) -> str:
        size, deep = self.size, self.depth == 2
        pool = f"There are {size.boxes} " + (
            f"crates with {size.inner} boxes each. Some boxes hold" if deep else "boxes. Some hold"
        )
        counts = {
            "sum": "How right the answer is, is the share of the needles that were found.",
            "product": "The answer is right if all needles were found.",
        }[self.reward]
        heard = f"A crate is loud if what is in it counts {LOUD} or more. " if deep else ""
        return (
            f"{pool} a needle: a loud one a large needle, which counts {LOUD}, a faint one a small "
            f"needle, which counts {FAINT}, a silent one none. {heard}{counts}"
        )

    def _of_role(self, role: str) -> str:
        turns = self._turns[role]
        if role == self.planner or (self.depth == 2 and role == "executor"):
            below = ROLES[ROLES.index(role) + 1]
            what = "crate" if self.depth == 2 and role == self.planner else "box"
            many = "crates" if what == "crate" else "boxes"
            who = "The planner" if role == self.planner else "An executor has one crate and"
            first, second = ("A", "B") if role == self.planner else ("A1", "A2")
            return (
                f"{who} sends one {below} to each {what} that is to be opened, any number at once, "
                f"at most {self._budget[role]} in all, and says done within {turns} turns.\n"
                f"Actions: open and the names of {many}, as in open {first} or open {first} "
                f"{second}; done."
            )
        order = " ".join(self.keys)
        return (
            f"An {role} names the key of one box. It is as many places after the lock as the clue "
            f"says, in the order {order} and then from {self.keys[0]} again. To inspect the lock "
            f"shows the key and takes a turn; there are {turns}.\n"
            f"Actions: inspect; key and a letter, as in key {self.keys[0]}."
        )
