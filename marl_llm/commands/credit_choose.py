"""Ask what is at hand, and name the credit rules that suit it.

  marl-llm credit choose              asks six questions; each can be answered in advance:
    --restorable yes|no               games can be set back to a stored turn and played on
    --repeating yes|no                half of the turns or more meet a state that others met too
    --gold yes|no                     right answers, and spare forward passes to probe them
    --judge no|0.85                   how often a judge of single turns is right
    --agents yes|no                   several agents act for one team
    --turnover yes|no                 agents leave, join or are replaced in mid-episode
    --bench FILE                      figures of marl-llm credit bench --json
    --json                            the answer as JSON

The answer is a short list by rules of thumb (docs/credit.md), ranked by measured figures where
there are some. `marl-llm credit list NAME` says more about each name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_llm import config
from marl_llm.commands.credit_list import words_of_a_run
from marl_llm.commands.words import Words, read
from marl_llm.credit.survey import annotators
from marl_llm.errors import ConfigError
from marl_llm.evaluate.estimators.choice import MEASURES, Advice, Bench, Situation, advise

SHIPPED = Path(config.__file__).parent / "bench" / "credit_bench.json"
YES_NO = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


def _yes_no(text: str) -> bool:
    if text.lower() not in YES_NO:
        raise ConfigError(f"is yes or no, got {text!r}")
    return YES_NO[text.lower()]


def _accuracy(text: str) -> float:
    if YES_NO.get(text.lower()) is False:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"is no, or the share of turns about which it is right, got {text!r}")
    return value


QUESTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "restorable": ("Can games be set back to a stored turn and played on from there?", _yes_no),
    "repeating": ("Do half of the turns or more meet a state that other episodes meet?", _yes_no),
    "gold": ("Are there right answers, and spare forward passes to probe them?", _yes_no),
    "judge": ("How often is a judge of single turns right (0.85, say; no = no judge)?", _accuracy),
    "agents": ("Do several agents act for one team?", _yes_no),
    "turnover": ("Do agents leave, join or get replaced in mid-episode?", _yes_no),
}


def run(words: Sequence[str]) -> int:
    """Ask and answer."""
    options = read(words, "credit choose", keys=(*QUESTIONS, "bench"), flags=("json",))
    bench = _bench(options)
    situation = Situation(**_answers(options))
    advice = advise(situation, bench)
    if "json" in options.flags:
        print(json.dumps(_as_json(situation, bench, advice), indent=2))
    else:
        _show(situation, bench, advice)
    return 0


def _bench(options: Words) -> Bench | None:
    """The figures that were named, else those that are shipped, else none."""
    if "bench" in options.values:
        return Bench.read(Path(options.values["bench"]))
    return Bench.read(SHIPPED) if SHIPPED.is_file() else None


def _answers(options: Words) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for key, (_, parse) in QUESTIONS.items():
        if key in options.values:
            try:
                answers[key] = parse(options.values[key])
            except ConfigError as error:
                raise ConfigError(f"credit choose: {key} {error}") from None
    missing = [key for key in QUESTIONS if key not in answers]
    for number, key in enumerate(missing):
        question, parse = QUESTIONS[key]
        try:
            answers[key] = _ask(key, question, parse)
        except EOFError:
            *most, last = (f"--{key}" for key in missing[number:])
            flags = f"{', '.join(most)} and {last}" if most else last
            raise ConfigError(f"credit choose: nobody answers; give {flags}") from None
    return answers


def _ask(key: str, question: str, parse: Callable[[str], Any]) -> Any:
    """Ask until the answer can be read.

    Raises:
        EOFError: nobody answers.
    """
    while True:
        text = _line(f"{question} ")
        try:
            return parse(text)
        except ConfigError as error:
            print(f"  {key} {error}")


def _line(prompt: str) -> str:
    """A line of standard input; one that nobody typed is shown, as a terminal would show it."""
    if sys.stdin is None:  # closed before the program began
        raise EOFError
    try:
        text = input(prompt).strip()
    except EOFError:
        print()
        raise
    if not sys.stdin.isatty():
        print(text)
    return text


def _as_json(situation: Situation, bench: Bench | None, advice: Sequence[Advice]) -> dict[str, Any]:
    return {
        "situation": asdict(situation),
        "bench": None if bench is None else str(bench.path),
        "truths": [] if bench is None else bench.truths(situation),
        "advice": [asdict(each) for each in advice],
    }


def _show(situation: Situation, bench: Bench | None, advice: Sequence[Advice]) -> None:
    console = Console()
    measured = any(each.figures for each in advice)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("credit=", no_wrap=True)
    for measure in MEASURES if measured else ():
        table.add_column(measure, justify="right", no_wrap=True)
    table.add_column("because")
    for place, each in enumerate(advice, start=1):
        figures = each.figures.measures if each.figures else {}
        reason = Text(_needs(each), "yellow")
        reason.append(f"{each.why[0].upper()}{each.why[1:]}.", "default")
        numbers = [_number(figures.get(measure)) for measure in MEASURES] if measured else []
        table.add_row(str(place), Text(each.name, "bold"), *numbers, reason)
    console.print(table)
    console.print()
    for line in (*_notes(situation, bench, measured), _start(advice)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _needs(advice: Advice) -> str:
    """What a rule needs beside the episodes, and how much of it where that was counted."""
    card = config.build(config.node("credit", advice.name)).card
    needs = annotators(card)
    if not needs:
        return ""
    cost = advice.figures.cost if advice.figures else {}
    counted = ", ".join(f"{count:.3g} {kind}" for kind, count in cost.items() if count)
    said = f"Needs {' and '.join(needs)}{f': {counted} per episode' if counted else ''}"
    return said + (". " if words_of_a_run(advice.name, card) else ", to be attached by you. ")


def _notes(situation: Situation, bench: Bench | None, measured: bool) -> list[str]:
    """Where the figures come from, or how to make some."""
    if bench is None:
        return [
            "Ranked by rules of thumb. Figures: marl-llm credit bench --json bench.json, then "
            "marl-llm credit choose --bench bench.json"
        ]
    if not measured:
        return [f"{bench.path} has no figures for worlds like this one."]
    notes = [
        f"Figures: {bench.path}, mean over {', '.join(bench.truths(situation))}. pairs: of two "
        "turns, how often the better is ranked higher; leak: credit on turns that cannot matter, "
        "1 = as much as on others; cosine: with the true gradient."
    ]
    if situation.judge and bench.judge not in (None, situation.judge):
        notes.append(
            f"There a judge is right {bench.judge:.0%} of the time, yours {situation.judge:.0%}: "
            f"marl-llm credit bench judge={situation.judge:g} measures that."
        )
    return notes


def _start(advice: Sequence[Advice]) -> str:
    """How to train with the first rule for which a run has all that it needs."""
    words = (words_of_a_run(each.name, config.build(config.node("credit", each.name)).card)
             for each in advice)  # fmt: skip
    return f"To begin with: marl-llm train experiment=NAME {next(filter(None, words))}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
