"""Judges of turns: a model labels each turn, or scores it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.agents.role import check_places
from marl_llm.annotate.asking import Asking
from marl_llm.annotate.contexts import told
from marl_llm.annotate.material import Material
from marl_llm.annotate.transcripts import in_words
from marl_llm.credit import checks
from marl_llm.credit.segments import Array
from marl_llm.errors import ConfigError

PLACES = ("rules", "agent", "before", "turn", "after", "answer", "verdicts")
NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,9})?")

QUESTION = """You judge one turn of {agent} in a game.

The rules: {rules}

Before it:
{before}

The turn to judge:
{turn}

After it:
{after}

How did this turn serve {agent}? Think briefly, then end with <verdict>...</verdict>, which holds \
{verdicts}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnJudge(Asking, ABC):
    """Asks about every turn of the policy. The judge is not told how the episode ended.

    Places of the question: ``{rules}`` of the game, ``{agent}``, the ``{turn}``, up to `window`
    turns of anybody ``{before}`` and ``{after}`` it, the right ``{answer}`` if the game knows one,
    and ``{verdicts}``, what may be said.
    """

    question: str = QUESTION
    window: int = 5  # turns shown on either side

    def __post_init__(self) -> None:
        Asking.__post_init__(self)
        check_places(f"{type(self).__name__}.question", self.question, PLACES)
        checks.within(f"{type(self).__name__}.window", self.window, 0)

    @property
    @abstractmethod
    def verdicts(self) -> str:
        """What a verdict may be, in words."""

    @abstractmethod
    def value(self, verdicts: Sequence[str]) -> float:
        """What the replies to one question say together; NaN = nothing."""

    def judge(self, material: Material) -> Array:
        """The value of every turn of the policy, [N]; NaN where there is none."""
        questions = []
        for number, turn, telling in told(material):
            turns = telling.episode.turns
            start = max(0, number - self.window)
            around = {
                "before": turns[start:number],
                "after": turns[number + 1 : number + 1 + self.window],
            }
            shown = {
                side: "\n\n".join(map(in_words, some)) or "nothing" for side, some in around.items()
            }
            questions.append(
                self.question.format(
                    rules=telling.game.rules(),
                    agent=turn.observation.agent,
                    turn=in_words(turn),
                    answer=telling.answer or "not known",
                    verdicts=self.verdicts,
                    **shown,
                )
            )
        verdicts = self.ask(material.reach.judge, questions, material.rng)
        return np.array([self.value(said) for said in verdicts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels(TurnJudge):
    """One of a few labels. The label with the most votes counts; a tie is no label."""

    labels: ClassVar[Mapping[str, tuple[float, str]]]  # word -> number, meaning

    @property
    def verdicts(self) -> str:
        """The labels and what they mean."""
        words = [f"{word} ({meaning})" for word, (_, meaning) in self.labels.items()]
        return f"one word of: {', '.join(words)}"

    def value(self, verdicts: Sequence[str]) -> float:
        """The number of the label with the most votes."""
        votes = Counter(said for text in verdicts if (said := text.lower()) in self.labels)
        first, second = (*votes.most_common(2), ("", 0), ("", 0))[:2]
        return self.labels[first[0]][0] if first[1] > second[1] else np.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeGood(Labels):
    """Did the turn help?"""

    signals: ClassVar[tuple[str, ...]] = ("judge_good",)
    labels: ClassVar[Mapping[str, tuple[float, str]]] = {
        "good": (1.0, "it helped"),
        "bad": (0.0, "it did not help"),
    }

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        return {"judge_good": self.judge(material)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRole(Labels):
    """Which part did the turn play?

    Source: the roles of TRIAGE, arXiv 2606.32017.
    """

    signals: ClassVar[tuple[str, ...]] = ("judge_role",)
    labels: ClassVar[Mapping[str, tuple[float, str]]] = {
        "decisive": (0.0, "it brought the goal about"),
        "exploratory": (1.0, "it found something out"),
        "neutral": (2.0, "it changed nothing"),
        "regressive": (3.0, "it did harm"),
    }

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        return {"judge_role": self.judge(material)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeScore(TurnJudge):
    """A score, the mean over replies that give one in the range."""

    signals: ClassVar[tuple[str, ...]] = ("judge_score",)

    low: float = 0.0  # the worst score
    high: float = 1.0  # the best

    def __post_init__(self) -> None:
        TurnJudge.__post_init__(self)
        if not self.low < self.high:
            raise ConfigError(f"judge_score needs low < high, got {self.low} and {self.high}")

    @property
    def verdicts(self) -> str:
        """The range."""
        return f"one number from {self.low:g} (bad) to {self.high:g} (good)"

    def value(self, verdicts: Sequence[str]) -> float:
        """The mean of the numbers."""
        numbers = [float(said) for said in verdicts if NUMBER.fullmatch(said)]
        within = [number for number in numbers if self.low <= number <= self.high]
        return float(np.mean(within)) if within else np.nan

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        return {"judge_score": self.judge(material)}
