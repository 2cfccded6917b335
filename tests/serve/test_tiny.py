import pytest
import torch

from marl_llm.errors import ModelError
from marl_llm.serve.models import end_ids, load_model
from marl_llm.serve.tiny import LEAST_VOCABULARY, build_model, build_tokenizer, save

CORPUS = [
    "You hold the king. Your opponent bets 12 chips.",
    "You hold the queen: check or bet?",
] * 5


def test_the_tags_are_one_token_each_and_stay_in_the_text():
    tokenizer = build_tokenizer(CORPUS)
    text = "<think>the king</think><answer>bet</answer>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    for tag in ("<think>", "</think>", "<answer>", "</answer>", "<|im_end|>"):
        assert len(tokenizer.encode(tag, add_special_tokens=False)) == 1


def test_tags_of_ones_own_are_one_token_each_too():
    own = ("<switch>", "</switch>", "<think>")
    tokenizer = build_tokenizer(CORPUS, tags=own)
    text = "<switch>KEEP</switch>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.decode([ids[0]]), tokenizer.decode([ids[-1]])] == ["<switch>", "</switch>"]
    assert tokenizer.decode(ids) == text
    assert len(build_tokenizer(CORPUS, LEAST_VOCABULARY + 2, own)) == LEAST_VOCABULARY + 2
    with pytest.raises(ModelError, match=str(LEAST_VOCABULARY + 2)):
        build_tokenizer(CORPUS, LEAST_VOCABULARY + 1, own)
    assert build_tokenizer(CORPUS, tags=()).get_vocab() == build_tokenizer(CORPUS).get_vocab()


def test_control_tokens_are_special():
    tokenizer = build_tokenizer(CORPUS)
    ids = tokenizer.encode("bet<|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "bet"
    assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("text", ["déjà vu €", "😀\n\t", "12345", "unseen Words", " two  spaces "])
def test_any_text_survives_the_round_trip(text):
    tokenizer = build_tokenizer(CORPUS)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_words_of_the_corpus_are_short_and_digits_stand_alone():
    tokenizer = build_tokenizer(CORPUS)
    assert len(tokenizer.encode(" king", add_special_tokens=False)) == 1
    assert len(tokenizer.encode("12", add_special_tokens=False)) == 2


def test_tags_in_the_corpus_are_not_learned_as_letters():
    tagged = [f"<|im_start|><answer>{text}</answer><|im_end|>" for text in CORPUS]
    assert build_tokenizer(tagged).get_vocab() == build_tokenizer(CORPUS).get_vocab()


def test_the_vocabulary_keeps_its_bound():
    assert len(build_tokenizer(CORPUS, 300)) == 300
    with pytest.raises(ModelError, match="263"):
        build_tokenizer(CORPUS, 100)


def test_the_template_has_an_optional_system_and_a_generation_prompt():
    tokenizer = build_tokenizer(CORPUS)
    turns = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Your turn."}]
    assert tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nPlay.<|im_end|>\n<|im_start|>user\nYour turn.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.apply_chat_template(turns[1:], tokenize=False) == (
        "<|im_start|>user\nYour turn.<|im_end|>\n"
    )


def test_equal_texts_give_an_equal_tokenizer_in_any_order():
    built = [
        build_tokenizer(texts).backend_tokenizer.to_str()
        for texts in (CORPUS, CORPUS[::-1], sorted(CORPUS), CORPUS)
    ]
    assert len(set(built)) == 1


def test_a_model_is_fixed_by_its_seed_and_leaves_the_global_generator_alone():
    tokenizer = build_tokenizer(CORPUS)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (build_model(tokenizer, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.ndim == 1 or not torch.equal(a, c)


def test_the_default_is_small_and_tied():
    tokenizer = build_tokenizer(CORPUS)
    model = build_model(tokenizer, seed=0)
    # per layer: q 64·64, k and v 64·32 each, o 64·64, norms 2·16, mlp 3·64·192, norms 2·64
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 2 * 16 + 3 * 64 * 192 + 2 * 64
    assert model.num_parameters() == 2 * layer + 64 + 64 * len(tokenizer)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_numbers_that_do_not_fit():
    with pytest.raises(ModelError, match="multiple"):
        build_model(build_tokenizer(CORPUS), width=60, heads=8, seed=0)


def test_saved_and_loaded(tmp_path):
    tokenizer = build_tokenizer(CORPUS)
    model = build_model(tokenizer, seed=0)
    save(model, tokenizer, tmp_path)
    again, tokens = load_model(str(tmp_path))
    ids = torch.tensor([tokenizer.encode("You hold<think>")])
    assert torch.equal(again(ids).logits, model(ids).logits)
    turn = [{"role": "user", "content": "bet 12?"}]
    assert tokens.apply_chat_template(turn) == tokenizer.apply_chat_template(turn)
    assert tokens.encode("</answer> king") == tokenizer.encode("</answer> king")
    ends = {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}
    assert end_ids(again, tokens) == ends
