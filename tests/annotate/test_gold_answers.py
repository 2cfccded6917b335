"""How likely the right answer is, teacher-forced in the contexts of an agent."""

import numpy as np
import pytest

from marl_llm.annotate.contexts import prompts_after
from marl_llm.annotate.gold_answers import GoldAnswers
from marl_llm.credit.igpo import InfoGain


def knows_what_it_saw(prompt, text):
    """-0.1 per token for a colour that the prompt shows, -3 for any other."""
    return -0.1 if f"The ball is {text.removesuffix('</answer>')}" in prompt else -3.0


@pytest.fixture(params=["observation", "dialogue"])
def material(request, make_material, make_table, replies):
    engine = make_table(replies["curious"], knows_what_it_saw)
    return make_material(engine, memory=request.param, thought="keep")


def test_looking_is_what_tells_the_answer(material):
    columns = GoldAnswers().annotate(material)
    # Two turns per episode: it looks, knowing nothing, and then names what it saw.
    np.testing.assert_allclose(columns["gold_before"], [-3.0, -0.1] * 4)
    np.testing.assert_allclose(columns["gold_after"], [-0.1, -0.1] * 4)
    gain = InfoGain().estimate(material.batch.with_signals(columns)).advantage
    np.testing.assert_allclose(gain, [np.exp(-0.1) - np.exp(-3.0), 0.0] * 4)


@pytest.mark.parametrize("memory", ["observation", "dialogue"])
def test_t_turns_of_an_agent_that_is_alone_cost_t_plus_1_scores_in_one_call(
    make_material, make_table, replies, memory
):
    engine = make_table(replies["curious"], knows_what_it_saw)
    material = make_material(engine, count=1, memory=memory)
    assert len(material.turns) == 2
    GoldAnswers().annotate(material)
    ((texts, _),) = engine.scored
    assert len(texts) == 3
    assert all(text.endswith("</answer>") for _, text in texts)
    assert all(prompt.endswith("<answer>") for prompt, _ in texts)


def test_the_context_after_a_turn_is_the_next_prompt_and_after_the_last_one_the_end(material, chat):
    after = prompts_after(material)
    for k in range(0, len(after), 2):
        assert after[k] == material.turns[k + 1].prompt_ids
        last, seat = material.turns[k + 1], material.reach.seats["self"]
        text = last.observation.text.split("\n")[0]  # the ball stays; nothing is legal any more
        if seat.role.memory == "observation":
            assert after[k + 1] == chat.first("", text)
        else:
            closed = chat.closed(last.ids)
            assert after[k + 1] == (*last.prompt_ids, *last.ids, *chat.follow(text, closed))


def test_what_others_did_in_between_is_not_in_the_context_after(make_material, make_table, replies):
    material = make_material(
        make_table(lambda prompt, seed: replies["say"]("pass" if seed % 2 else "bet")),
        "kuhn",
        20,
        user="{brief}",
    )
    own = {}
    for row, ids in enumerate(prompts_after(material)):
        turn = material.turns[row]
        text = material.reach.scorer.text(ids)
        words = text.split("user\n")[1].split("<|im_end|>")[0].split()
        before = turn.observation.brief.split()
        assert words == [*before, turn.action], "one's own move is all that was added"
        own[len(before)] = own.get(len(before), 0) + 1
    assert len(own) == 3


def test_temperature_is_that_of_the_softmax(material):
    warm = GoldAnswers(temperature=2.0).annotate(material)
    np.testing.assert_allclose(warm["gold_before"][:2], [-1.5, -0.05])


def test_a_game_that_knows_no_answer_has_no_labels(make_material, make_table, replies):
    engine = make_table(replies["curious"], knows_what_it_saw)
    material = make_material(engine, "unknown")
    columns = GoldAnswers().annotate(material)
    assert np.isnan(columns["gold_before"]).all()
    assert engine.scored == []
    batch = material.batch.with_signals(columns)
    assert not batch.known("gold_after").any()


def test_a_context_without_room_for_the_answer_is_a_missing_label(
    make_material, make_table, replies
):
    engine = make_table(replies["curious"], knows_what_it_saw)
    material = make_material(engine, memory="dialogue")
    room = max(len(turn.prompt_ids) for turn in material.turns) - 1
    engine.context = room
    columns = GoldAnswers().annotate(material)
    assert np.isnan(columns["gold_before"][1::2]).all()
    assert np.isnan(columns["gold_after"]).all()
    assert np.isfinite(columns["gold_before"][0::2]).all()


def test_the_scores_are_those_of_the_model(make_material, make_table, tiny, replies, chat):
    engine, _ = tiny()
    table = make_table(replies["curious"])
    material = make_material(table, count=2)
    table.score, table.context = engine.score, engine.context
    columns = GoldAnswers().annotate(material)
    turn, answer = material.turns[0], material.reach.games["riddle"]()
    answer.reset(material.episodes[0].seed)
    prompt = (*turn.prompt_ids, *chat.encode("<answer>"))
    (nats,) = engine.score([(prompt, chat.encode(f"{answer.ball}</answer>"))])
    assert columns["gold_before"][0] == pytest.approx(np.mean(nats), abs=1e-5)
