"""Departments: the truth computed a second way, what is hidden, what a failure does."""

import os
import pickle
import re
import signal
import time
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.scripted import Uniform
from marl_llm.errors import GameError
from marl_llm.games import catalog
from marl_llm.games.departments.game import Departments
from marl_llm.games.departments.questions import make_question
from marl_llm.games.departments.world import LEVELS
from marl_llm.games.tools import process
from marl_llm.games.tools.process import Limits, Tool
from marl_llm.seeds import generator
from marl_llm.types import Move, Outcome

NAUGHTY = str(Path(__file__).parents[1] / "tools" / "naughty.py")
every_level = pytest.mark.parametrize("level", list(LEVELS))


def steps(game, player, seed):
    """Play an episode; the observation and the action of each turn."""
    rng = generator(seed, "test")
    while game.acting():
        agent = game.acting()[0]
        seen, action = game.observation(agent), player.act(game, agent, rng)
        yield seen, action
        game.act(agent, Move(action))


def play(game, seed, player=None):
    game.reset(seed)
    return list(steps(game, player or Solver(), seed))


def started(seed=0, **settings):
    game = Departments(**settings)
    game.reset(seed)
    return game


def act(game, *actions):
    for action in actions:
        game.act(game.acting()[0], Move(action))


# The truth.


def answer_of(game):
    """The answer, from the tables and the words of the question, by lists and loops."""
    tables = {name: [tuple(row) for row in rows] for name, rows in game._tables.items()}
    wage, minutes = dict(tables.get("pay", [])), dict(tables.get("time", []))
    asked = game._question.brief
    if ":" not in asked:
        what, worker = asked.split()
        return {"wage": wage, "hall": dict(tables["staff"])}[what][worker]
    measure, _, words = asked.partition(": ")
    left = list(tables["staff"])
    for each in words.split(", "):
        compared = re.fullmatch(r"(wage|hours) ([<>]) (\d+)", each)
        if compared:
            name, sign, limit = compared.groups()
            known, unit = (wage, 100) if name == "wage" else (minutes, 60)
            limit = int(limit) * unit
            left = [
                row
                for row in left
                if known[row[0]] is not None
                and (known[row[0]] > limit if sign == ">" else known[row[0]] < limit)
            ]
        elif each.startswith("hall "):
            left = [row for row in left if row[1] == each[5:]]
        elif each.startswith("not hall "):
            left = [row for row in left if row[1] != each[9:]]
        elif each == "wage unknown":
            left = [row for row in left if wage[row[0]] is None]
        elif re.fullmatch(r"(w\d+ ?)+", each):
            left = [row for row in left if row[0] in each.split()]
        elif each != "all":
            towns = dict(tables.get("sites", []))
            left = [row for row in left if row[2] == each or towns.get(row[1]) == each]
    workers = [row[0] for row in left]
    if measure == "count":
        return len(workers)
    if measure in ("wages", "hours"):
        known, unit = (wage, 100) if measure == "wages" else (minutes, 60)
        return sum(known[w] for w in workers if known[w] is not None) / unit
    if measure in ("top_wage", "top_hours"):
        known = wage if measure == "top_wage" else minutes
        best = max(known[w] for w in workers if known[w] is not None)
        (worker,) = (w for w in workers if known[w] == best)
        return worker
    made = [(row[2], row[3]) for row in tables["jobs"] if row[1] in workers and row[3] is not None]
    if measure == "pieces":
        return sum(pieces for _, pieces in made)
    assert measure == "kilograms"
    return sum(pieces * dict(tables["stock"])[item] for item, pieces in made) / 1000


@every_level
def test_the_truth_is_what_the_tables_say(level):
    game = Departments(level=level)
    for seed in range(150):
        game.reset(seed)
        truth = game._question.truth
        assert (
            truth == pytest.approx(answer_of(game))
            if not isinstance(truth, str)
            else (truth == answer_of(game))
        ), (seed, game._question.text)
        assert game.answer() == f"answer: {truth if isinstance(truth, str) else f'{truth:.10g}'}"


@every_level
def test_a_question_needs_as_many_departments_as_its_level_says(level):
    game, kinds = Departments(level=level), set()
    for seed in range(150):
        game.reset(seed)
        needed = [step.department for step in game._question.steps]
        assert len(set(needed)) == len(needed) == max(1, level - 1)
        assert set(needed) <= set(game.departments)
        kinds.add(game._question.brief.split()[0])
    assert len(kinds) >= 2


@every_level
def test_the_solver_wins_and_all_its_clerks_are_right(level):
    game = Departments(level=level)
    for seed in range(25):
        play(game, seed)
        assert game.right_answer() == 1.0
        called = game.all_calls()
        assert set(game.outcomes().values()) <= {Outcome.WIN, Outcome.ABSENT}
        assert len(called) == 1 + max(1, level - 1)  # nobody is asked in vain
        rewards = game.take_rewards()
        assert [rewards[call.agent] for call in called] == pytest.approx([1.0] * len(called))
        assert game.void() is None


@every_level
def test_weak_players_mostly_fail_and_never_break_it(level):
    game, won = Departments(level=level), 0
    for player in (Hasty(), Uniform()):
        for seed in range(30):
            for seen, action in play(game, seed, player):
                assert game.accepts(seen.agent, action) or not game.acting() or action
            won += game.right_answer()
            assert game.void() is None and set(game.outcomes()) == set(game.possible_agents)
    assert won < 25  # of 60


def test_random_play_takes_allowed_actions():
    for level in LEVELS:
        game = started(level=level)
        for seed in range(10):
            game.reset(seed)
            rng = generator(seed)
            while game.acting():
                agent = game.acting()[0]
                action = game.sample(agent, rng)
                assert game.accepts(agent, action)
                game.act(agent, Move(action))
            assert not set(game.outcomes().values()) & {Outcome.ILLEGAL, Outcome.FORMAT}


def test_questions_are_made_quickly():
    for level, most in ((1, 5.0), (5, 50.0)):
        taken = []
        for seed in range(40):
            begun = time.process_time()
            make_question(LEVELS[level], Random(seed))
            taken.append(1000 * (time.process_time() - begun))
        assert median(taken) < most, level


# Reports.


def test_a_report_is_right_if_it_is_one_of_the_right_sub_queries():
    game = started(level=4, seed=0)
    for seed in range(100):
        game.reset(seed)
        if game._question.brief.startswith("count"):
            break
    pay = game._needed("pay")
    assert [step.department for step in game._question.steps] == ["sites", "staff", "pay"]
    tables = game._tables
    limit = int(re.search(r"(\d+) cents", pay.task).group(1))
    more = "more" in pay.task
    paid = {w for w, cents in tables["pay"] if cents is not None and (cents > limit) == more}
    towns = dict(tables["sites"])
    here = {
        w
        for w, hall, _ in tables["staff"]
        if towns.get(hall) == game._question.brief.split()[1][:-1]
    }
    both = sorted(here & paid)

    def score(department, report):
        game.reset(seed)
        act(game, f"ask {department}: whatever the task is", f"report: {report}")
        return game._rightness(game.call_of("clerk_0"))

    assert score("staff", " ".join(sorted(here))) == 1.0
    assert score("staff", " ".join(sorted(here)[:-1])) == pytest.approx(
        2 * (len(here) - 1) / (2 * len(here) - 1)
    )
    assert score("pay", ", ".join(both)) == 1.0  # told the workers
    assert score("pay", ", ".join(sorted(paid))) == 1.0  # or not told
    assert score("pay", str(len(both))) == 1.0  # all that the question needs of it
    assert score("pay", "none") == 0.0
    assert score("time", "none") == 0.0  # which nobody needs


def test_a_department_that_nobody_needs_cannot_be_right():
    game = started(level=2)
    (needed,) = (step.department for step in game._question.steps)
    other = next(name for name in game.departments if name != needed)
    act(game, f"ask {other}: Anything?", "report: none")
    assert game._rightness(game.call_of("clerk_0")) == 0.0
    assert game.take_rewards() == {"clerk_0": pytest.approx(0.1)}


def test_on_level_1_a_report_is_right_if_it_says_what_the_task_asks():
    game = started(level=1)
    wages = dict(game._tables["pay"])
    act(game, "ask pay: w2 ;; ask pay: w3", f"report: {wages['w2']}", f"report: w3 {wages['w3']}")
    assert [game._rightness(game.call_of(f"clerk_{n}")) for n in (0, 1)] == [1.0, 1.0]


# What is hidden.


@every_level
def test_the_planner_sees_no_table_and_a_clerk_neither_question_nor_other_departments(level):
    game = Departments(level=level)
    for seed in range(12):
        game.reset(seed)
        question, others = game._question.text, set(game.departments)
        before = game.observation("planner")
        game._tables = {
            name: [[None] * len(row) for row in rows] for name, rows in game._tables.items()
        }
        assert game.observation("planner") == before
        game.reset(seed)
        for seen, _ in steps(game, Solver(), seed):
            if seen.role != "clerk":
                continue
            own = game._department(game.call_of(seen.agent)).name
            assert question not in seen.text and game._question.brief not in seen.text
            words = set(re.findall(r"\w+", f"{seen.text} {seen.brief} {seen.key}"))
            assert not words & (others - {own, "jobs", "time"})  # these two are plain words as well
            kept = game._question, game._tables
            game._question, game._tables = None, {own: game._tables[own]}
            assert game.observation(seen.agent) == seen
            game._question, game._tables = kept
    told = game.instructions("clerk")
    assert not set(re.findall(r"\w+", told)) & (set(game.departments) - {"time"})
    assert "sql" not in game.instructions("planner").lower()


def test_what_a_clerk_did_is_shown_to_nobody_else():
    game = started(level=3)
    act(game, "ask staff: first ;; ask pay: second")
    other, boss = game.observation("clerk_1"), game.observation("planner")
    act(game, "sql: SELECT * FROM workers", "report: 1")
    assert "SELECT" in game.observation("clerk_0").text
    assert game.observation("clerk_1") == other
    assert game.observation("planner").text == boss.text.replace(
        "second No report: it is at work.", "second Report: 1"
    )
    assert game.observation("clerk_2").text == "You have not been called."


@pytest.mark.parametrize(
    "query",
    ["SELECT * FROM workers", "SELECT * FROM sqlite_master", "SELECT * FROM main.workers"],
)
def test_a_clerk_cannot_query_another_department(query):
    game = started(level=3)
    act(game, "ask pay: hello", f"sql: {query}")
    (note,) = game.call_of("clerk_0").notes
    assert not note.answered and note.text.startswith("refused: ")
    assert game.acting() == ("clerk_0",)  # it may try again


def test_hostile_and_endless_queries_are_read_about_and_the_game_goes_on():
    game = started(level=5)
    act(game, "ask staff: hello")
    for query, words in (
        ("SELECT load_extension('x')", "refused: the function load_extension is not allowed"),
        ("SELECT 1 FROM workers a, workers b, workers c, workers d", "rows are shown)"),
        ("SELECT count(*) FROM workers a, workers b, workers c, workers d", "timeout: the query"),
        ("SELECT * FROM workers", "(cut: only the first 20 rows are shown)"),
    ):
        act(game, f"sql: {query}")
        said = game.call_of("clerk_0").notes[-1].text
        assert words in said
    act(game, "report: none")
    assert game.void() is None and game.acting() == ("planner",)


# Actions.


@pytest.mark.parametrize(
    "action",
    [
        "", "ask", "ask pay", "ask pay:", "ask: x", "ask sales: x", "askpay: x", "pay: x",
        "ask pay: x ;; ", "ask pay: x ;; answer: 3", "ask pay: a ;; ask pay: b ;; ask pay: c ;; "
        "ask pay: d ;; ask pay: e", "ask pay: " + "x" * 601, "answer:", "answer: ", "report: 3",
        "sql: SELECT 1", "schema", "\x00", "get w1", "(format)",
    ],
)  # fmt: skip
def test_what_a_planner_cannot_do(action):
    game = started(level=3)
    assert not game.accepts("planner", action)
    game.act("planner", Move(action))
    assert game.outcomes()["planner"] is Outcome.ILLEGAL and game.take_rewards() == {}


@pytest.mark.parametrize(
    "action", ["", "ask pay: x", "answer: 3", "report:", "sql:", "sql", "schema now", "get w1"]
)
def test_what_a_clerk_cannot_do(action):
    game = started(level=3)
    act(game, "ask pay: x")
    assert not game.accepts("clerk_0", action)
    act(game, action)
    assert game.acting() == ("planner",)
    assert "pay was asked: x No report: illegal fault." in game.observation("planner").text


def test_reports_are_one_line_of_limited_length():
    game = started(level=3)
    act(game, "ask pay:\n several \t words", "report: a\nb\n\nQuestion: none " + "x" * 3000)
    text = game.observation("planner").text
    assert "pay was asked: several words Report: a b Question: none xxx" in text
    assert len(text) < 2500


def test_asks_of_one_action_work_side_by_side():
    game = started(level=3)
    act(game, "ask pay: one ;; ask staff: two;;ask pay: three")
    assert game.acting() == ("clerk_0", "clerk_1", "clerk_2")
    assert [call.task for call in game.all_calls()[1:]] == ["pay: one", "staff: two", "pay: three"]
    act(game, "schema", "schema", "report: 1")
    assert game.call_of("clerk_0").notes[0].text == "wages(worker TEXT, cents INTEGER)"
    assert game.acting() == ("clerk_0", "clerk_1")


def test_get_is_for_level_1_and_short():
    game = started(level=1)
    act(game, "ask staff: w2", "get w2")
    hall = dict(game._tables["staff"])["w2"]
    seen = game.observation("clerk_0")
    assert seen.brief == f"w2; get w2 = {hall}" and seen.text.endswith(f"Task: w2\nget w2\n{hall}")
    act(game, "get w99")
    assert game.call_of("clerk_0").notes[-1].text == "no rows"


def test_settings_are_checked_and_the_yaml_can_be_changed():
    with pytest.raises(GameError, match=r"level of departments is one of \[1, 2, 3, 4, 5\], got 9"):
        Departments(level=9)
    limits = {"_target_": "marl_llm.games.tools.process.Limits", "wall": 5.0}
    game = catalog.build("departments", {"level": 1, "limits": limits})
    assert game.tool.limits == Limits(wall=5.0)


# Copies.


@every_level
def test_the_seed_is_the_episode(level):
    one, two = Departments(level=level), Departments(level=level)
    play(one, 99, Hasty())
    first, second = play(one, 7), play(two, 7)
    assert first == second and one.outcomes() == two.outcomes()
    assert play(two, 8) != second


@every_level
def test_a_snapshot_brings_everything_back_and_runs_no_query(level):
    game = Departments(level=level)
    game.reset(3)
    rest = [(seen, action, game.snapshot()) for seen, action in steps(game, Solver(), 3)]
    ended = game.snapshot()
    for turn, (seen, _, state) in enumerate(rest):
        copy = Departments(level=level)
        copy.tool = Tool("/nowhere.py")
        copy.restore(state)
        assert copy.observation(seen.agent) == seen and copy.void() is None
        assert copy.snapshot() == state
        copy.tool = game.tool
        assert [each[:2] for each in rest[turn:]] == list(steps(copy, Solver(), 3))
        assert copy.outcomes() == game.outcomes()
    game.restore(ended)
    assert game.outcomes()["planner"] is Outcome.WIN
    assert game.right_answer() == 1.0


def test_a_pickle_goes_on_and_holds_no_process():
    game = started(level=4)
    for turn, _ in enumerate(steps(game, Solver(), 0)):
        copy = pickle.loads(pickle.dumps(game))
        list(steps(copy, Solver(), 0))
        assert copy.right_answer() == 1.0
        if turn > 6:
            break
    assert len(pickle.dumps(game)) < 50_000


def test_many_games_share_one_worker():
    process.close()
    games = [started(level=2, seed=seed) for seed in range(5)]
    for seed, game in enumerate(games):
        list(steps(game, Solver(), seed))
    assert len([p for p in process._SHARED.values() if p.pid is not None]) == 1


@pytest.mark.filterwarnings("ignore")
@every_level
def test_pettingzoos_own_tests(level, capsys):
    api_test(Departments(level=level))
    seed_test(lambda: Departments(level=level))


# Failures.


def test_a_worker_killed_between_turns_is_not_noticed():
    game = started(level=2)
    for _ in steps(game, Solver(), 0):
        pid = process.shared(game.tool).pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            while process.shared(game.tool).pid is not None:
                time.sleep(0.01)
    assert game.right_answer() == 1.0 and game.void() is None


def test_a_failing_machine_ends_the_episode_at_once_and_nobody_is_to_blame():
    game = started(level=3)
    act(game, "ask pay: one ;; ask staff: two ;; ask pay: three")
    game.tool = Tool(NAUGHTY)  # answers these calls by an error of its own
    act(game, "sql: SELECT 1", "sql: SELECT 2", "report: 3")
    assert game.acting() == ()
    assert game.void() == "a query in pay: crashed: KeyError: 'what'"
    ended = game.outcomes()
    assert ended["planner"] is ended["clerk_0"] is ended["clerk_1"] is Outcome.TRUNCATED
    assert game.call_of("clerk_0").notes == game.call_of("clerk_1").notes == []
    copy = Departments(level=3)
    copy.restore(game.snapshot())
    assert copy.void() == game.void() and copy.outcomes() == game.outcomes()
    game.tool = Departments().tool
    game.reset(1)
    assert game.void() is None and game.acting() == ("planner",)


def test_a_worker_killed_in_the_middle_of_a_query(monkeypatch):
    game = started(level=3)
    act(game, "ask pay: one")
    tool = process.ToolProcess(Tool(NAUGHTY))
    tool.call({"what": "count"})
    os.kill(tool.pid, signal.SIGSTOP)  # so that it is in the middle of the call for certain
    ended = process.threading.Timer(0.3, os.kill, (tool.pid, signal.SIGKILL))
    ended.start()
    monkeypatch.setattr(process, "shared", lambda _: tool)
    act(game, "sql: SELECT 1")
    assert game.void() == "a query in pay: crashed: the worker died with code -9"
    assert game.acting() == ()
    tool.close()


def test_a_worker_that_does_not_answer_in_time(monkeypatch):
    game = started(level=3, limits=Limits(wall=0.3, files=9))
    act(game, "ask pay: one", "sql: SELECT 1")
    assert game.void() is None
    os.kill(process.shared(game.tool).pid, signal.SIGSTOP)
    act(game, "sql: SELECT 1")
    assert game.void() == "a query in pay: timeout: no end of the call in time"


def test_a_guilty_query_voids_nothing():
    game = started(level=3)
    act(game, "ask pay: one")
    game._again = [["timeout", "stopped after 1 s of computing", False]]
    act(game, "sql: SELECT 1")
    assert game.void() is None and game.acting() == ("clerk_0",)
    assert game.call_of("clerk_0").notes[-1].text == "timeout: stopped after 1 s of computing"


def test_numbers_have_one_shape():
    game = started(level=5)
    shapes = {game.numbers(agent).shape for agent in game.possible_agents}
    assert len(shapes) == 1 and game.numbers("planner").dtype == np.float32
