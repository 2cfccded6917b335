"""What the policy says of its own tokens: as they were sampled, and under other prompts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from marl_llm.annotate.hindsight import Hindsight
from marl_llm.annotate.negative_prompt import NegativePrompt
from marl_llm.annotate.reference_logprobs import ReferenceLogprobs
from marl_llm.annotate.token_statistics import TokenStatistics
from marl_llm.credit.tokens import mean_turns
from marl_llm.errors import ConfigError
from marl_llm.learn.reference import KL


@pytest.fixture
def table(make_table, replies):
    return make_table(replies["curious"], lambda prompt, text: -0.5 - 0.25 * ("wrongly" in prompt))


def user_texts(engine):
    """The user turn that each scored reply stood behind."""
    ((texts, _),) = engine.scored
    return [text.split("user\n")[-1].split("<|im_end|>")[0] for text, _ in texts]


def test_hindsight_tells_the_end_in_the_prompt_of_the_turn(make_material, table):
    material = make_material(table, count=1, memory="dialogue")
    note = "END {ending} {outcome} {points}"
    columns = Hindsight(note=note).annotate(material)
    (episode,) = material.episodes
    ending = episode.turns[1].observation.text.split("\n")[0]
    said = [turn.observation.text for turn in episode.turns]
    assert user_texts(table) == [f"{text}\nEND {ending} win 1" for text in said]
    assert columns["hindsight_logprob"].tolist() == [-0.5, -0.5]


def test_hindsight_of_a_losers_turns_says_so(make_material, make_table, replies):
    engine = make_table(lambda prompt, seed: replies["say"]("red"))
    material = make_material(engine, count=12)
    Hindsight(note="{outcome}: {points}").annotate(material)
    ends = {text.split("\n")[-1] for text in user_texts(engine)}
    assert ends == {"win: 1", "loss: 0"}


def test_hindsight_is_scored_at_the_temperature_of_sampling(make_material, table):
    material = make_material(table, count=2)
    half = np.array([1.0, 0.5, 1.0, 0.5])
    columns = Hindsight().annotate(replace(material, temperatures=half))
    assert columns["hindsight_logprob"].tolist() == [-0.5, -1.0, -0.5, -1.0]
    assert sorted(temperature for _, temperature in table.scored) == [0.5, 1.0]


def test_a_turn_without_tokens_has_no_hindsight(make_material, make_table):
    engine = make_table(lambda prompt, seed: "")
    material = make_material(engine, count=2)
    assert np.isnan(Hindsight().annotate(material)["hindsight_logprob"]).all()
    assert engine.scored == []


def test_hindsight_of_a_real_model(make_material, table, tiny, chat):
    engine, _ = tiny()
    material = make_material(table, count=2)
    table.score, table.context = engine.score, engine.context
    found = Hindsight(note="You won.").annotate(material)["hindsight_logprob"]
    for turn, nats in zip(material.turns, found, strict=True):
        prompt = chat.first("", f"{turn.observation.text}\nYou won.")
        ((*each,),) = engine.score([(prompt, turn.ids)])
        assert nats == pytest.approx(np.mean(each), abs=1e-5)


def test_the_negative_prompt_asks_for_the_opposite(make_material, table):
    material = make_material(table, count=3, memory="dialogue")
    columns = NegativePrompt(note="Answer wrongly.").annotate(material)
    assert all(text.endswith("\nAnswer wrongly.") for text in user_texts(table))
    assert columns["negative_logprob"].tolist() == [-0.75] * len(material.batch.logprobs)


def test_where_the_note_leaves_no_room_the_turn_says_nothing(make_material, table):
    material = make_material(table, count=1, memory="dialogue")
    first, second = material.turns
    table.context = len(second.prompt_ids) + len(second.ids)  # without any note it fits
    columns = NegativePrompt().annotate(material)
    expected = [-0.75] * len(first.ids) + [-0.5] * len(second.ids)
    assert columns["negative_logprob"].tolist() == expected


def test_notes_that_cannot_be_filled_in_or_say_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"hindsight.note: unknown placeholder \{outcom\}"):
        Hindsight(note="{outcom}")
    with pytest.raises(ConfigError, match=r"hindsight\.note"):
        Hindsight(note="{points.__class__}")
    with pytest.raises(ConfigError, match=r"negative_prompt\.note is empty"):
        NegativePrompt(note=" ")


def test_token_statistics_are_the_learners(make_material, table, tiny):
    engine, learner = tiny()
    material = make_material(table, count=3, probe=learner)
    columns = TokenStatistics().annotate(material)
    ids = [token for turn in material.turns for token in turn.ids]
    assert columns["token_id"].tolist() == ids
    scored = engine.score([(turn.prompt_ids, turn.ids) for turn in material.turns])
    np.testing.assert_allclose(columns["old_logprob"], np.concatenate(scored), atol=1e-5)
    batch = material.batch.with_signals(columns)
    for name in TokenStatistics.signals:
        assert batch.token_signal(name).shape == (len(ids),)


def test_the_reference_is_the_policy_that_training_started_from(make_material, table, tiny):
    engine, learner = tiny()
    with torch.no_grad():
        for parameter in learner._model.parameters():
            parameter.add_(0.05)
    material = make_material(table, count=2, probe=learner)
    found = ReferenceLogprobs().annotate(material)["reference_logprob"]
    scored = engine.score([(turn.prompt_ids, turn.ids) for turn in material.turns])
    np.testing.assert_allclose(found, np.concatenate(scored), atol=1e-5)
    old = TokenStatistics().annotate(material)["old_logprob"]
    offsets = material.batch.offsets
    assert not np.allclose(mean_turns(old, offsets), mean_turns(found, offsets), atol=1e-3)


def test_a_learner_without_a_reference_says_what_to_set(make_material, table, tiny):
    _, learner = tiny(kl=KL())
    with pytest.raises(ConfigError, match=r"holds no reference; set learner.kl.keep=true"):
        ReferenceLogprobs().annotate(make_material(table, count=1, probe=learner))
