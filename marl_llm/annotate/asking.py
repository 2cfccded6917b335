"""Asking a judge: questions in words, several replies to each, and a strict reading of them.

A reply may think first and must end with its only verdict, ``<verdict>...</verdict>``. Anything
else is no verdict, and nor is a reply that came late. What may stand in one is up to who asks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from marl_llm.annotate.material import Voice
from marl_llm.credit import checks
from marl_llm.errors import ConfigError
from marl_llm.serve import generate
from marl_llm.types import Completion, Finish, Request, Sampling

Said = TypeVar("Said", bound=Hashable)

OPENING, CLOSING = "<verdict>", "</verdict>"
GRACE = 60.0  # seconds beyond a deadline until an engine that does not answer is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a judge is asked. Base of the annotators that do."""

    samples: int = 1  # replies per question, which vote
    budget: int = 4096  # replies per update; of more questions some are drawn, the rest stay open
    temperature: float = 0.0  # of sampling; several samples need one above 0
    max_tokens: int = 256  # of a reply
    seconds: float = 600.0  # after which a reply comes too late

    def __post_init__(self) -> None:
        name = type(self).__name__
        checks.within(f"{name}.samples", self.samples, 1)
        checks.within(f"{name}.budget", self.budget, 0)
        checks.within(f"{name}.temperature", self.temperature, 0.0)
        checks.within(f"{name}.max_tokens", self.max_tokens, 1)
        checks.within(f"{name}.seconds", self.seconds, 0.0)
        if self.samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"{name}.samples={self.samples} at temperature 0 are as many equal replies; set "
                "temperature to 0.7, or samples to 1"
            )

    def ask(
        self, judge: Voice, questions: Sequence[str], rng: np.random.Generator
    ) -> list[list[str]]:
        """The verdicts on each question, none where no reply holds one.

        Args:
            judge: the model.
            questions: in words; equal ones are asked once.
            rng: of the draws of replies, and of which questions the budget is spent on.
        """
        distinct = list(dict.fromkeys(questions))
        affordable = self.budget // self.samples
        if len(distinct) > affordable:
            chosen = np.sort(rng.permutation(len(distinct))[:affordable])
            distinct = [distinct[i] for i in chosen.tolist()]
        verdicts = {question: list[str]() for question in distinct}
        for question, reply in self._replies(judge, distinct, rng):
            verdict = read_verdict(judge.chat.decode(reply.ids), reply.finish)
            if verdict is not None:
                verdicts[question].append(verdict)
        return [verdicts.get(question, []) for question in questions]

    def _replies(
        self, judge: Voice, questions: Sequence[str], rng: np.random.Generator
    ) -> list[tuple[str, Completion]]:
        sampling = Sampling(
            temperature=self.temperature, max_tokens=self.max_tokens, stop=(CLOSING,)
        )
        asked = [question for question in questions for _ in range(self.samples)]
        seeds = rng.integers(2**62, size=len(asked)).tolist()
        deadline = time.monotonic() + self.seconds
        requests = [
            Request(number, judge.chat.first("", question), sampling, seed, deadline)
            for number, (question, seed) in enumerate(zip(asked, seeds, strict=True))
        ]
        replies = generate(judge.engine, requests, self.seconds + GRACE) if requests else []
        return list(zip(asked, replies, strict=True))


def read_verdict(reply: str, finish: Finish) -> str | None:
    """What stands in the one verdict at the end of a reply, white space tidied; None = no verdict.

    Takes time linear in the reply.
    """
    text = reply.strip()
    if finish is Finish.TIME or not text.endswith(CLOSING):
        return None
    if text.count(OPENING) != 1 or text.count(CLOSING) != 1:
        return None
    said = " ".join(text[text.index(OPENING) + len(OPENING) : -len(CLOSING)].split())
    return said or None


def majority(verdicts: Sequence[frozenset[Said]]) -> frozenset[Said] | None:
    """What more than half of the readable verdicts say; None = there are none."""
    if not verdicts:
        return None
    votes = Counter(thing for said in verdicts for thing in said)
    return frozenset(thing for thing, count in votes.items() if 2 * count > len(verdicts))
