"""List the credit estimators and the losses, with where they come from and what they need.

  marl-llm credit list              a table, by how a method finds out what a turn was worth
  marl-llm credit list NAME ...     all that is known of some: formula, settings, signals, source
    --json                          everything about all of them
    --markdown                      the tables of docs/credit.md
    --page FILE                     ... put between the marks of a page

"known" says how the formula is known: code or paper, read there; notes, second hand; reading, our
own reading of an idea. docs/credit.md explains the words.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_llm import config
from marl_llm.commands.words import read
from marl_llm.credit.card import Card, Methodology
from marl_llm.credit.signals import KNOWN
from marl_llm.credit.survey import ESTIMANDS, REPLAYS, Answers, annotators, settings_of, survey
from marl_llm.errors import ConfigError, nearest

PACKAGE = Path(config.__file__).parent
BEGIN = "<!-- begin: marl-llm credit list --markdown -->"
END = "<!-- end -->"
HOW = get_args(Methodology)


@dataclass(frozen=True, slots=True)
class Entry:
    """An estimator as a YAML sets it."""

    name: str  # of the YAML
    target: str
    card: Card
    answers: Answers
    settings: Mapping[str, Any]
    variant: Mapping[str, Any]  # settings that differ from those of the YAML of the card's name
    text: str  # the class's docstring

    @property
    def what(self) -> str:
        """What it does, in one sentence."""
        return self.text.splitlines()[0].rstrip(".")

    @property
    def needs(self) -> list[str]:
        """Signals it needs, what belongs together side by side."""
        return [name for name in KNOWN if name in self.card.needs]

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        card = self.card
        return {
            "name": self.name,
            "kind": "credit",
            "method": self.target,
            "title": card.title,
            "what": self.what,
            "granularity": card.granularity,
            "methodology": card.methodology,
            "level": card.level,
            "signals": {
                need: {
                    "over": KNOWN[need].over,
                    "meaning": KNOWN[need].meaning,
                    "annotator": KNOWN[need].annotator,
                }
                for need in self.needs
            },
            "resamples": card.resamples,
            "draws": card.draws,
            "remembers": card.remembers,
            "cost": card.cost or None,
            "source": card.source,
            "arxiv": re.findall(r"\d{4}\.\d{5}", card.source),
            "evidence": card.evidence,
            "breaks": sorted(card.breaks),
            "train": words_of_a_run(self.name, card),
            "survey": asdict(self.answers),
            "settings": dict(self.settings),
            "variant": dict(self.variant),
        }


@dataclass(frozen=True, slots=True)
class LossEntry:
    """A loss as a YAML sets it; what its docstring says, read without importing torch."""

    name: str
    target: str
    what: str
    source: str
    settings: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {
            "name": self.name,
            "kind": "loss",
            "method": self.target,
            "what": self.what,
            "source": self.source,
            "arxiv": re.findall(r"\d{4}\.\d{5}", self.source),
            "settings": dict(self.settings),
        }


def run(words: Sequence[str]) -> int:
    """List."""
    flags = ("json", "markdown")
    options = read(words, "credit list", keys=("page",), flags=flags, names=True)
    if "page" in options.values:
        _refresh(Path(options.values["page"]))
    elif "markdown" in options.flags:
        print(markdown(), end="")
    elif "json" in options.flags:
        entries: list[Entry | LossEntry] = [*estimators(), *losses()]
        found = [entry.as_json() for entry in entries]
        chosen = [item for item in found if item["name"] in options.names] or found
        print(json.dumps(chosen, indent=2))
    elif options.names:
        for name in options.names:
            _show(name)
    else:
        _table()
    return 0


def estimators() -> list[Entry]:
    """The members of `configs/credit`, by how they work, then by name."""
    made = {name: config.build(config.node("credit", name)) for name in config.choices("credit")}
    entries = []
    for name, estimator in made.items():
        card: Card = estimator.card
        settings = settings_of(estimator)
        usual = settings_of(made.get(card.name, estimator))
        entries.append(
            Entry(
                name=name,
                target=config.node("credit", name)["_target_"],
                card=card,
                answers=survey(card, settings),
                settings=settings,
                variant={key: x for key, x in settings.items() if x != usual.get(key, x)},
                text=inspect.cleandoc(type(estimator).__doc__ or ""),
            )
        )
    return sorted(entries, key=lambda entry: (HOW.index(entry.card.methodology), entry.name))


def losses() -> list[LossEntry]:
    """The members of `configs/loss`, by name."""
    entries = []
    for name in config.choices("loss"):
        node = config.node("loss", name)
        target = node.pop("_target_")
        text = _docstring(target)
        source = re.search(r"Source: (.*?)(?:\n\n|\Z)", text, re.DOTALL)
        said = " ".join(source[1].split()) if source else ""
        entries.append(LossEntry(name, target, text.splitlines()[0].rstrip("."), said, node))
    return entries


def _docstring(target: str) -> str:
    """What a class says of itself, or of the function that it names as its formula."""
    module, _, name = target.rpartition(".")
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    told = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    formula = re.match(r"`(\w+)`", told[name])
    return told[formula[1]] if formula and formula[1] in told else told[name]


def _table() -> None:
    entries = estimators()
    console = Console()
    for how in HOW:
        console.print(Text.assemble((how, "bold"), f": {ESTIMANDS[how]}"))
        table = Table(box=None, pad_edge=False)
        table.add_column("name", no_wrap=True, min_width=max(len(e.name) for e in entries))
        table.add_column("one per", min_width=8)
        table.add_column("known", min_width=7)
        table.add_column("needs beside the episodes")
        for entry in entries:
            if entry.card.methodology == how:
                card = entry.card
                needs = ", ".join(annotators(card)) or "-"
                table.add_row(entry.name, card.granularity, card.evidence, needs)
        console.print(table)
        console.print()
    listed = losses()
    console.print(Text.assemble(("losses", "bold"), ": what is done with the credit"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for loss in listed:
        table.add_row(loss.name, loss.what)
    console.print(table)
    console.print(
        f"\n{len(entries)} estimators (credit=NAME), {len(listed)} losses (loss=NAME). "
        "All about one of them: marl-llm credit list NAME\n"
        "What it needs with a _ in its name is an annotator, which a run can attach.",
        highlight=False,
    )


def words_of_a_run(name: str, card: Card) -> str | None:
    """What to type behind `marl-llm train` to train with a rule; None if a run cannot.

    Args:
        name: of the YAML.
        card: of its class.
    """
    who = annotators(card)
    known = {*config.choices("annotator"), REPLAYS}
    if not known.issuperset(who):
        return None
    attached = [f"+annotator@policies.main.annotators.{one}={one}" for one in who if one != REPLAYS]
    return " ".join((f"credit={name}", *attached))


def _show(name: str) -> None:
    """All that is known of one estimator or loss."""
    entries: dict[str, Entry | LossEntry] = {loss.name: loss for loss in losses()}
    entries |= {entry.name: entry for entry in estimators()}
    if name not in entries:
        raise ConfigError(f"credit list: unknown name {name!r}; {nearest(name, entries)}")
    entry = entries[name]
    console = Console()
    if isinstance(entry, LossEntry):
        title, text, setting = "", _docstring(entry.target), "loss"
        facts = {"class": entry.target, "known from": entry.source}
    else:
        title, text, setting = f": {entry.card.title}", entry.text, "credit"
        facts = _facts(entry)
    console.print(Text.assemble((name, "bold"), title))
    told = text.partition("\nArgs:")[0].partition("\nSource:")[0].rstrip()
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, fact in facts.items():
        table.add_row(Text(key, "dim"), Text(fact))
    for key, value in entry.settings.items():
        table.add_row(Text(f"{setting}.{key}", "dim"), Text(_plain(value)))
    console.print()
    console.print(table)


def _facts(entry: Entry) -> dict[str, str]:
    card, answers = entry.card, entry.answers
    needs = [f'"{need}", from {KNOWN[need].annotator}: {KNOWN[need].meaning}'
             for need in entry.needs]  # fmt: skip
    return {
        "class": entry.target,
        "one number per": answers.unit,
        "which is": answers.estimand,
        "level": f"{card.level}s carry it",
        "how": card.methodology,
        "compared with": answers.baseline or "its card does not settle it",
        "play compared": answers.reference,
        "evidence tier": answers.tier or "hangs on who attaches the values",
        "needs": "\n".join(needs + [REPLAYS] * card.resamples) or "nothing beside the episodes",
        "cost": card.cost or "nothing beside the episodes",
        "known from": f"{card.source} ({card.evidence})",
        "in a run": words_of_a_run(entry.name, card) or "no part of a run attaches what it needs",
    }


def markdown() -> str:
    """The tables of docs/credit.md."""
    head = (
        "credit=", "method, and what it does", "one per", "level", "how", "compared with",
        "tier", "needs, from whom", "cost per episode", "source", "known",
    )  # fmt: skip
    rows = [_row(entry) for entry in estimators()]
    lines = [_line(head), _line(["---"] * len(head)), *map(_line, rows), ""]
    lines += [_line(("loss=", "what it does", "source")), _line(["---"] * 3)]
    for loss in losses():
        lines.append(_line((_link(loss.name, loss.target), loss.what, loss.source)))
    return "\n".join(lines) + "\n"


def _row(entry: Entry) -> tuple[str, ...]:
    card, answers = entry.card, entry.answers
    title = card.title
    if entry.variant:
        title += f" with {', '.join(f'{key} {_plain(x)}' for key, x in entry.variant.items())}"
    needs = []
    for who in annotators(card):
        signals = [f"`{need}`" for need in entry.needs if KNOWN[need].annotator == who]
        needs.append(f"{', '.join(signals)} ({who})" if signals else who)
    return (
        _link(entry.name, entry.target),
        f"**{title}**: {entry.what}",
        card.granularity,
        card.level,
        card.methodology,
        answers.baseline or "",
        answers.tier or "",
        "; ".join(needs),
        card.cost,
        card.source,
        card.evidence,
    )


def _link(name: str, target: str) -> str:
    module = target.rpartition(".")[0].replace(".", "/")
    return f"[`{name}`](../{module}.py)"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(value: Any) -> str:
    """A setting as one writes it in YAML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def _refresh(page: Path) -> None:
    """Put the tables between the marks of a page.

    Raises:
        ConfigError: the page has no such marks.
    """
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ConfigError(
            f"credit list: {page} has no lines {BEGIN!r} and {END!r} to write between"
        )
    page.write_text(f"{head}{BEGIN}\n\n{markdown()}\n{END}{tail}", encoding="utf-8")
