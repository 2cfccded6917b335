"""Phantom search as it is played: by those who know, by those who do not, and by hostile texts."""

from __future__ import annotations

import contextlib
import io
import pickle
import warnings

import pytest
from pettingzoo.test import api_test, seed_test

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.agents.parsers import Tags
from marl_llm.agents.scripted import Uniform
from marl_llm.errors import GameError
from marl_llm.games import catalog
from marl_llm.games.faults import Faults
from marl_llm.games.phantom.game import SOLO_USES, PhantomSearch, plain
from marl_llm.games.phantom.levels import LEVELS
from marl_llm.games.phantom.names import words_of
from marl_llm.games.phantom.questions import Hop
from marl_llm.games.phantom.tasks import asked_by, told_by
from marl_llm.games.text_game import ACTION_LIMIT, TEXT_LIMIT
from marl_llm.seeds import generator
from marl_llm.types import Finish, Move, Outcome

every_level = pytest.mark.parametrize("level", LEVELS)
EPISODES = {1: 40, 2: 40, 3: 25, 4: 8, 5: 3}
HOSTILE = (
    "", " ", "\x00", "\ud800", ":", "::", "delegate:", "delegate: ;; ;;", "delegate: \x00;;\ud800",
    "answer:", "answer: \ud800", "search: \"' OR 1=1; DROP TABLE pages --", "search: NEAR(",
    "search: \x00\ud800", "visit: #", "visit: #99999999999", "visit: \ud800 #2", "find: \x00",
    "find: (.*)+$", "report: \ud800\x00", "REPORT : x", "(illegal)", "(format)", "search",
    "x" * 100_000, "search: " + "y" * 100_000, "delegate: " + "z ;; " * 20_000, "🂡: 🂡",
)  # fmt: skip


def play(game, player, seed):
    """An episode of one player in all seats: (agent, observation, action) in order."""
    game.reset(seed=seed)
    turns = []
    while game.acting():
        agent = game.acting()[0]
        seen = game.observation(agent)
        action = player.act(game, agent, generator(seed, len(turns)))
        assert game.accepts(agent, action), action
        game.act(agent, Move(action))
        turns.append((agent, seen, action, dict(game.take_rewards())))
    return turns


def holds(text, name):
    """Whether a text holds a name, as words."""
    return f" {' '.join(words_of(name))} " in f" {' '.join(words_of(text))} "


@every_level
def test_the_solver_wins_everything_within_the_budgets(level):
    game = PhantomSearch(level=level)
    for seed in range(EPISODES[level]):
        turns = play(game, Solver(), seed)
        assert game.outcomes()["planner"] is Outcome.WIN
        assert game.right_answer() == 1
        searchers = game.all_calls()[1:]
        assert 0 < len(searchers) <= game.level.calls
        for call in searchers:
            assert game.outcomes()[call.agent] is Outcome.WIN
            assert call.turns <= game.level.searcher_turns
        assert max(len(seen.text) for _, seen, *_ in turns) < TEXT_LIMIT
        paid = dict.fromkeys(game.possible_agents, 0.0)
        for *_, rewards in turns:
            for agent, reward in rewards.items():
                paid[agent] += reward
        assert paid["planner"] == pytest.approx(1)
        assert all(paid[call.agent] == pytest.approx(1) for call in searchers)


@every_level
def test_one_agent_can_do_it_all_by_itself(level):
    game = PhantomSearch(level=level, solo=True)
    assert game.possible_agents == ["planner"]
    for seed in range(EPISODES[level]):
        turns = play(game, Solver(), seed)
        assert game.right_answer() == 1
        assert sum(rewards.get("planner", 0) for *_, rewards in turns) == pytest.approx(1)
        seen = [note.text for note in game.call_of("planner").notes]
        assert all(text in turns[-1][1].text for text in seen)
        assert seen[-1] not in turns[-2][1].text  # a page is seen once it has been looked at


@every_level
@pytest.mark.parametrize("player", [Hasty(), Uniform()], ids=["hasty", "random"])
def test_one_agent_that_does_not_look_wins_less(level, player):
    game, won = PhantomSearch(level=level, solo=True), 0
    for seed in range(EPISODES[level]):
        turns = play(game, player, seed)
        won += game.right_answer()
        assert len(turns) <= game.max_turns
        assert game.outcomes()["planner"] is not Outcome.ILLEGAL
    assert won <= EPISODES[level] / 2


def test_one_agent_has_the_tools_and_nobody_to_call():
    game = PhantomSearch(level=1, solo=True)
    game.reset(seed=0)
    assert "visit: TITLE" in game.rules() and "delegate" not in game.rules()
    assert not game.accepts("planner", "delegate: a")
    assert not game.accepts("planner", "report: a")
    for turn in range(9):  # 3 searchers with 3 uses each
        assert f"Turns left: {10 - turn}." in game.observation("planner").text
        game.act("planner", Move("search: a"))
    game.act("planner", Move(game.answer()))
    assert game.outcomes()["planner"] is Outcome.WIN


@pytest.mark.parametrize("level", [4, 5])
def test_what_one_agent_can_see_fits_into_an_observation(level):
    game = PhantomSearch(level=level, solo=True)
    game.reset(seed=0)
    title = game.library.pages.titles[0][0]
    query = (f"{title} " * ACTION_LIMIT)[: ACTION_LIMIT - len("search: ")].strip()
    for _ in range(SOLO_USES):
        game.act("planner", Move(f"search: {query}"))
    assert game.turns_left(game.call_of("planner")) == 1
    assert len(game.observation("planner").text) < TEXT_LIMIT


@every_level
def test_the_solver_has_seen_what_it_reports(level):
    game = PhantomSearch(level=level)
    for seed in range(EPISODES[level]):
        play(game, Solver(), seed)
        for call in game.all_calls()[1:]:
            read = " ".join(note.text for note in call.notes)
            asked = asked_by(call.task, game.library.question.steps, game.library.world)
            for name in told_by(asked, game.library.world):
                things = game.library.world.register.named(name) or [None]
                names = {name} if things == [None] else game.library.world.things[things[0]].names
                assert any(holds(read, each) for each in names), call.task


@every_level
@pytest.mark.parametrize("player", [Hasty(), Uniform()], ids=["hasty", "random"])
def test_others_play_to_the_end_and_win_less(level, player):
    game, won = PhantomSearch(level=level), 0
    for seed in range(EPISODES[level]):
        turns = play(game, player, seed)
        won += game.outcomes()["planner"] is Outcome.WIN
        assert len(turns) <= game.max_turns
        assert not set(game.outcomes().values()) & {Outcome.ILLEGAL, Outcome.FORMAT}
    assert won <= EPISODES[level] / 2


@every_level
def test_no_first_observation_holds_what_is_asked_for(level):
    game = PhantomSearch(level=level)
    for seed in range(EPISODES[level]):
        turns = play(game, Solver(), seed)
        question, world = game.library.question, game.library.world
        first = turns[0][1]
        if not (question.answers[0].isdigit() and int(question.answers[0]) < 100):  # not a count
            for answer in question.answers:
                assert not holds(first.text + " " + first.brief, answer)
                assert not holds(game.rules(), answer)
        met = set()
        for agent, seen, *_ in turns:
            if agent not in met and agent != "planner":
                met.add(agent)
                asked = asked_by(game.call_of(agent).task, question.steps, world)
                assert all(isinstance(step, Hop) for step in asked.values())
                for told in told_by(asked, world):
                    assert not holds(seen.text + " " + seen.brief, told)
        assert met


def test_tasks_given_at_once_are_worked_on_side_by_side():
    game = PhantomSearch(level=3)
    game.reset(seed=0)
    game.act("planner", Move("delegate: Who is A? ;;  Who is B?;;;; Who is C?"))
    assert game.acting() == ("searcher_0", "searcher_1", "searcher_2")
    assert [call.task for call in game.all_calls()[1:]] == ["Who is A?", "Who is B?", "Who is C?"]
    assert "Who is B?" in game.observation("searcher_1").text
    assert "Who is A?" not in game.observation("searcher_1").text
    for agent in game.acting():
        game.act(agent, Move(f"report: from {agent}"))
    text = game.observation("planner").text
    assert "You asked searcher_1: Who is B?\nIt reports: from searcher_1" in text
    assert "Turns left: 5. Searchers left: 3." in text


def test_more_tasks_than_searchers_are_refused():
    game = PhantomSearch(level=1)
    game.reset(seed=0)
    assert game.accepts("planner", "delegate: a ;; b ;; c")
    assert not game.accepts("planner", "delegate: a ;; b ;; c ;; d")


def test_a_fault_ends_its_call_and_the_planner_reads_why():
    game = PhantomSearch(level=2)
    game.reset(seed=0)
    game.act("planner", Move("delegate: a ;; b"))
    game.act("searcher_0", Move("fly: away"))
    game.act("searcher_1", Move("search: a"))
    game.act("searcher_1", Move("report: b"))
    assert (
        "You asked searcher_0: a\nIt gives no report (illegal)." in game.observation("planner").text
    )


@every_level
def test_actions_go_through_the_parser_as_they_are(level):
    game, parser = PhantomSearch(level=level), Tags()
    for seed in range(2):
        for *_, action, _ in play(game, Solver(), seed):
            reply = parser.render(None, action)
            assert parser.parse(reply, Finish.STOP) == Move(action)


def test_the_answer_may_be_written_in_any_way_by_any_name():
    game, tried = PhantomSearch(level=3), 0
    for seed in range(60):
        game.reset(seed=seed)
        answers = game.library.question.answers
        for name in answers:
            for text in (name, name.upper(), f" the  {name.lower()}. ", f"An {name}!"):
                game.reset(seed=seed)
                game.act("planner", Move(f"ANSWER : {text}"))
                assert game.outcomes()["planner"] is Outcome.WIN
        tried += len(answers) > 1
        for text in ("nobody", f"{answers[0]} or so", f"{answers[0]}x", "0"):
            game.reset(seed=seed)
            game.act("planner", Move(f"answer: {text}"))
            assert game.outcomes()["planner"] is Outcome.LOSS
    assert tried > 5


@every_level
def test_the_answer_that_annotators_ask_for_wins(level):
    game = PhantomSearch(level=level)
    game.reset(seed=1)
    game.act("planner", Move(game.answer()))
    assert game.outcomes()["planner"] is Outcome.WIN


@pytest.mark.parametrize("role", ["planner", "searcher_0"])
def test_no_text_raises(role):
    game = PhantomSearch(level=2)
    for text in HOSTILE:
        game.reset(seed=0)
        if role != "planner":
            game.act("planner", Move("delegate: who is \ud800 \x00 it? ;; b"))
        game.act(role, Move(text))
        for agent in game.possible_agents:
            seen = game.observation(agent)
            (seen.text + seen.brief + seen.key).encode()
            assert len(seen.text) < TEXT_LIMIT
        game.restore(game.snapshot())
        game.outcomes()


def test_text_that_cannot_be_printed_is_made_plain():
    assert plain(" a\n\x00b\ud800 \u202ec\té ") == "a b c é"
    game = PhantomSearch(level=2)
    game.reset(seed=0)
    game.act("planner", Move("delegate: who\nare\x00 you"))
    assert game.call_of("searcher_0").task == "who are you"


@every_level
@pytest.mark.parametrize("player", [Solver(), Uniform()], ids=["solver", "random"])
def test_a_seed_is_an_episode_and_a_snapshot_goes_on(level, player):
    game, other = PhantomSearch(level=level), PhantomSearch(level=level)
    turns = play(game, player, 2)
    assert play(other, player, 2) == turns
    assert game.outcomes() == other.outcomes()
    half = len(turns) // 2
    game.reset(seed=2)
    for agent, _, action, _ in turns[:half]:
        game.act(agent, Move(action))
    game.take_rewards()
    state = game.snapshot()
    copy = pickle.loads(pickle.dumps(game))
    play(other, player, 5)
    other.restore(state)
    for each in (game, copy, other):
        for agent, seen, action, rewards in turns[half:]:
            assert each.observation(agent) == seen
            each.act(agent, Move(action))
            assert dict(each.take_rewards()) == rewards
        assert each.acting() == ()


def test_two_seeds_ask_about_other_worlds():
    game = PhantomSearch(level=3)
    game.reset(seed=0)
    world = game.library.world
    game.reset(seed=1)
    assert game.library.world.things != world.things
    game.reset(seed=0, options={"attempt": 3})
    assert game.library.world is world


def test_pettingzoo_is_content():
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        api_test(PhantomSearch(level=1), num_cycles=200)
        seed_test(lambda: PhantomSearch(level=2))


def test_each_role_is_told_its_own_actions():
    game = PhantomSearch(level=3)
    planner, searcher = game.instructions("planner"), game.instructions("searcher")
    assert "delegate: TASK" in planner and "search:" not in planner
    assert "search: WORDS" in searcher and "delegate:" not in searcher
    assert planner in game.rules() and searcher in game.rules()
    assert "old edition" in planner and "second name" in searcher
    assert "old edition" not in PhantomSearch(level=1).rules()


def test_settings():
    made = catalog.build("phantom_search", {"level": 2, "change": {"stale": 1.0, "links": [1, 1]}})
    assert (made.level.stale, made.level.links) == (1.0, (1, 1))
    rates = {"_target_": "marl_llm.games.faults.Faults", "timeout": 1.0}
    game = catalog.build("phantom_search", {"level": 1, "faults": rates})
    game.reset(seed=0)
    game.act("planner", Move("delegate: a"))
    game.act("searcher_0", Move("search: a"))
    assert game.void() == "attempt 0: the search of searcher_0 in its turn 1 timed out"
    assert game.acting() == ()
    with pytest.raises(GameError, match="is one of"):
        PhantomSearch(level=6)


@pytest.mark.parametrize("level", [1, 3])
def test_the_solver_copes_with_content_faults(level):
    game = PhantomSearch(level=level, faults=Faults(empty=0.3, truncated=0.3, wrong=0.3))
    for seed in range(20):
        play(game, Solver(), seed)
        assert game.outcomes()["planner"] is Outcome.WIN
        assert game.void() is None


def test_only_called_agents_can_be_sampled():
    game = PhantomSearch(level=1)
    game.reset(seed=0)
    with pytest.raises(GameError, match="was not called"):
        game.sample("searcher_0", generator(0))


def test_an_office_may_be_asked_for_off_the_question():
    game = PhantomSearch(level=2)
    for seed in range(30):
        game.reset(seed=seed)
        for number in range(20):
            action = game.wander(game.call_of("planner"), generator(number))
            asked = asked_by(action.partition(": ")[2], (), game.library.world)
            assert sum(len(hop.facts) for hop in asked.values()) == 1, action
