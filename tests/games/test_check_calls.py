"""The checks of calls can fail: for each of them, delegations with the fault that it finds."""

import json

import pytest

from marl_llm.games.check import CALL_CHECKS, CHECKS, check_game
from marl_llm.games.delegation import Ask, Delegation, Pay, Report, Use
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.text_game import View
from marl_llm.types import FORFEITS, Outcome


class Errands(Delegation):
    """How many birds are in the trees? A boss sends helpers, who look and count.

    A helper may send a clerk to the same tree and need not look itself.
    """

    def __init__(self, pay=None, clerks=3, list_legal=True):
        super().__init__(
            name="errands",
            seats={"boss": 1, "helper": 3, "clerk": clerks},
            turns={"boss": 2, "helper": 3, "clerk": 2},
            pay=pay or Pay(price=0.01),
            list_legal=list_legal,
        )

    def rules(self):
        return "Send helpers to the trees and count the birds."

    def question(self, rng, options):
        trees = "abcd"[: int(rng.integers(1, 4))]
        self.birds = {tree: int(rng.integers(3)) for tree in trees}
        return trees

    def read(self, call, action):
        word, _, rest = action.partition(" ")
        if word == "send" and rest and call.role != "clerk":
            below = "helper" if call.caller is None else "clerk"
            trees = rest.split(" ")
            return Ask(tuple((below, t) for t in trees)) if set(trees) <= set(call.task) else None
        if word == "say" and rest.isdigit() and rest.isascii():
            return Report(rest)
        return Use("look") if action == "look" and call.caller else None

    def use(self, call, step):
        call.notes.append(self.birds[call.task])

    def right(self, call):
        return float(call.report == str(sum(self.birds[tree] for tree in call.task)))

    def told(self, call):
        heard = [f"{each.task} {each.report or each.ended or 'waiting'}" for each in call.calls]
        words = " ".join([call.task, *map(str, call.notes), *heard])
        return View(words, words, words)

    def solve(self, call, rng):
        if call.caller is not None:
            return f"say {call.notes[0]}" if call.notes else "look"
        if not call.calls:
            return f"send {' '.join(call.task)}"
        return f"say {sum(self.birds[tree] for tree in call.task)}"

    def guess(self, call, rng):
        return f"say {int(rng.integers(3))}"

    def wander(self, call, rng):
        return "look" if call.caller else f"send {' '.join(call.task)}"

    def sample(self, agent, rng):
        call = self._calls[agent]
        kind = rng.random()
        if call.role == "clerk" or kind < 0.5 or not self.free("clerk"):
            return self.guess(call, rng)
        sent = f"send {' '.join(call.task)}"
        return sent if self.accepts(agent, sent) else self.guess(call, rng)


def findings(make, checks=None, **options):
    return {f.check: f for f in check_game(make, episodes=60, checks=checks, **options)}


@pytest.mark.parametrize("pay", [Pay(), Pay(price=0.2, sub_main=0.0), Pay(sub_own=0.0)])
def test_a_sound_delegation_passes_every_check(pay):
    found = findings(lambda: Errands(pay), make_without_list=lambda: Errands(pay, list_legal=False))
    assert list(found) == [check.__name__ for check in (*CHECKS, *CALL_CHECKS)]
    assert [str(f) for f in found.values() if f.status == "failed"] == []
    assert {name for name, f in found.items() if f.status == "skipped"} == {
        "pays_what_it_declares", "draws_reachable", "seats_swap", "faults_follow_the_table",
        "listed_is_accepted", "rules_name_the_actions",
    }  # fmt: skip


def test_too_few_agents_are_nobodys_fault():
    # Helpers ask for clerks in the same round, and there is one clerk.
    found = findings(lambda: Errands(clerks=1), checks=CALL_CHECKS)
    assert [str(f) for f in found.values() if f.status == "failed"] == []


def test_other_games_are_asked_nothing_about_calls():
    assert set(findings(KuhnPoker)) == {check.__name__ for check in CHECKS}
    assert {f.status for f in findings(KuhnPoker, checks=CALL_CHECKS).values()} == {"skipped"}


class KeepsAWorld(Errands):
    """Notes what changes: where its agents have looked."""

    def use(self, call, step):
        call.notes.append([self.birds[call.task]])

    def told(self, call):
        seen = super().told(call)
        return View(f"{seen.text} {self.birds}", seen.brief, f"{seen.key} {self.birds}")

    def solve(self, call, rng):
        action = super().solve(call, rng)
        return action.replace("[", "").replace("]", "")


def test_what_is_seen_of_a_world_is_no_leak():
    found = findings(KeepsAWorld, checks=CALL_CHECKS)
    assert {name: f.message for name, f in found.items() if f.status != "passed"} == {
        "tasks_are_all_they_see": "its notes hold a list, which can change, and not what tools said"
    }


# One broken delegation per fault. The class says what is wrong with it.


class SolverErrs(Errands):
    def solve(self, call, rng):
        return super().solve(call, rng) if call.caller or not call.calls else "say 99"


class SolverBreaksTheRules(Errands):
    def solve(self, call, rng):
        return "look" if call.caller is None else super().solve(call, rng)


class GuessGoesOn(Errands):
    def guess(self, call, rng):
        return "look" if call.caller else "say 1"


class WanderEnds(Errands):
    def wander(self, call, rng):
        return "say 2"


class TurnsNeverEnd(Errands):
    def _run_out(self, call):
        pass


class CallsStayOpen(Errands):
    """The game is over once the planner has called."""

    def movers(self):
        return () if any(call.open for call in self._root.calls) else super().movers()


class ParentIsTheFirstTurn(Errands):
    def caller(self, agent):
        return None if agent == self.planner else 0


class CallsOneMore(Errands):
    def _call(self, caller, role, task, turn):
        super()._call(caller, role, task, turn)
        if self.free(role):
            super()._call(caller, role, task, turn)


class PathsFromOne(Errands):
    def _call(self, caller, role, task, turn):
        super()._call(caller, role, task, turn)
        caller.calls[-1].path = (*caller.path, len(caller.calls))


class LatestFirst(Errands):
    """Reports stand in the order in which they came in."""

    def told(self, call):
        came = {agent: turn for turn, (agent, *_) in enumerate(self._log)}
        order = sorted(call.calls, key=lambda each: came.get(each.agent, -1))
        words = " ".join(
            [call.task, *map(str, call.notes), *(f"{c.task} {c.report}" for c in order)]
        )
        return View(words, words, words)


class SlowOnesLast(Errands):
    """Who needed more turns is read last."""

    def told(self, call):
        order = sorted(call.calls, key=lambda each: each.turns)
        words = " ".join(
            [call.task, *map(str, call.notes), *(f"{c.task} {c.report}" for c in order)]
        )
        return View(words, words, words)


class FaultEndsSiblings(Errands):
    def _close(self, call, ended):
        super()._close(call, ended)
        if ended in FORFEITS and call.caller:
            for each in call.caller.calls:
                if each.open:
                    super()._close(each, Outcome.TRUNCATED)


class FaultLooksLikeAReport(Errands):
    def guess(self, call, rng):
        return "say 0"

    def told(self, call):
        words = " ".join([call.task, *map(str, call.notes), *(c.report or "0" for c in call.calls)])
        return View(words, words, words)


class FaultForgiven(Errands):
    def stand_in(self, agent, fault):
        return "say 0"


class FaultEndsTheGame(Errands):
    def stand_in(self, agent, fault):
        return None


class TellsTheQuestion(Errands):
    def told(self, call):
        seen = super().told(call)
        return View(
            f"{seen.text} of {self._root.task}", seen.brief, f"{seen.key} {self._root.task}"
        )


class TellsTheSeat(Errands):
    def told(self, call):
        seen = super().told(call)
        return View(f"{seen.text} {call.agent}", seen.brief, f"{seen.key} {call.agent}")


class PaysMore(Errands):
    def earnings(self):
        return [value and value + 0.5 for value in super().earnings()]


class MoreThanRight(Errands):
    def right(self, call):
        return 2 * super().right(call)


class EverybodyWins(Errands):
    def result(self, agent):
        found = super().result(agent)
        return Outcome.WIN if found is Outcome.LOSS else found


class SnapshotLosesTheRound(Errands):
    def snapshot(self):
        state = json.loads(super().snapshot())
        return json.dumps({**state, "log": state["log"][:-1]}).encode()


@pytest.mark.parametrize(
    ("game", "check", "words"),
    [
        (SolverErrs, "solver_wins", "right to 0"),
        (SolverBreaksTheRules, "solver_wins", "'look' is not allowed to boss"),
        (GuessGoesOn, "guess_ends_and_wander_goes_on", "`guess` gives 'look'"),
        (WanderEnds, "guess_ends_and_wander_goes_on", "`wander` gives 'say 2'"),
        (TurnsNeverEnd, "calls_end_in_time", "has used up its turns"),
        (CallsStayOpen, "calls_end_in_time", "still open"),
        (ParentIsTheFirstTurn, "callers_come_first", "its parent is turn 0"),
        (CallsOneMore, "callers_come_first", "asked for"),
        (PathsFromOne, "callers_come_first", "has the path (1,), not 0"),
        (LatestFirst, "reports_keep_their_order", "another order"),
        (SlowOnesLast, "reports_keep_their_order", "reports later"),
        (FaultEndsSiblings, "faults_end_their_call", "ends too"),
        (FaultLooksLikeAReport, "faults_end_their_call", "as if"),
        (FaultForgiven, "faults_end_their_call", "its call ends with win and reports '0'"),
        (FaultEndsTheGame, "faults_end_their_call", "its call ends with None"),
        (TellsTheQuestion, "tasks_are_all_they_see", "the same task, tools and reports showed"),
        (TellsTheSeat, "tasks_are_all_they_see", "the same task, tools and reports showed"),
        (PaysMore, "pays_as_stated", "its pay is"),
        (MoreThanRight, "pays_as_stated", "at most"),
        (EverybodyWins, "pays_as_stated", "ends with win, not loss"),
        (SnapshotLosesTheRound, "parallel_snapshots_restore", "restored amid a round"),
    ],
)
def test_a_broken_delegation_is_caught(game, check, words):
    (one,) = (one for one in CALL_CHECKS if one.__name__ == check)
    found = findings(game, checks=[one])[check]
    assert found.status == "failed", found
    assert words in found.message


def test_every_check_has_a_broken_delegation():
    (mark,) = (m for m in test_a_broken_delegation_is_caught.pytestmark if m.name == "parametrize")
    assert {check for _, check, _ in mark.args[1]} == {check.__name__ for check in CALL_CHECKS}
