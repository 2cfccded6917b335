"""Relay chain: follow a chain of keys to a digit, one link a call, through others' eyes."""

from __future__ import annotations

import string
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Call, Delegation, Pay, Report, Step, Use
from marl_llm.games.faults import NOTHING as NO_PAGE
from marl_llm.games.faults import Fault, Faults, Kind, spoiled
from marl_llm.games.text_game import View
from marl_llm.seeds import generator

DIGITS = tuple(string.digits)
NOTHING = "?"  # what stands for a report, or a page, that did not come
REMARKS = (  # what pages are filled with
    *("amber", "basin", "cedar", "delta", "ember", "fable", "grove", "hazel", "ivory", "jetty"),
    *("kettle", "linen", "maple", "nectar", "olive", "pebble", "quartz", "river", "saddle"),
    *("timber", "umber", "velvet", "willow", "yarrow"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How hard a level is."""

    keys: int
    shortest: int  # links from the question to the digit
    longest: int


LEVELS = {
    1: Size(4, 1, 1),
    2: Size(8, 1, 2),
    3: Size(8, 1, 3),
    4: Size(12, 2, 4),
    5: Size(16, 3, 6),
}


class RelayChain(Delegation):
    """A hidden table leads from each key to another key or to a digit; where does one key end?

    Only executors can look into the table, and an executor is told nothing but the key that it was
    asked about; it reports one symbol. Only the planner knows the question, and must ask for each
    link in turn. A report is right if it is what its key leads to.

    Who looks a key up sees its page: where it leads, and any number of remarks that mean nothing.
    An executor reports one symbol of a page; with ``solo`` there is nobody to call, and the one
    agent that looks up and answers has all pages before it.
    """

    def __init__(
        self,
        *,
        level: int = 3,
        calls: int = 4,
        remarks: int = 0,
        solo: bool = False,
        pay: Pay | None = None,
        faults: Faults | None = None,
        list_legal: bool = True,
    ):
        """A game of one level.

        Args:
            level: 1 to 5, see `LEVELS`.
            calls: executors that an episode has; a planner has one turn more.
            remarks: words on the page of each key behind the symbol that it leads to.
            solo: the planner looks up for itself, in as many turns.
            pay: what the agents get.
            faults: how often a look into the table fails; None = never.
            list_legal: say in each observation which actions are legal.
        """
        if level not in LEVELS:
            raise GameError(f"level of relay_chain is one of {list(LEVELS)}, got {level}")
        self.size = LEVELS[level]
        if calls < self.size.longest:
            raise GameError(
                f"relay_chain level {level} has chains of {self.size.longest} links, so calls must "
                f"be at least that, got {calls}"
            )
        if remarks < 0:
            raise GameError(f"a page of relay_chain has at least 0 remarks, got {remarks}")
        self.solo, self.remarks = solo, remarks
        self.keys = tuple(string.ascii_uppercase[: self.size.keys])
        looks = [f"get {key}" for key in self.keys]
        asks = [f"ask {key}" for key in self.keys]
        answers = [f"answer {digit}" for digit in DIGITS]
        reports = [f"report {symbol}" for symbol in (*self.keys, *DIGITS)]
        super().__init__(
            name="relay_chain",
            seats={"planner": 1} if solo else {"planner": 1, "executor": calls},
            turns={"planner": calls + 1, "executor": 3},
            pay=pay,
            actions=(*looks, *answers) if solo else (*asks, *answers, *looks, *reports),
            list_legal=list_legal,
            faults=faults,
        )

    def rules(self) -> str:
        """Rules and actions."""
        keys = f"{self.keys[0]} to {self.keys[-1]}"
        table = (
            f"There is a table in which each of the keys {keys} leads to another key or to a "
            "digit. Whoever follows it from the key of the question ends at a digit."
        )
        if self.solo:
            return (
                f"{table} You look up one key a turn and then answer with that digit.\n"
                f"Actions: {', '.join(self.actions)}."
            )
        return (
            f"{table} The planner must answer with that digit and cannot see the table. It asks an "
            f"executor about one key a turn, at most {self._seats['executor']} in all. An executor "
            "is asked where one key leads; it looks up one key a turn and then reports one key or "
            f"digit, after at most {self._turns['executor']} turns in all.\n"
            f"Actions of the planner: {self._listed('ask', 'answer')}.\n"
            f"Actions of an executor: {self._listed('get', 'report')}."
        )

    def question(self, rng: np.random.Generator, options: Mapping[str, Any]) -> str:
        """A chain of chance, and a table of chance around it."""
        links = int(rng.integers(self.size.shortest, self.size.longest + 1))
        chain = [self.keys[place] for place in rng.permutation(len(self.keys))[:links]]
        symbols = (*self.keys, *DIGITS)
        self.links = {key: symbols[int(rng.integers(len(symbols)))] for key in self.keys}
        self.links |= dict(zip(chain, [*chain[1:], DIGITS[int(rng.integers(10))]], strict=True))
        self.chain = tuple(chain)
        drawn = rng.integers(len(REMARKS), size=(len(self.keys), self.remarks))
        self.beside = {  # the remarks of each key's page
            key: " ".join([REMARKS[word] for word in words])
            for key, words in zip(self.keys, drawn.tolist(), strict=True)
        }
        return chain[0]

    def read(self, call: Call, action: str) -> Step | None:
        """Ask and answer for the planner, get and report for an executor."""
        word, _, symbol = action.partition(" ")
        planner = call.role == self.planner
        if planner and word == "answer" and symbol in DIGITS:
            return Report(symbol)
        if symbol in self.keys:
            if word == "ask" and planner and not self.solo:
                return Ask((("executor", symbol),))
            if word == "get" and (self.solo or not planner):
                return Use("get", symbol)
        if word == "report" and not planner and symbol in (*self.keys, *DIGITS):
            return Report(symbol)
        return None

    def use(self, call: Call, step: Use) -> None:
        """Look a key up: its page as it came back, which may be empty."""
        key = step.argument
        page = (self.links[key], *self.beside[key].split())
        call.notes.append((key, " ".join(self._faulty(page, step.fault))))

    def right(self, call: Call) -> float:
        """Whether the digit is where the chain ends, or the report where the key leads."""
        want = self.links[self.chain[-1]] if call.caller is None else self.links[call.task]
        return float(call.report == want)

    def told(self, call: Call) -> View:
        """The key it was given, and what it found or was told since."""
        if call.role == self.planner and not self.solo:
            found = [(each.task, each.report or NOTHING) for each in call.calls]
            said = [
                f"The executor whom you asked about {key} reports {symbol}."
                if symbol != NOTHING
                else f"The executor whom you asked about {key} gives no report."
                for key, symbol in found
            ]
        else:
            found = [(key, page or NOTHING) for key, page in call.notes]
            said = [
                f"You looked up {key}. Its page: {page or NO_PAGE}." for key, page in call.notes
            ]
        asked = f"Where does the chain end that starts at {call.task}?"
        if call.caller is not None:
            asked = f"You are asked where one key leads: {call.task}."
        text = " ".join([asked, *said])
        shown = [symbol for _, symbol in found]
        return View(text, " ".join([call.task, *shown]), f"{call.task} {found}")

    def solve(self, call: Call, rng: np.random.Generator) -> str:
        """Follow the chain, link by link; look again where nothing came back."""
        seen = {key: page[0] for key, page in call.notes if page}
        if call.caller is not None:
            return f"report {seen[call.task]}" if call.task in seen else f"get {call.task}"
        links = seen if self.solo else {each.task: each.report for each in call.calls}
        at = follow(links, call.task)
        if at in DIGITS:
            return f"answer {at}"
        return f"{'get' if self.solo else 'ask'} {at}"

    def guess(self, call: Call, rng: np.random.Generator) -> str:
        """Some digit."""
        word = "answer" if call.role == self.planner else "report"
        return f"{word} {DIGITS[int(rng.integers(len(DIGITS)))]}"

    def wander(self, call: Call, rng: np.random.Generator) -> str:
        """Ask about, or look up, some key."""
        word = "ask" if call.role == self.planner and not self.solo else "get"
        return f"{word} {self.keys[int(rng.integers(len(self.keys)))]}"

    def worth(self, kept: Set[int]) -> float:
        """What a planner who reads right could have answered from these calls' reports alone.

        Args:
            kept: numbers of calls, from 0 in the order in which the planner made them.

        Returns:
            1 if their reports lead from the question to the digit where it ends, else 0.
        """
        links = {
            call.task: call.report for place, call in enumerate(self._root.calls) if place in kept
        }
        return float(follow(links, self.chain[0]) == self.links[self.chain[-1]])

    def preserved(self, call: Call) -> bool | None:
        """Whether the key that was asked about is the one that the reports so far had led to.

        Nothing else of the question matters to an executor; to ask for another key is to lose it.
        """
        caller = call.caller
        if caller is None:
            return None
        before = caller.calls[: call.path[-1]]
        return call.task == follow({each.task: each.report for each in before}, caller.task)

    def _faulty(self, page: tuple[str, ...], fault: Fault | None) -> tuple[str, ...]:
        """The words of a page after a content fault: none, the first, or another symbol."""
        if fault is None or fault.kind is not Kind.WRONG:
            return spoiled(page, fault)
        symbol, *remarks = page
        kin = [one for one in (DIGITS if symbol in DIGITS else self.keys) if one != symbol]
        return (kin[int(generator(fault.seed).integers(len(kin)))], *remarks)

    def _listed(self, *words: str) -> str:
        return ", ".join(action for action in self.actions if action.partition(" ")[0] in words)


def follow(links: Mapping[str, str | None], key: str) -> str:
    """Where known links lead from a key: as far as they go, which in a circle is once around."""
    for _ in range(len(links)):
        key = links.get(key) or key
    return key
