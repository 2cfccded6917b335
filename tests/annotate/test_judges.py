"""What a judge is asked, what is read of its replies, and what becomes of those it fails at."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.annotate.asking import majority, read_verdict
from marl_llm.annotate.citations import Citations, read_numbers
from marl_llm.annotate.judge import JudgeGood, JudgeRole, JudgeScore
from marl_llm.annotate.support_graph import SupportGraph, read_statements
from marl_llm.annotate.transcripts import own_turns
from marl_llm.errors import ConfigError
from marl_llm.types import Finish


def verdict(text):
    return f"I think so.<verdict>{text}</verdict>"


@pytest.fixture
def judged(make_material, make_table, replies):
    """Episodes of the riddle, look and then name, and a judge that replies by a function."""

    def make(reply, count=4, **role):
        judge = make_table(reply)
        players = make_table(replies["curious"])
        return make_material(players, count=count, judge=judge, **role), judge

    return make


def verdicts_on(prompt, look, name):
    """A reply by what the turn to judge did."""
    turn = prompt.split("The turn to judge:")[1].split("After it:")[0]
    return look if "<answer>look" in turn else name


# Reading.


@pytest.mark.parametrize(
    "reply, said",
    [
        ("<verdict>good</verdict>", "good"),
        ("Hm.\n<verdict> 1,\n 3 </verdict>  \n", "1, 3"),
        ("<verdict>good</verdict> or so", None),
        ("<verdict>good</verdict><verdict>bad</verdict>", None),
        ("<verdict>bad <verdict>good</verdict>", None),
        ("<verdict></verdict>", None),
        ("<verdict>good", None),
        ("good", None),
        ("", None),
    ],
)
def test_a_reply_ends_with_its_only_verdict(reply, said):
    assert read_verdict(reply, Finish.STOP) == said
    assert read_verdict(reply, Finish.LENGTH) == said
    assert read_verdict(reply, Finish.TIME) is None


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("none", set()),
        ("None", set()),
        ("2", {2}),
        ("1, 3", {1, 3}),
        ("1,3,3", {1, 3}),
        ("4", None),
        ("0", None),
        ("1 and 3", None),
        ("1, 3,", None),
        ("[1, 3]", None),
        ("__import__('os').abort()", None),
    ],
)
def test_citations_are_a_list_of_numbers(text, numbers):
    assert read_numbers(text, 3) == numbers


@pytest.mark.parametrize(
    "text, statements",
    [
        ("none", set()),
        ("2 uses 1", {("uses", 2, 1)}),
        ("3 uses 1; 3 contradicts 2;2 is wrong", {("uses", 3, 1), ("contradicts", 3, 2),
                                                  ("wrong", 2, 2)}),
        ("3 uses 1; 3 uses 1", {("uses", 3, 1)}),
        ("1 uses 2", None),
        ("2 uses 2", None),
        ("4 uses 1", None),
        ("0 is wrong", None),
        ("3 uses 1, 3 uses 2", None),
        ("3 uses 1;", None),
        ("3 supports 1", None),
    ],
)  # fmt: skip
def test_a_graph_is_a_list_of_statements(text, statements):
    assert read_statements(text, 3) == statements


@given(st.text(alphabet="0123456789 ;,uses contradicts is wrong none-[]()", max_size=60))
def test_any_text_is_read_or_refused(text):
    numbers = read_numbers(text, 5)
    assert numbers is None or numbers <= {1, 2, 3, 4, 5}
    graph = read_statements(text, 5)
    assert graph is None or all(1 <= of <= by <= 5 for _, by, of in graph)


def test_more_than_half_must_say_it():
    say = [frozenset({1, 2}), frozenset({1}), frozenset({1, 3}), frozenset({2})]
    assert majority(say) == {1}, "1 has three of four, 2 has two"
    assert majority([]) is None
    assert majority([frozenset(), frozenset({1})]) == frozenset()


# Labels of turns.


def test_each_turn_gets_the_judges_label(judged):
    material, _ = judged(lambda p, s: verdicts_on(p, verdict("bad"), verdict(" Good ")))
    columns = JudgeGood().annotate(material)
    assert columns["judge_good"].tolist() == [0.0, 1.0] * 4
    assert JudgeGood.signals == tuple(columns)


def test_roles_and_scores_have_their_own_words(judged):
    material, _ = judged(lambda p, s: verdicts_on(p, verdict("exploratory"), verdict("decisive")))
    assert JudgeRole().annotate(material)["judge_role"].tolist() == [1.0, 0.0] * 4
    material, _ = judged(lambda p, s: verdicts_on(p, verdict("0.25"), verdict("2")))
    assert JudgeScore(high=2).annotate(material)["judge_score"].tolist() == [0.25, 2.0] * 4
    found = JudgeScore().annotate(material)["judge_score"]
    assert found[0] == 0.25
    assert np.isnan(found[1]), "2 is above the highest score"


@pytest.mark.parametrize("bad", ["", "good", verdict("great"), verdict("good; bad"), "<verdict>go"])
def test_what_cannot_be_read_is_a_missing_label_and_never_a_bad_one(judged, bad):
    material, _ = judged(lambda p, s: verdicts_on(p, bad, verdict("bad")))
    found = JudgeGood().annotate(material)["judge_good"]
    assert np.isnan(found[0::2]).all()
    assert found[1::2].tolist() == [0.0] * 4
    batch = material.batch.with_signals({"judge_good": found})
    assert batch.known("judge_good").tolist() == [False, True] * 4


def test_the_label_with_the_most_votes_counts_and_a_tie_is_none(judged):
    def votes(*words):
        said = iter(words * 100)
        material, judge = judged(lambda p, s: verdict(next(said)), count=1)
        found = JudgeGood(samples=len(words), temperature=1.0).annotate(material)["judge_good"]
        assert len(judge.asked) == 2 * len(words)
        assert len({request.seed for request in judge.requests}) == 2 * len(words)
        return found[0]

    assert votes("good", "bad", "good") == 1.0
    assert votes("bad", "what", "bad") == 0.0
    assert np.isnan(votes("good", "bad"))
    assert votes("good", "bad", "good", "bad", "good") == 1.0
    assert np.isnan(votes("what", "what"))


def test_numbers_are_averaged(judged):
    said = iter(["0.2", "0.6", "no"] * 10)
    material, _ = judged(lambda p, s: verdict(next(said)), count=1)
    found = JudgeScore(samples=3, temperature=1.0).annotate(material)["judge_score"]
    assert found == pytest.approx([0.4, 0.4])


def test_the_budget_is_not_exceeded_and_what_is_left_over_is_missing(judged):
    material, judge = judged(lambda p, s: verdict("good"), count=12)
    found = JudgeGood(samples=2, temperature=1.0, budget=5).annotate(material)["judge_good"]
    assert len(judge.asked) == 4, "two questions, twice each"
    assert 0 < np.isnan(found).sum() < len(found)
    none = JudgeGood(samples=2, temperature=1.0, budget=1).annotate(material)["judge_good"]
    assert np.isnan(none).all()


def test_equal_questions_are_asked_once(judged):
    material, judge = judged(lambda p, s: verdict("good"), count=30)
    JudgeGood().annotate(material)
    assert len(judge.asked) == len(set(judge.asked)) == 6, "three colours, two turns"


def test_the_judge_sees_the_turns_around_and_not_the_end(judged):
    material, judge = judged(lambda p, s: verdict("good"), count=1)
    JudgeGood(question="{before}|{turn}|{after}|{rules}|{verdicts}|{agent}").annotate(material)
    first, second = judge.asked
    look, name = (turn.reply for turn in material.turns)
    before, turn, after, rules, verdicts, agent = first.split("user\n")[1].split("|")[:6]
    assert before == "nothing"
    assert turn.endswith(look)
    assert after.endswith(name)
    assert rules == "Name the colour of the ball."
    assert verdicts == "one word of: good (it helped), bad (it did not help)"
    assert agent.startswith("player_0")
    assert "win" not in first + second
    JudgeGood(window=0, question="{before}|{after}").annotate(material)
    assert "nothing|nothing" in judge.asked[-1]


def test_a_judge_may_be_told_the_right_answer(judged):
    material, judge = judged(lambda p, s: verdict("good"), count=1)
    JudgeGood(question="It is {answer}.").annotate(material)
    game = material.reach.games["riddle"]()
    game.reset(material.episodes[0].seed)
    assert f"It is {game.answer()}." in judge.asked[0]


def test_a_judge_that_is_late_gives_no_labels(judged):
    material, judge = judged(lambda p, s: verdict("good"))
    judge.finish = Finish.TIME
    began = time.monotonic()
    found = JudgeGood(seconds=5.0, max_tokens=77).annotate(material)["judge_good"]
    assert np.isnan(found).all()
    assert all(4.0 < request.deadline - began < 6.0 for request in judge.requests)
    assert {request.sampling.max_tokens for request in judge.requests} == {77}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"question": "{outcome}"}, r"JudgeGood\.question: unknown placeholder {outcome}"),
        ({"samples": 3}, r"JudgeGood\.samples=3 at temperature 0 are as many equal replies"),
        ({"samples": 0}, r"JudgeGood\.samples must be"),
        ({"budget": -1}, r"JudgeGood\.budget must be"),
        ({"window": -1}, r"JudgeGood\.window must be"),
        ({"seconds": float("nan")}, r"JudgeGood\.seconds must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        JudgeGood(**settings)


def test_a_range_of_scores_is_a_range():
    with pytest.raises(ConfigError, match="low < high"):
        JudgeScore(low=1.0)


# Whole transcripts.


def test_one_question_per_agent_and_episode_marks_what_is_cited(judged):
    material, judge = judged(lambda p, s: verdict("1"), count=3)
    columns = Citations().annotate(material)
    assert columns["cited"].tolist() == [1.0, 0.0] * 3
    assert "Turn 1. player_0 saw:" in judge.asked[0]
    assert "does turn 2 rest" in judge.asked[0]


def test_citations_that_cannot_be_read_are_missing(judged):
    material, _ = judged(lambda p, s: verdict("2"), count=3)
    assert np.isnan(Citations().annotate(material)["cited"]).all(), "2 is the citing turn itself"
    material, _ = judged(lambda p, s: verdict("none"), count=3)
    assert Citations().annotate(material)["cited"].tolist() == [0.0] * 6


def test_an_agent_with_one_turn_cites_nothing_and_is_not_asked(make_material, make_table):
    judge = make_table(lambda p, s: verdict("1"))
    players = make_table(lambda p, s: "<answer>red</answer>")
    material = make_material(players, count=3, judge=judge)
    assert Citations().annotate(material)["cited"].tolist() == [0.0] * 3
    assert judge.asked == []


def test_a_turn_is_cited_if_more_than_half_say_so(judged):
    said = iter(["1", "none", "1", "none", "1", "none"])
    material, _ = judged(lambda p, s: verdict(next(said)), count=1)
    assert Citations(samples=3, temperature=1.0).annotate(material)["cited"].tolist() == [1.0, 0.0]
    assert Citations(samples=3, temperature=1.0).annotate(material)["cited"].tolist() == [0.0, 0.0]


def test_a_graph_counts_the_edges_at_both_ends(make_material, make_table):
    # Three looks and a colour: 4 uses 1 and 2, 3 contradicts 2, 3 is wrong.
    words = iter(["look", "look", "look", "red"] * 2)
    players = make_table(lambda p, s: f"<answer>{next(words)}</answer>")
    judge = make_table(lambda p, s: verdict("4 uses 1; 4 uses 2; 3 contradicts 2; 3 is wrong"))
    material = make_material(players, count=1, judge=judge)
    assert len(material.turns) == 4
    columns = SupportGraph().annotate(material)
    assert {name: column.tolist() for name, column in columns.items()} == {
        "support_out": [1, 1, 0, 0],
        "support_in": [0, 0, 0, 2],
        "contradicted": [0, 1, 0, 0],
        "faulty": [0, 0, 1, 0],
    }


def test_a_graph_that_cannot_be_read_is_missing_for_its_agent_only(judged):
    material, _ = judged(
        lambda p, s: verdict("2 uses 1" if "The ball is red" in p else "2 uses 2"), count=9
    )
    columns = SupportGraph().annotate(material)
    red = np.array(
        [
            any(turn.action == "red" for turn in episode.turns)
            for episode in material.episodes
            for _ in episode.turns
        ]
    )
    assert red.any() and not red.all()
    for column in columns.values():
        np.testing.assert_array_equal(np.isnan(column), ~red)


def test_agents_of_one_episode_are_asked_about_apart(make_material, make_table):
    engine = make_table(lambda p, s: f"<answer>{('pass', 'bet')[s % 2]}</answer>")
    material = make_material(engine, "kuhn", 20, user="{brief}")
    rows = own_turns(material)
    assert sorted(row for own in rows for row in own) == list(range(len(material.turns)))
    for own in rows:
        agents = {material.turns[row].observation.agent for row in own}
        assert len(agents) == 1
        assert [material.batch.agent_turn[row] for row in own] == list(range(len(own)))
