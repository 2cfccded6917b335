"""Show what credit rules make of one stored game, turn by turn.

  marl-llm credit explain RUNDIR EPISODE              the run's own rule
    --credit a,b                                      these too (or --credit a b)
    --update N                                        only look among the games of this update

The report and `credit compare` name episodes. Under each turn stand its credit and the parts that
add up to it; at the end, what each agent got in all. Where a rule's turns sum to the return less
what was to be expected at the agent's start, both are shown. "as trained" is the credit that the
run used, which saw all games of the update; the rules see the stored games of it only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_llm.commands.credit_compare import run_of
from marl_llm.commands.credit_record import TRAINED, Record, Stored, chosen, record, stored_with
from marl_llm.commands.words import Words, read
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.segments import Array, cells, extremes, sums
from marl_llm.credit.tokens import mean_turns
from marl_llm.errors import ConfigError
from marl_llm.evaluate.estimators.agreement import Refusal, ask, of_turns
from marl_llm.report.live import printable
from marl_llm.types import Episode, Turn

LONGEST = 160  # characters of a text that are shown
LONGEST_NUMBER = 18  # digits of an episode's number
CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rule says of the turns of a batch."""

    credit: Array  # [N]
    parts: Mapping[str, Array]  # [N] each, which add up to it
    adds_up: bool  # an agent's turns sum to its return minus what was expected at its start


@dataclass(frozen=True, slots=True)
class Explained:
    """One policy's rules and their answers."""

    record: Record
    answers: Mapping[str, Answer]
    refused: Mapping[str, Refusal]

    def row(self, episode: int, turn: int) -> int | None:
        """The row of a turn; None if the turn is another policy's."""
        batch = self.record.batch
        rows = np.flatnonzero((batch.episode == episode) & (batch.turn == turn))
        return int(rows[0]) if len(rows) else None


def run(words: Sequence[str]) -> int:
    """Explain."""
    options = read(words, "credit explain", keys=("run", "credit", "update"), names=True)
    folder, episode, names = _words(options)
    update = options.number("update", 0) if "update" in options.values else None
    found = stored_with(folder, episode, update)
    explained = {policy: explain(found, policy, names) for policy in found.policies}
    (game,) = (each.episode for each in found.games if each.episode.id == episode)
    console = Console()
    _head(console, found, game)
    for index, turn in enumerate(game.turns):
        _turn(console, index, turn, explained.get(turn.policy or ""), game)
    _ends(console, game, explained)
    return 0


def _words(options: Words) -> tuple[str, int, tuple[str, ...]]:
    """Run folder, episode and rules."""
    folder, rest = run_of(options)
    if not rest:
        raise ConfigError(
            "credit explain: which episode? give its number, as in credit explain RUNDIR 9216; "
            "the report names them"
        )
    number, *more = rest
    if not number.isdecimal() or len(number) > LONGEST_NUMBER:
        raise ConfigError(f"credit explain: an episode is a whole number, got {number!r}")
    if more and "credit" not in options.values:
        raise ConfigError(f"credit explain: one word too many: {more[0]!r}; rules follow --credit")
    return folder, int(number), (*options.listed("credit"), *more)


def explain(found: Stored, policy: str, names: Sequence[str]) -> Explained:
    """What some rules, and the run's own, say of all stored turns of a policy.

    Args:
        found: a run and its games.
        policy: whose turns.
        names: of rules.
    """
    kept = record(found, policy)
    wanted = dict.fromkeys((kept.own, *chosen(kept.rules, names, "credit explain")))
    said, refused = ask({name: kept.rules[name] for name in wanted}, kept.batch)
    answers = {name: _answer(credit, kept.batch) for name, credit in said.items()}
    if kept.trained is not None:
        answers = {TRAINED: Answer(kept.trained, {}, adds_up=False), **answers}
    return Explained(kept, answers, refused)


def _answer(credit: Credit, batch: TurnBatch) -> Answer:
    of_turn = of_turns(credit, batch)
    parts = credit.components
    if credit.level == "token":
        parts = {name: mean_turns(part, batch.offsets) for name, part in parts.items()}
    weighted = {name: credit.weight * part for name, part in parts.items()}
    return Answer(of_turn, weighted, adds_up(of_turn, batch))


def adds_up(credit: Array, batch: TurnBatch) -> bool:
    """Whether the turns of an agent sum to its return minus a number that its start alone settles.

        Σ_k A_k = R - b(start)

    Tested on the batch itself: agents of one group that began at one state must have the same b
    though their returns differ. Where no returns differ so, nothing can be said, and it is False.

    Args:
        credit: A, [N].
        batch: N turns.
    """
    agents = batch.agents()
    first = agents.before == 0
    total = sums(batch.reward, agents.of, agents.count)[agents.of][first]
    start, count = cells(
        (batch.group[first], batch.agent[first], batch.state_key[first]), int(first.sum())
    )
    expected = total - sums(credit, agents.of, agents.count)[agents.of][first]
    spread, varied = (_range(x, start, count) for x in (expected, total))
    return bool(np.any(varied > CLOSE) and np.all(spread <= CLOSE))


def _range(x: Array, cell: Array, count: int) -> Array:
    low, high = extremes(x, cell, count)
    return high - low


def _head(console: Console, found: Stored, game: Episode) -> None:
    ends = ", ".join(
        f"{agent} {outcome} {game.returns.get(agent, 0.0):+g}"
        for agent, outcome in game.outcomes.items()
    )
    groups = {each.episode.group for each in found.games}
    beside = sum(each.episode.group == game.group for each in found.games) - 1
    of = f" of {found.played}" if found.played else ""
    _say(console, f"{game.game}, episode {game.id} of update {found.update}: {ends or 'cut short'}")
    _say(
        console,
        f"Credit from {len(found.games)}{of} games of this update, those that are stored, in "
        f"{len(groups)} group{'s' * (len(groups) > 1)}; {beside or 'none'} of them in the group of "
        "this one.",
    )


def _turn(console: Console, index: int, turn: Turn, said: Explained | None, game: Episode) -> None:
    seen = turn.observation
    console.print()
    move = f"plays {turn.action}" if turn.fault is None else f"forfeits: {turn.fault}"
    head = Text.assemble((f"turn {index + 1}", "bold"), f"  {seen.agent} {printable(move)}")
    reward = turn.reward + turn.shaping
    if reward:
        head.append(f", reward {reward:+g}")
    console.print(head)
    console.print(Text(f"  sees  {_short(seen.brief or seen.text)}", "dim"), soft_wrap=True)
    if turn.ids:
        console.print(Text(f"  says  {_short(turn.reply)}", "dim"), soft_wrap=True)
    row = None if said is None else said.row(game.id, index)
    if said is None or row is None:
        console.print(Text(f"  no credit: played by {turn.player}", "dim"))
        return
    table = _credit_table()
    for name, answer in said.answers.items():
        parts = {part: values[row] for part, values in answer.parts.items()}
        table.add_row("", name, _number(answer.credit[row]), _sum(parts))
    console.print(table)


def _ends(console: Console, game: Episode, explained: Mapping[str, Explained]) -> None:
    """What each agent got over the whole game, and who had nothing to say."""
    for said in explained.values():
        batch = said.record.batch
        for agent in np.unique(batch.agent[batch.episode == game.id]).tolist():
            rows = np.flatnonzero((batch.episode == game.id) & (batch.agent == agent))
            total = float(batch.reward[rows].sum())
            console.print()
            head = f"  {len(rows)} turn{'s' * (len(rows) != 1)}, return {total:+g}"
            console.print(Text.assemble((batch.name("agent", agent), "bold"), head))
            table = _credit_table()
            for name, answer in said.answers.items():
                credit = float(answer.credit[rows].sum())
                told = [_sum({part: float(x[rows].sum()) for part, x in answer.parts.items()})]
                if answer.adds_up:
                    expected = _number(total - credit)
                    told.append(f"= return {_number(total)} less {expected} at its start")
                text = " ".join(filter(None, told))
                table.add_row("", name, _number(credit), text)
            console.print(table)
        for name, refusal in said.refused.items():
            who = f", which {' and '.join(refusal.who)} would attach" if refusal.who else ""
            console.print()
            _say(console, f"{name} says nothing: {refusal.why}{who}")


def _credit_table() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


def _sum(parts: Mapping[str, float]) -> str:
    """The parts of a credit that are not 0; "" where none is left."""
    said = [(name, _number(value)) for name, value in parts.items()]
    left = [f"{name} {number}" for name, number in said if number.strip("+-0.")]
    return "= " + " ".join(left) if left else ""


def _number(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"  # + 0.0: no minus in front of 0


def _short(text: str) -> str:
    """A text on one line, its end left out if it is long."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= LONGEST else f"{flat[:LONGEST]} …"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
