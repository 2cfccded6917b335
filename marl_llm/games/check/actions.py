"""Checks of actions: what is listed, what is accepted, and what a fault costs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.check.play import (
    NEAR,
    NotApplicable,
    Trial,
    equal,
    line_of,
    positions,
    replay,
    take_paid,
    transcript,
    try_action,
)
from marl_llm.games.delegation import Delegation
from marl_llm.games.text_game import TextGame
from marl_llm.types import FORFEITS, Move, Outcome

_GARBAGE = (
    "", " ", "\n\t", "\x00", "\ud800", "\ufffd\ufffd", "🂡🂱", "0" * 5000, "-1", "1e999", "None",
    "<answer>", "<think></think><answer></answer>", "\\boxed{}", "{0}", "%s%n", "'; --", "[]",
)  # fmt: skip

_MARKED = re.compile(
    r"<answer>(?P<tag>[^<]*)</answer>|\\boxed\{(?P<box>[^{}]*)\}|`(?P<tick>[^`\n]{1,60})`"
    r"|\"(?P<quote>[^\"\n]{1,60})\"|(?<!\w)'(?P<single>[^'\n]{1,60})'(?!\w)"
)


def listed_is_accepted(trial: Trial) -> str:
    """Listed actions are accepted, each once in the list, and every other name is illegal."""
    game, tried = trial.make(), 0
    if not game.actions:
        raise NotApplicable("its actions are free text")
    for seed, line, agent in positions(game, trial):
        replay(game, seed, line)
        where = f"seed {seed}, turn {len(line)}, {agent}"
        listed = game.observation(agent).legal
        legal = game.legal(agent) if listed is None else listed
        if len(set(legal)) != len(legal):
            raise GameError(f"{where}: an action is listed twice: {', '.join(legal)}")
        if unknown := set(legal) - set(game.actions):
            raise GameError(
                f"{where}: lists {', '.join(sorted(unknown))}, which `actions` does not have; give "
                "all names to TextGame.__init__"
            )
        for name in game.actions:
            replay(game, seed, line)
            taken = try_action(game, agent, name)
            if taken and name not in legal:
                raise GameError(
                    f"{where}: accepts {name!r}, which is not listed ({', '.join(legal)}); list it "
                    "in `legal` or refuse it in `accepts`"
                )
            if not taken and name in legal:
                raise GameError(
                    f"{where}: lists {name!r} and refuses it; `legal` and `accepts` must agree"
                )
            tried += 1
    return f"{tried} actions tried: the listed ones are exactly the accepted ones"


def unlisted_is_the_same_game(trial: Trial) -> str:
    """With the list switched off nothing is given away, and nothing else is different."""
    if trial.make_without_list is None:
        raise NotApplicable("no maker of the game without its list of legal actions was given")
    game, bare = trial.make(), trial.make_without_list()
    for seed in trial.seeds:
        steps, outcomes = transcript(game, seed)
        bare.reset(seed)
        for turn, step in enumerate(steps):
            seen = bare.observation(step.observation.agent)
            where = f"seed {seed}, turn {turn}, {seen.agent}"
            if seen.legal is not None or "legal actions" in seen.text.lower():
                raise GameError(f"{where}: lists legal actions though they are switched off")
            if (seen.key, seen.brief) != (step.observation.key, step.observation.brief):
                raise GameError(
                    f"{where}: switching the list off changes key or brief from "
                    f"{step.observation.key!r}, {step.observation.brief!r} to {seen.key!r}, "
                    f"{seen.brief!r}; neither may hold the list"
                )
            bare.act(seen.agent, Move(step.action))
            if not equal(step.rewards, bare.take_rewards()):
                raise GameError(f"{where}: {step.action!r} pays differently without the list")
        if dict(bare.outcomes()) != outcomes:
            raise GameError(f"seed {seed}: ends differently without the list")
    return "without the list the same moves are the same game"


def rules_name_the_actions(trial: Trial) -> str:
    """Every action's name stands in the rules, so that the game can be played without a list."""
    game = trial.make()
    if not game.actions:
        raise NotApplicable("its actions are free text")
    rules = game.rules()
    if missing := [name for name in game.actions if name not in rules]:
        raise GameError(
            f"the rules do not name {', '.join(map(repr, missing[:5]))} ({len(missing)} of "
            f"{len(game.actions)} actions); end them with a line that names all"
        )
    return f"all {len(game.actions)} actions are named in the rules"


def examples_are_legal(trial: Trial) -> str:
    """Where rules and observations show an action, it is spelled as the game accepts it."""
    game = trial.make()
    known = {_folded(name): name for name in game.actions}
    # A name of several words or with a digit is no word of plain English, so it needs no quotes.
    telling = [re.escape(name) for name in game.actions if not name.isalpha()]
    plain = re.compile(rf"(?<![\w.])(?:{'|'.join(telling) or '(?!)'})(?![\w.])", re.IGNORECASE)
    texts = {"the rules": game.rules()}
    for seed in trial.seeds:
        steps, _ = transcript(game, seed)
        texts |= {f"seed {seed}, turn {t}": s.observation.text for t, s in enumerate(steps)}
    found = 0
    for where, text in texts.items():
        marked = [
            (match[match.lastgroup or 0], match.lastgroup) for match in _MARKED.finditer(text)
        ]
        for shown, mark in [*marked, *((match[0], None) for match in plain.finditer(text))]:
            if shown in game.actions:
                found += 1
            elif meant := known.get(_folded(shown)):
                raise GameError(
                    f"{where}: shows {shown!r}, but the game accepts only {meant!r}, and a model "
                    "that copies it makes an illegal move; spell it as the action"
                )
            elif mark in ("tag", "box") and game.actions:
                raise GameError(
                    f"{where}: gives {shown!r} as an answer, which is no action; use one of "
                    f"{', '.join(game.actions[:10])}"
                )
    return f"{found} times an action is shown, always spelled as the game accepts it"


def faults_follow_the_table(trial: Trial) -> str:
    """A fault or an illegal action at every turn ends or penalises as the outcome table says."""
    game, tried = trial.make(), 0
    if isinstance(game, Delegation):
        raise NotApplicable("a fault ends a call and not the game, see `faults_end_their_call`")
    for seed in trial.seeds:
        steps, _ = transcript(game, seed)
        for turn, step in enumerate(steps):
            agent = step.observation.agent
            for fault in sorted(FORFEITS):
                where = f"seed {seed}, turn {turn}, {agent}, {fault}"
                earned = replay(game, seed, line_of(steps[:turn]))
                _check_fault(game, agent, fault, earned, where)
                tried += 1
    return f"{tried} faults tried, all settled as the table says for every agent"


def garbage_never_raises(trial: Trial) -> str:
    """Text that is empty, endless, not printable or full of tags is an illegal action, no error."""
    game = trial.make()
    for seed in trial.seeds[:1]:
        steps, _ = transcript(game, seed)
        for turn, text in enumerate(_GARBAGE):
            line = line_of(steps[: turn % max(1, len(steps))])
            replay(game, seed, line)
            agent = game.acting()[0]
            try:
                taken = try_action(game, agent, text)
            except Exception as error:
                raise GameError(
                    f"turn {len(line)}, {agent}: the action {text[:40]!r} raises "
                    f"{type(error).__name__}: {error}; `accepts` must answer False to any text it "
                    "does not know"
                ) from error
            if taken and game.actions:
                raise GameError(
                    f"turn {len(line)}, {agent}: accepts {text[:40]!r}, which is no action of it"
                )
    return f"{len(_GARBAGE)} kinds of garbage refused"


def _check_fault(
    game: TextGame, agent: str, fault: Outcome, earned: Sequence[float], where: str
) -> None:
    """Commit the fault, the others of the same round moving legally, and compare with the table."""
    table, index = game.table, game.possible_agents.index(agent)
    stakes = {index: game.stake(agent)}
    move = _illegal(game, agent) if fault is Outcome.ILLEGAL else Move(None, fault)
    if fault is Outcome.ILLEGAL and not table.illegal_ends:
        for attempt in range(1, table.tries):
            game.act(agent, move)
            if Outcome.TRUNCATED in game.outcomes().values():
                return  # the turn limit is nearer than the last try
            paid = take_paid(game)
            due = table.settle({index: table.retry}, earned, stakes, game.scoring)
            if game.outcomes() or agent not in game.acting() or not np.allclose(paid, due):
                raise GameError(
                    f"{where}, try {attempt} of {table.tries}: paid {paid}, outcomes "
                    f"{dict(game.outcomes())}; the table pays {due} and asks {agent} again"
                )
    game.act(agent, move)
    for other in game.acting():
        if other != agent:
            game.act(other, Move(game.legal(other)[0]))
    outcomes = dict.fromkeys(game.possible_agents, Outcome.OTHER_FORFEIT) | {agent: fault}
    if dict(game.outcomes()) != outcomes:
        raise GameError(
            f"{where}: outcomes are {dict(game.outcomes())}, expected {outcomes}; a fault must "
            "reach `act` of TextGame, which ends the game"
        )
    paid = take_paid(game)
    due = table.settle({index: table.fault(fault)}, earned, stakes, game.scoring)
    if not np.allclose(paid, due):
        raise GameError(f"{where}: paid {paid}, the outcome table pays {due}")
    total = sum(paid) + sum(earned)
    if game.zero_sum and abs(total) > NEAR:
        raise GameError(f"{where}: declared zero-sum, the returns sum to {total:g}")


def _illegal(game: TextGame, agent: str) -> Move:
    """An action of the game that is not allowed here, or no action of it at all."""
    legal = game.legal(agent)
    return Move(next((name for name in game.actions if name not in legal), "\x00"))


def _folded(text: str) -> str:
    """Letters and digits only, lower case: what two spellings of one action share."""
    return re.sub(r"[^a-z0-9]", "", text.lower())
