"""Answers of a group that match, and how likely their episodes make them."""

import numpy as np
import pytest

from marl_llm.annotate.answer_clusters import AnswerClusters, normalised
from marl_llm.credit.siop import SIOP
from marl_llm.errors import ConfigError


def opinion(prompt, text):
    """-0.2 per token for what the prompt shows, -2 for anything else."""
    return -0.2 if f"The ball is {text.removesuffix('</answer>')}" in prompt else -2.0


@pytest.fixture
def group(make_material, make_table):
    """One group of four episodes that answer as they are told."""

    def make(*answers, context=10_000):
        words = iter(answers)
        engine = make_table(lambda prompt, seed: next(words), opinion, context)
        return make_material(engine, count=4, size=4), engine

    return make


def say(action):
    return f"<answer>{action}</answer>"


def test_shares_are_of_the_group(group):
    material, _ = group(say("red"), say("blue"), say("red"), say("red"))
    columns = AnswerClusters().annotate(material)
    assert columns["answer_share"].tolist() == [0.75, 0.25, 0.75, 0.75]
    assert columns["answer_before"] == pytest.approx([np.exp(-2)] * 4), "nothing is shown"


def test_looking_makes_the_answer_likely(make_material, make_table, replies):
    material = make_material(make_table(replies["curious"], opinion), count=4, size=4)
    columns = AnswerClusters().annotate(material)
    assert columns["answer_before"] == pytest.approx(np.exp([-2.0, -0.2] * 4))
    assert columns["answer_after"] == pytest.approx(np.exp([-0.2, -0.2] * 4))
    assert columns["answer_share"].tolist() == [1.0] * 8
    SIOP().estimate(material.batch.with_signals(columns))


def test_an_episode_without_an_answer_has_share_0_and_is_known(group):
    material, engine = group(say("red"), "no form", say("blue"), say("blue"))
    columns = AnswerClusters().annotate(material)
    assert columns["answer_share"].tolist() == [0.25, 0.0, 0.5, 0.5], "it is one of the four"
    assert columns["answer_before"][1] == columns["answer_after"][1] == 0.0
    assert material.batch.with_signals(columns).known("answer_before").all()
    ((texts, _),) = engine.scored
    assert {text for _, text in texts} == {"red</answer>", "blue</answer>"}


def test_spellings_of_one_answer_are_a_cluster_whose_mean_counts(group):
    material, engine = group(say("red"), say("Red"), say("red"), say("RED."))
    # "Red" is illegal and ends the game; it is an answer all the same.
    loose = AnswerClusters().annotate(material)
    assert loose["answer_share"].tolist() == [1.0] * 4
    strict = AnswerClusters(match="exact").annotate(material)
    assert strict["answer_share"].tolist() == [0.5, 0.25, 0.5, 0.25]
    engine.opinion = lambda prompt, text: -1.0 if text.startswith("red") else -3.0
    mean = (np.exp(-1) + np.exp(-3) + np.exp(-3)) / 3
    assert AnswerClusters().annotate(material)["answer_before"] == pytest.approx([mean] * 4)
    most = AnswerClusters(references=1).annotate(material)["answer_before"]
    assert most == pytest.approx([np.exp(-1)] * 4), "the most frequent spelling"


def test_without_room_the_probability_is_missing(group):
    material, engine = group(*[say("red")] * 4)
    engine.context = 5
    columns = AnswerClusters().annotate(material)
    assert np.isnan(columns["answer_before"]).all()
    assert not material.batch.with_signals(columns).known("answer_after").any()
    assert columns["answer_share"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "answer, plain",
    [(" The  Ball. ", "the ball"), ("Straße", "strasse"), ("a!?", "a"), ("...", "")],
)
def test_normalised(answer, plain):
    assert normalised(answer) == plain


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"answer_clusters\.match has no option 'fuzzy'"):
        AnswerClusters(match="fuzzy")
    with pytest.raises(ConfigError, match=r"answer_clusters\.references"):
        AnswerClusters(references=0)
