"""Deadlines: never after the caller's, shared by those called together, and faults when missed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role
from marl_llm.games.needle_pool import NeedlePool
from marl_llm.games.relay_chain import RelayChain
from marl_llm.rollout import deadlines
from marl_llm.rollout.plans import Plan, seating
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.serve.tiny import build_tokenizer
from marl_llm.types import Completion, Finish, Outcome, Sampling

SECONDS = st.floats(0, 1e6)


# The rule.


@given(now=SECONDS, left=SECONDS)
def test_a_call_has_half_of_what_its_caller_has_left(now, left):
    until = deadlines.of_call(now, now + left)
    assert now <= until <= now + left or left == 0
    assert until - now == pytest.approx((now + left - until), abs=1e-6)


@given(now=SECONDS, late=SECONDS)
def test_who_is_called_when_the_time_is_over_has_none(now, late):
    assert deadlines.of_call(now, now - late) == now


@given(
    times=st.lists(SECONDS, min_size=1, max_size=6).map(sorted),
    parents=st.lists(st.integers(-1, 4), min_size=6, max_size=6),
    seconds=SECONDS,
)
def test_no_agent_of_a_tree_has_more_time_than_its_caller(times, parents, seconds):
    callers = [min(parent, turn - 1) for turn, parent in enumerate(parents)]

    def caller(turn):
        return None if callers[turn] < 0 else callers[turn]

    known, end = {}, times[0] + seconds
    for now in times:
        for turn in range(len(parents)):
            first = deadlines.of_agent(now, turn, known, end, caller)
            assert first == deadlines.of_agent(now + 1, turn, known, end, caller), "it stays"
            above = deadlines.of_agent(now, caller(turn), known, end, caller)
            assert first <= max(above, times[0])
    assert deadlines.of_agent(times[-1], None, known, end, caller) == end


def test_a_tree_worked_by_hand():
    # 100 s: called at 20 s, an agent has (100 - 20) / 2 = 40 s, until 60 s. At 30 s it calls
    # another, which has (60 - 30) / 2 = 15 s. The next of the first caller, at 60 s, has 20 s.
    known, callers = {}, {0: None, 1: 0, 2: None}
    assert deadlines.of_agent(20.0, 0, known, 100.0, callers.get) == 60.0
    assert deadlines.of_agent(30.0, 1, known, 100.0, callers.get) == 45.0
    assert deadlines.of_agent(60.0, 2, known, 100.0, callers.get) == 80.0
    assert known == {0: 60.0, 1: 45.0, 2: 80.0}


@pytest.mark.parametrize(
    ("turn", "agent", "until"),
    [
        (None, None, None),
        (3.0, None, 13.0),
        (None, 12.0, 12.0),
        (3.0, 12.0, 12.0),
        (1.0, 12.0, 11.0),
    ],
)
def test_a_reply_has_the_shorter_of_two(turn, agent, until):
    assert deadlines.of_reply(10.0, turn, agent) == until


# In play, with an engine that is slow.

TEXTS = ["planner executor opener A B C D A1 A2 open done ask answer report key a 0 ? shut"]


@pytest.fixture(scope="module")
def chat():
    return Chat(build_tokenizer(TEXTS))


class SlowEngine:
    """Answers by a function of the prompt's text; what that gives no answer to is never ready."""

    version, context = 0, 1000

    def __init__(self, chat, answer):
        self._chat, self._answer = chat, answer
        self._waiting, self.asked = [], []  # (prompt, deadline)

    def submit(self, requests):
        for request in requests:
            prompt = self._chat.tokenizer.decode(request.prompt_ids)
            user = prompt.split("user\n")[-1].split("<|im_end|>")[0]
            self.asked.append((user, request.deadline))
            self._waiting.append((request, self._answer(user)))

    def poll(self, timeout):
        self._waiting.sort(key=lambda each: each[0].deadline if each[1] is None else 0)
        request, text = self._waiting.pop(0)
        if text is None:
            time.sleep(max(request.deadline - time.monotonic(), 0))
        ids = () if text is None else self._chat.encode(f"<answer>{text}</answer>")
        finish = Finish.TIME if text is None else Finish.STOP
        return [Completion(request.id, ids, (-0.5,) * len(ids), ((0, 0, len(ids)),), finish)]


def played(chat, game, answer, **limits):
    """An episode of agents who answer so, the engine that they asked, and how long it took."""
    engine = SlowEngine(chat, answer)
    seats = {
        role: ModelSeat(
            Role(
                name=role,
                user=f"{role} {{brief}}",
                parser=Tags(think="none"),
                sampling=Sampling(max_tokens=60),
            ),
            chat,
            "main",
        )
        for role in set(game.roles.values())
    }
    players = seating(game.roles, {role: role for role in seats})
    plan = Plan(id=0, group=0, game="game", seed=3, players=players)
    began = time.monotonic()
    (episode,) = play([plan], {"game": lambda: game}, seats, {"main": engine}, seed=0, **limits)
    return episode, engine, began, time.monotonic() - began


def test_a_sub_agent_that_is_too_late_is_a_report_that_did_not_come(chat):
    def answer(user):
        role, *words = user.split()
        if role == "executor":
            return None
        return f"ask {words[0]}" if len(words) == 1 else "answer 0"

    episode, engine, began, taken = played(chat, RelayChain(), answer, episode_seconds=0.6)
    assert [turn.fault for turn in episode.turns] == [None, Outcome.TIME, None]
    _, executor, again = (turn.observation for turn in episode.turns)
    assert "gives no report" in again.text and executor.parent == 0
    assert episode.outcomes["executor_0"] is Outcome.TIME
    assert episode.outcomes["planner"] in (Outcome.WIN, Outcome.LOSS)
    first, late, last = (deadline - began for _, deadline in engine.asked)
    assert first == last == pytest.approx(0.6, abs=0.1)
    assert late == pytest.approx(0.3, abs=0.1)
    assert late - 0.01 < taken < 0.6


def test_down_a_tree_of_calls_those_above_go_on(chat):
    def answer(user):
        role, *words = user.split()
        if role == "opener":
            return None
        reported = "report" in words or "shut" in words or "open" in words
        names = ("A", "B") if role == "planner" else [word for word in words if len(word) == 2]
        return "done" if reported else " ".join(["open", *names])

    game = NeedlePool(level=2, depth=2)
    episode, engine, _, taken = played(chat, game, answer, episode_seconds=1.2)
    faults = {turn.observation.agent: turn.fault for turn in episode.turns}
    late = {f"opener_{number}": Outcome.TIME for number in range(4)}
    assert faults == {**late, "planner": None, "executor_0": None, "executor_1": None}
    until = {
        role: [deadline for user, deadline in engine.asked if user.startswith(role)]
        for role in ("planner", "executor", "opener")
    }
    assert len(set(until["planner"])) == 1
    assert len(until["executor"]) == 4 and len(set(until["executor"])) == 1, "called together"
    assert len(until["opener"]) == 4
    assert max(until["opener"]) < until["executor"][0] < until["planner"][0]
    assert 0.3 - 0.01 < taken < 1.2
    assert episode.outcomes["planner"] is Outcome.LOSS


def test_a_planner_whose_time_is_over_ends_the_episode(chat):
    episode, _, _, taken = played(chat, RelayChain(), lambda user: None, episode_seconds=0.2)
    assert [turn.fault for turn in episode.turns] == [Outcome.TIME]
    assert episode.outcomes["planner"] is Outcome.TIME and taken < 1


def test_a_turn_may_have_less_time_than_its_call(chat):
    limits = {"turn_seconds": 0.1, "episode_seconds": 60.0}
    _, engine, began, taken = played(chat, RelayChain(), lambda user: None, **limits)
    assert engine.asked[0][1] - began == pytest.approx(0.1, abs=0.05) and taken < 1


def test_without_limits_there_are_no_deadlines(chat):
    def answer(user):
        return "answer 0"

    episode, engine, _, _ = played(chat, RelayChain(), answer)
    assert [deadline for _, deadline in engine.asked] == [None]
    assert episode.turns[0].fault is None
