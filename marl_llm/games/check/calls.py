"""Checks of a `Delegation`: who calls whom, what they read and report, what a fault does, the pay.

The plays here are `lively`: half of the turns are the solver's, so that they get deep into the
game, the rest is random, and where a check asks for it a tenth are faults.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.check.play import (
    FAULTS,
    NEAR,
    Line,
    NotApplicable,
    Trial,
    any_action,
    compare,
    lively,
    replay,
    rest,
    rounds,
    the_call,
)
from marl_llm.games.delegation import Ask, Call, Delegation, Use
from marl_llm.games.text_game import TextGame
from marl_llm.seeds import generator
from marl_llm.types import FORFEITS, Move, Outcome


def solver_wins(trial: Trial) -> str:
    """Where `solve` plays everybody, each action is accepted and the answer is right."""
    game = _delegation(trial)
    if type(game).solve is Delegation.solve:
        raise NotApplicable("it has no `solve`")
    for seed in range(trial.episodes):
        game.reset(seed)
        rng = generator(seed, "check")
        for turn in range(game.max_turns):
            if not (waiting := game.acting()):
                break
            action = game.solve(the_call(game, waiting[0]), rng)
            if not game.accepts(waiting[0], action):
                raise GameError(
                    f"seed {seed}, turn {turn}: the solver's {action!r} is not allowed to "
                    f"{waiting[0]}; `solve` and `read` must agree"
                )
            game.act(waiting[0], Move(action))
        if game.acting() or game.right_answer() < 1:
            raise GameError(
                f"seed {seed}: the solver's answer is right to {game.right_answer():g}; every "
                "question must have a right answer within the turns and calls there are"
            )
    return f"the solver answers {trial.episodes} of {trial.episodes} questions right"


def guess_ends_and_wander_goes_on(trial: Trial) -> str:
    """Wherever an agent is to move, `guess` is allowed and ends its call, `wander` does not."""
    game, tried = _delegation(trial), 0
    guesses, wanders = (
        getattr(type(game), name) is not getattr(Delegation, name) for name in ("guess", "wander")
    )
    if not guesses and not wanders:
        raise NotApplicable("it has neither `guess` nor `wander`")
    for seed in range(trial.episodes):
        rng = generator(seed, "check")
        for turn, agent, _ in lively(game, seed):
            call, where = the_call(game, agent), f"seed {seed}, turn {turn}, {agent}"
            if guesses:
                guess = game.guess(call, rng)
                if not game.accepts(agent, guess) or not game.ends(call, guess):
                    raise GameError(f"{where}: `guess` gives {guess!r}, which ends no call here")
            if wanders and game.ends(call, wander := game.wander(call, rng)):
                raise GameError(f"{where}: `wander` gives {wander!r}, which ends the call")
            tried += 1
    return f"at {tried} turns a guess ends the call, and wandering does not"


def calls_end_in_time(trial: Trial) -> str:
    """Nobody moves beyond the turns of its role, and no call is open when the game is over."""
    game, calls = _delegation(trial), 0
    for seed in range(trial.episodes):
        for turn, agent, _ in lively(game, seed, faults=0.1):
            if game.turns_left(the_call(game, agent)) < 1:
                raise GameError(
                    f"seed {seed}, turn {turn}: {agent} is to move and has used up its turns"
                )
        if game.acting() or any(call.open for call in game.all_calls()):
            still = [call.agent for call in game.all_calls() if call.open]
            raise GameError(f"seed {seed}: over, and the calls of {', '.join(still)} still open")
        calls += len(game.all_calls()) - 1
    return f"{calls} calls end within their turns"


def callers_come_first(trial: Trial) -> str:
    """`parent` is the turn that made the call, paths follow, and nobody is called unasked."""
    game, deepest = _delegation(trial), 0
    for seed in range(trial.episodes):
        parents: list[int | None] = []
        asked: dict[int, tuple[str, Ask]] = {}  # turn -> who asked, and for what
        for turn, agent, move in lively(game, seed, faults=0.1):
            call, parent = the_call(game, agent), game.observation(agent).parent
            where = f"seed {seed}, turn {turn}, {agent}"
            _check_caller(call, parent, asked, where)
            parents.append(parent)
            depth, hop = 0, parent
            while hop is not None:
                depth, hop = depth + 1, parents[hop]
            if depth != len(call.path):
                raise GameError(f"{where}: {depth} calls deep by its turns, its path {call.path}")
            deepest = max(deepest, depth)
            step = game.read(call, move.action) if move.action else None
            if isinstance(step, Ask) and game.accepts(agent, move.action or ""):
                asked[turn] = agent, step
        _check_asked(game, asked, seed)
    return f"every call follows the turn that made it, {deepest} deep"


def reports_keep_their_order(trial: Trial) -> str:
    """What a caller reads of calls side by side does not hang on who reports or moves first."""
    game, tried = _delegation(trial), 0
    for seed, line in rounds(game, trial):
        replay(game, seed, line)
        if len(game.acting()) < 2:
            continue
        rng = generator(seed, "order", len(line))
        moves = {agent: any_action(game, agent, rng) for agent in game.acting()}
        ahead, back = (_seen_after(game, seed, line, order) for order in (
            moves, dict(reversed(moves.items()))
        ))  # fmt: skip
        if ahead != back:
            who = next(agent for agent in ahead if ahead[agent] != back[agent])
            raise GameError(
                f"seed {seed}, turn {len(line)}: {who} sees {back[who]} instead of {ahead[who]} "
                "when the agents of a round move in another order; go by their paths"
            )
        tried += 1 + _check_late(game, seed, line)
    if not tried:
        raise NotApplicable("no two agents ever move at once")
    return f"{tried} rounds in two orders show the same"


def faults_end_their_call(trial: Trial) -> str:
    """A fault at any turn ends that call alone; the caller goes on and reads of no report."""
    game, tried = _delegation(trial), 0
    for seed, line in rounds(game, trial):
        for fault in FAULTS:
            replay(game, seed, line)
            _check_fault(game, seed, line, game.acting()[-1], fault)
            tried += 1
    return f"{tried} faults tried, each ends its own call"


def tasks_are_all_they_see(trial: Trial) -> str:
    """With the same task, tool answers and reports a sub-agent is shown the same, always."""
    game = _delegation(trial)
    shown: dict[Any, tuple[Any, int]] = {}
    again = 0
    for seed in range(trial.episodes):
        for turn, agent, _ in lively(game, seed, faults=0.1):
            call = the_call(game, agent)
            if call.caller is None:
                continue
            if mutable := [note for note in call.notes if not isinstance(note, Hashable)]:
                raise NotApplicable(
                    f"its notes hold a {type(mutable[0]).__name__}, which can change, and not what "
                    "tools said"
                )
            seen, first = shown.setdefault(_known(call), (game.view(agent), seed))
            again += first != seed
            if seen != game.view(agent):
                raise GameError(
                    f"seed {seed}, turn {turn}: {agent} sees {game.view(agent)}; with seed {first} "
                    f"the same task, tools and reports showed {seen}. Tell a sub-agent nothing "
                    "but what its caller and its tools do"
                )
    if not again:
        raise NotApplicable("no task came up with two seeds, so there is nothing to compare")
    return f"{len(shown)} things to know, {again} times again with another seed"


def pays_as_stated(trial: Trial) -> str:
    """Everybody gets what `Pay` says of its report, its calls and the answer, and no fault does."""
    game, right = _delegation(trial), 0
    for seed in range(trial.episodes):
        for _ in lively(game, seed, faults=0.1):
            pass
        paid, outcomes = game.take_rewards(), game.outcomes()
        for agent in game.possible_agents:
            due, most = _due(game, agent)
            got = paid.get(agent, 0.0)
            if abs(got - due) > NEAR or got > most + NEAR:
                raise GameError(
                    f"seed {seed}: {agent} got {got:g}, its pay is {due:g} and at most {most:g}; "
                    "leave `earnings` to Delegation, and keep `right` within 0 and 1"
                )
            if outcomes[agent] is not (want := _outcome(game, agent)):
                raise GameError(f"seed {seed}: {agent} ends with {outcomes[agent]}, not {want}")
        right += game.right_answer() >= 1
    return f"{trial.episodes} plays paid as stated, {right} of them with a right answer"


def parallel_snapshots_restore(trial: Trial) -> str:
    """A snapshot amid a round, where some of those who move at once have moved, goes on as it."""
    game, tried = _delegation(trial), 0
    for seed, line in rounds(game, trial):
        replay(game, seed, line)
        if len(game.acting()) < 2:
            continue
        first = game.acting()[0]
        game.act(first, Move(any_action(game, first, generator(seed, "snapshot"))))
        twin = trial.make()
        twin.restore(game.snapshot())
        where = f"seed {seed}, turn {len(line) + 1}: restored amid a round"
        if twin.acting() != game.acting() or _tree(twin) != _tree(game):
            raise GameError(f"{where}, calls are {_tree(twin)} instead of {_tree(game)}")
        compare(rest(game, seed), rest(twin, seed), where)
        tried += 1
    if not tried:
        raise NotApplicable("no two agents ever move at once")
    return f"{tried} snapshots amid a round go on as the original"


def _delegation(trial: Trial) -> Delegation:
    game = trial.make()
    if not isinstance(game, Delegation):
        raise NotApplicable("it is no Delegation")
    return game


def _check_caller(
    call: Call, parent: int | None, asked: dict[int, tuple[str, Ask]], where: str
) -> None:
    """The turn `parent` is one in which the caller asked for this very call."""
    caller = call.caller
    if caller is None and parent is None:
        return
    who, ask = asked.get(-1 if parent is None else parent, ("nobody", Ask(())))
    if caller is None or who != caller.agent or (call.role, call.task) not in ask.calls:
        raise GameError(
            f"{where}: its parent is turn {parent}, in which {who} asked for {ask.calls}; it was "
            f"called by {caller.agent if caller else 'nobody'} for {call.task!r}"
        )


def _check_asked(game: Delegation, asked: dict[int, tuple[str, Ask]], seed: int) -> None:
    """Calls are those that were asked for, in that order, as far as there are agents."""
    for caller in game.all_calls():
        for place, call in enumerate(caller.calls):
            if call.path != (*caller.path, place):
                raise GameError(f"seed {seed}: {call.agent} has the path {call.path}, not {place}")
        for turn in [turn for turn, (who, _) in asked.items() if who == caller.agent]:
            wanted = asked[turn][1].calls
            got = tuple((call.role, call.task) for call in caller.calls if call.turn == turn)
            short = any(not game.free(role) for role, _ in wanted)
            if got != wanted and not (short and len(got) < len(wanted)):
                raise GameError(
                    f"seed {seed}, turn {turn}: {caller.agent} asked for {wanted} and has {got}"
                )


def _seen_after(
    game: Delegation, seed: int, line: Line, moves: dict[str, str]
) -> dict[str, tuple[Any, ...]]:
    """What everybody sees once a round was played in this order."""
    replay(game, seed, line)
    for agent, action in moves.items():
        game.act(agent, Move(action))
    return {agent: (game.view(agent),) for agent in game.possible_agents}


def _check_late(game: Delegation, seed: int, line: Line) -> int:
    """Of two calls side by side now the one and now the other reports a turn later: 1 if tried."""
    replay(game, seed, line)
    rng = generator(seed, "late", len(line))
    if type(game).guess is Delegation.guess or type(game).wander is Delegation.wander:
        return 0
    calls = [the_call(game, agent) for agent in game.acting()]
    pair = next((
        (one, two) for one, two in pairwise(calls)
        if one.caller is two.caller is not None and min(map(game.turns_left, (one, two))) > 1
    ), None)  # fmt: skip
    if pair is None:
        return 0
    reports = {call.agent: game.guess(call, rng) for call in calls}
    tools = {call.agent: game.wander(call, rng) for call in pair}
    if not all(isinstance(game.read(call, tools[call.agent]), Use) for call in pair):
        return 0
    seen = []
    for late in pair:
        replay(game, seed, line)
        moves = {agent: Move(report) for agent, report in reports.items()}
        _round(game, {**moves, late.agent: Move(tools[late.agent])})
        draws = generator(seed, "later", len(line))
        later = {agent: game.guess(the_call(game, agent), draws) for agent in game.acting()}
        _round(game, {agent: Move(reports.get(agent, guess)) for agent, guess in later.items()})
        caller = pair[0].caller
        seen.append(game.view(caller.agent if caller else game.planner))
    if seen[0] != seen[1]:
        raise GameError(
            f"seed {seed}, turn {len(line)}: the caller of {pair[0].agent} and {pair[1].agent} "
            f"sees {seen[0]} or {seen[1]}, as the one or the other reports later; show reports in "
            "the order of the calls"
        )
    return 1


def _check_fault(game: Delegation, seed: int, line: Line, agent: str, fault: Outcome) -> None:
    """Commit a fault, the others of the round moving by chance, and look at all calls."""
    where = f"seed {seed}, turn {len(line)}, {agent}, {fault}"
    rng = generator(seed, "fault", len(line))
    others = {other: any_action(game, other, rng) for other in game.acting() if other != agent}
    open_before = [each.agent for each in game.all_calls() if each.open]
    illegal = Move("\x00") if fault is Outcome.ILLEGAL else Move(None, fault)
    _round(game, {**{other: Move(a) for other, a in others.items()}, agent: illegal})
    call = the_call(game, agent)
    if call.ended is not fault or call.report is not None:
        raise GameError(f"{where}: its call ends with {call.ended} and reports {call.report!r}")
    if call.caller is None:
        if game.acting() or game.outcomes()[agent] is not fault:
            raise GameError(f"{where}: the game goes on without its planner")
        return
    for name in set(open_before) - {agent}:
        other = the_call(game, name)
        reports, runs_out = other.ended in (None, Outcome.WIN), game.turns_left(other) < 1
        if not reports and not runs_out and the_call(game, game.planner).open:
            raise GameError(f"{where}: the call of {name} ends too")
    caller = call.caller
    if not caller.open or caller.waits:
        return
    if caller.agent not in game.acting():
        raise GameError(f"{where}: its caller {caller.agent} cannot go on")
    seen = game.view(caller.agent).text
    if type(game).guess is Delegation.guess:
        return
    replay(game, seed, line)
    guess = game.guess(the_call(game, agent), rng)
    _round(game, {**{other: Move(a) for other, a in others.items()}, agent: Move(guess)})
    if game.view(caller.agent).text == seen:
        raise GameError(
            f"{where}: its caller reads {seen!r}, as if {agent} had said {guess!r}; say that there "
            "is no report"
        )


def _round(game: TextGame, moves: dict[str, Move]) -> None:
    for agent in game.acting():
        game.act(agent, moves[agent])


def _known(call: Call) -> Any:
    """All that the agent of a call was told: its task, its tools' answers, its own calls."""
    below = tuple((_known(each), each.report, each.ended) for each in call.calls)
    return call.role, call.task, tuple(call.notes), below


def _due(game: Delegation, agent: str) -> tuple[float, float]:
    """What an agent is to get, and the most that anybody in its place could."""
    call, pay = game.call_of(agent), game.pay
    top = agent == game.planner
    parts = (pay.format, pay.correct, 0.0) if top else (pay.sub_format, pay.sub_main, pay.sub_own)
    if call is None:
        return 0.0, sum(parts)
    due = -pay.price * len(call.calls)
    if call.report is not None:
        due += float(np.dot(parts, (1.0, game.right_answer(), game.found_right(agent))))
    return due, sum(parts)


def _outcome(game: Delegation, agent: str) -> Outcome:
    """How it ended for an agent."""
    call = game.call_of(agent)
    if call is None or call.ended is None:
        return Outcome.ABSENT
    if call.ended in FORFEITS:
        return call.ended
    right = call.report is not None and game.found_right(agent) >= 1
    return Outcome.WIN if right else Outcome.LOSS


def _tree(game: TextGame) -> list[Any]:
    """All calls, and where each of them stands."""
    assert isinstance(game, Delegation)
    return [
        (each.agent, each.path, each.task, each.turn, each.turns, each.report, each.ended)
        for each in game.all_calls()
    ]
