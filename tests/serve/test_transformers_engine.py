import copy
import math
import random
import time

import pytest
import torch

from marl_llm.errors import CheckpointError, ConfigError, EpisodeError, ModelError, TrainingError
from marl_llm.serve import generate
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.types import Finish, Request, Sampling, Weights
from marl_llm.weights import checksum, named_weights, write

TOKENIZER = build_tokenizer(["You hold the king. Your opponent bets.", "check or bet?"] * 4, 300)
VOCABULARY = len(TOKENIZER)


@torch.no_grad()
def make_model(seed=0, sharpness=5.0, context=512):
    """A model whose next token depends visibly on what came before, unlike a fresh one's."""
    model = build_model(TOKENIZER, context=context, seed=seed)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(sharpness)
    return model


def make_engine(model=None, **settings):
    return TransformersEngine(model or make_model(), end_ids=(), **settings)


def make_requests(count, *, distinct=None, sampling=None, longest=60, seed=0):
    rng = random.Random(seed)
    prompts = [
        tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest)))
        for _ in range(distinct or count)
    ]
    return [
        Request(
            number,
            prompts[number % len(prompts)],
            sampling or Sampling(temperature=0.7, max_tokens=rng.randint(1, 12)),
            seed=1000 + number,
        )
        for number in range(count)
    ]


def weights_of(model, version):
    tensors = {name: tensor.clone() for name, tensor in named_weights(model).items()}
    return Weights("main", version, checksum(tensors), tensors=tensors)


def closest(one, other, tolerance=1e-4):
    assert [c.ids for c in one] == [c.ids for c in other]
    for a, b in zip(one, other, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=tolerance)


@torch.no_grad()
def plain_logprobs(model, prompt, ids, temperature=1.0):
    """What one forward pass of the model as it comes says of these ids."""
    logits = model(input_ids=torch.tensor([prompt + ids])).logits[0].float() / temperature
    table = logits.log_softmax(-1)
    return [table[len(prompt) - 1 + i, token].item() for i, token in enumerate(ids)]


def test_greedy_replies_are_those_of_generate():
    model = make_model()
    reference = copy.deepcopy(model)
    requests = [
        Request(r.id, r.prompt_ids, Sampling(temperature=0, max_tokens=3 + r.id % 9), r.seed)
        for r in make_requests(23, distinct=15)
    ]
    replies = generate(make_engine(model, max_batch=4), requests)
    for request, reply in zip(requests, replies, strict=True):
        count = request.sampling.max_tokens
        whole = reference.generate(
            torch.tensor([request.prompt_ids]),
            attention_mask=torch.ones(1, len(request.prompt_ids), dtype=torch.int64),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        assert reply.ids == tuple(whole[0, len(request.prompt_ids) :].tolist())
        assert reply.finish is Finish.LENGTH
        assert reply.logprobs == pytest.approx(
            plain_logprobs(reference, request.prompt_ids, reply.ids), abs=1e-4
        )


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_logprobs_are_those_of_score_and_of_a_plain_pass(temperature):
    model = make_model()
    reference = copy.deepcopy(model)
    engine = make_engine(model, max_batch=8)
    requests = make_requests(30, sampling=Sampling(temperature=temperature, max_tokens=9))
    replies = generate(engine, requests)
    pairs = [
        (request.prompt_ids, reply.ids) for request, reply in zip(requests, replies, strict=True)
    ]
    for (prompt, ids), reply, scored in zip(
        pairs, replies, engine.score(pairs, temperature), strict=True
    ):
        assert scored == pytest.approx(reply.logprobs, abs=1e-4)
        assert scored == pytest.approx(
            plain_logprobs(reference, prompt, ids, temperature), abs=1e-4
        )


def test_a_reply_does_not_depend_on_its_neighbours():
    requests = make_requests(40, distinct=25)
    together = generate(make_engine(max_batch=64), requests)
    few_at_a_time = generate(make_engine(max_batch=3), requests[::-1])[::-1]
    alone = [generate(make_engine(), [request])[0] for request in requests[:5]]
    closest(together, few_at_a_time)
    closest(together[:5], alone)


@pytest.mark.parametrize("settings", [{"prefix_tokens": 0}, {"prefix_tokens": 128}])
def test_the_prefix_cache_changes_nothing(settings):
    requests = make_requests(30, distinct=9)
    plain, cached = make_engine(max_batch=7, **settings), make_engine(max_batch=7)
    first = generate(plain, requests)
    closest(first, generate(cached, requests))
    closest(first, generate(cached, requests))  # now everything is known
    pairs = [
        (request.prompt_ids, reply.ids) for request, reply in zip(requests, first, strict=True)
    ]
    for one, other in zip(plain.score(pairs), cached.score(pairs), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("pass_tokens", [5, 40])
def test_long_prompts_are_fed_in_pieces(pass_tokens):
    requests = make_requests(12, longest=150)
    engine = make_engine(max_batch=4, pass_tokens=pass_tokens)
    replies = generate(engine, requests)
    closest(replies, generate(make_engine(max_batch=12), requests))
    pairs = [
        (request.prompt_ids, reply.ids) for request, reply in zip(requests, replies, strict=True)
    ]
    for one, other in zip(engine.score(pairs), make_engine().score(pairs), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_a_long_prompt_in_one_pass():
    model = make_model(context=2048)
    reference = copy.deepcopy(model)
    request = Request(0, tuple(i % VOCABULARY for i in range(1500)), Sampling(max_tokens=4), seed=0)
    reply = generate(make_engine(model), [request])[0]
    assert reply.logprobs == pytest.approx(
        plain_logprobs(reference, request.prompt_ids, reply.ids), abs=1e-4
    )


class Counter:
    """How many tokens are fed to a model."""

    def __init__(self, model):
        self.tokens = 0
        model.get_input_embeddings().register_forward_pre_hook(self.count)

    def count(self, _, inputs):
        self.tokens += inputs[0].numel()

    def spent(self):
        spent, self.tokens = self.tokens, 0
        return spent


def test_shared_prompts_and_beginnings_are_computed_once():
    model = make_model()
    engine = make_engine(model, max_batch=64)
    counter = Counter(model)
    rules = tuple(range(100, 148))  # three blocks
    one = Sampling(max_tokens=1)
    same = [Request(i, (*rules, 1, 2, 3, 4), one, seed=i) for i in range(10)]
    generate(engine, same)
    # one computes the 52 tokens, the nine others feed the last one
    assert counter.spent() == 52 + 9
    generate(engine, [Request(i, (*rules, 50 + i, 2), one, seed=i) for i in range(10)])
    assert counter.spent() == 10 * 2  # the rules are known
    fresh = tuple(range(148, 196))
    generate(engine, [Request(i, (*fresh, 50 + i, 2), one, seed=i) for i in range(10)])
    # one computes the new rules and its own end, the others wait and then share their first block,
    # and the other two blocks because they were computed with it
    assert counter.spent() == 50 + 9 * 2


def test_the_next_turn_of_a_dialogue_only_computes_what_is_new():
    model = make_model()
    engine = make_engine(model)
    prompt = tuple(range(100, 140))
    reply = generate(engine, [Request(0, prompt, Sampling(max_tokens=30), seed=0)])[0]
    counter = Counter(model)
    following = (*prompt, *reply.ids, 5, 6, 7)
    generate(engine, [Request(0, following, Sampling(max_tokens=1), seed=0)])
    # 40 + 30 tokens, of which the last was never fed: four full blocks of 16 are known
    assert counter.spent() == 73 - 64


def test_scoring_computes_equal_sequences_once():
    model = make_model()
    engine = make_engine(model)
    counter = Counter(model)
    prompt, ids = tuple(range(100, 120)), (1, 2, 3)
    scores = engine.score([(prompt, ids), (prompt, ()), (prompt, ids), (prompt, (4, 5))])
    # 22 tokens predict the first continuation, then the prompt is known but for its last token
    assert counter.spent() == 22 + 2
    assert scores[0] == scores[2]
    assert scores[1] == []
    assert len(scores[3]) == 2


def test_first_tokens_have_the_frequencies_of_the_softmax():
    model = make_model(sharpness=4.0)
    reference = copy.deepcopy(model)
    count, prompt = 4000, (5, 6, 7)
    one = Sampling(max_tokens=1)
    replies = generate(make_engine(model), [Request(i, prompt, one, seed=i) for i in range(count)])
    expected = count * reference(torch.tensor([prompt])).logits[0, -1].softmax(-1).detach()
    counts = torch.zeros(VOCABULARY)
    for reply in replies:
        counts[reply.ids[0]] += 1
    often = expected >= 5
    pooled = torch.cat([counts[often], counts[~often].sum()[None]])
    wanted = torch.cat([expected[often], expected[~often].sum()[None]])
    chi_square = float(((pooled - wanted) ** 2 / wanted).sum())
    degrees = len(pooled) - 1
    assert degrees > 20
    # χ² has mean k and variance 2k
    assert chi_square < degrees + 3.5 * math.sqrt(2 * degrees)


def test_equal_seeds_equal_replies():
    base = make_requests(1, sampling=Sampling(max_tokens=20))[0]
    requests = [Request(i, base.prompt_ids, base.sampling, s) for i, s in enumerate([3, 3, 4, -3])]
    one, same, other, negative = generate(make_engine(), requests)
    assert one.ids == same.ids
    assert len({one.ids, other.ids, negative.ids}) == 3


def test_end_tokens_stop_a_reply_and_belong_to_it():
    model = make_model()
    request = make_requests(1, sampling=Sampling(temperature=0, max_tokens=20))[0]
    whole = generate(make_engine(copy.deepcopy(model)), [request])[0]
    end = whole.ids[7]
    engine = TransformersEngine(model, end_ids=[end], tokenizer=TOKENIZER)
    reply = generate(engine, [request])[0]
    assert reply.ids == whole.ids[: whole.ids.index(end) + 1]
    assert reply.finish is Finish.STOP


def test_stop_strings_span_tokens_and_belong_to_the_reply():
    model = make_model(seed=3)
    sampling = Sampling(temperature=0, max_tokens=40)
    requests = make_requests(6, sampling=sampling)
    engine = TransformersEngine(model, end_ids=(), tokenizer=TOKENIZER)
    for request, whole in zip(requests, generate(engine, requests), strict=True):
        texts = [TOKENIZER.decode(list(whole.ids[:n])) for n in range(41)]
        last = TOKENIZER.decode([whole.ids[20]])
        stop = texts[20][-1:] + last[:1]  # the end of one token and the start of the next
        if "\N{REPLACEMENT CHARACTER}" in stop or len(stop) < 2:
            continue
        expected = next(n for n in range(41) if stop in texts[n])
        sampled = Sampling(temperature=0, max_tokens=40, stop=("not in it", stop))
        reply = generate(engine, [Request(0, request.prompt_ids, sampled, 0)])[0]
        assert reply.ids == whole.ids[:expected]
        assert reply.finish is Finish.STOP
        break
    else:
        pytest.fail("no reply had text at token 20")


def test_a_prompt_without_room_comes_back_empty_and_a_full_context_ends_a_reply():
    engine = make_engine(make_model(context=64))
    many = Sampling(max_tokens=10)
    requests = [
        Request(i, (1,) * length, many, seed=i) for i, length in enumerate([64, 70, 61, 54])
    ]
    too_long, longer, nearly, fits = generate(engine, requests)
    assert (too_long.ids, too_long.finish, too_long.versions) == ((), Finish.CONTEXT, ())
    assert (longer.ids, longer.finish) == ((), Finish.CONTEXT)
    assert (len(nearly.ids), nearly.finish) == (3, Finish.CONTEXT)
    assert (len(fits.ids), fits.finish) == (10, Finish.LENGTH)


def test_deadlines():
    engine = make_engine(max_batch=2)
    many = Sampling(max_tokens=450)
    now = time.monotonic()
    late = Request(0, (1, 2), many, seed=0, deadline=now - 1)
    soon = Request(1, (1, 2), many, seed=1, deadline=now + 0.2)
    free = Request(2, (1, 2), Sampling(max_tokens=3), seed=2)
    waits = Request(3, (1, 2), many, seed=3, deadline=now + 0.2)
    replies = generate(engine, [late, soon, free, waits])
    assert [reply.finish for reply in replies] == [
        Finish.TIME,
        Finish.TIME,
        Finish.LENGTH,
        Finish.TIME,
    ]
    assert replies[0].ids == ()
    assert 0 < len(replies[1].ids) < 450


def test_poll_with_no_time_makes_a_step_and_an_idle_engine_returns_at_once():
    engine = make_engine()
    assert engine.poll(10.0) == []
    engine.submit([Request(0, (1, 2), Sampling(max_tokens=3), seed=0)])
    counts = [len(engine.poll(0.0)) for _ in range(4)]
    assert counts == [0, 0, 1, 0]


def test_seconds_are_busy_while_it_decodes_and_not_while_it_is_asked_for_nothing():
    engine = make_engine()
    assert engine.busy_seconds == 0.0
    engine.submit([Request(0, (1, 2), Sampling(max_tokens=40), seed=0)])
    time.sleep(0.2)  # nobody polls: nothing is decoded
    began = time.monotonic()
    assert len(engine.poll(60.0)) == 1
    taken, busy = time.monotonic() - began, engine.busy_seconds
    assert 0.9 * taken < busy <= taken
    assert engine.poll(60.0) == []
    assert engine.busy_seconds - busy < 0.01, "an idle engine returns at once"


def test_nobody_waits_for_the_slowest():
    engine = make_engine(max_batch=2)
    lengths = [40, 2, 2, 2, 2]
    engine.submit(
        [Request(i, (1, 2, i), Sampling(max_tokens=n), seed=i) for i, n in enumerate(lengths)]
    )
    order = []
    while len(order) < len(lengths):
        order += [reply.id for reply in engine.poll(10.0)]
    assert order == [1, 2, 3, 4, 0]


def test_weights_loaded_in_flight_are_told_apart_by_spans():
    engine, other = make_engine(version=3), make_model(seed=1)
    engine.submit([Request(0, (1, 2, 3), Sampling(max_tokens=9), seed=0)])
    for _ in range(4):
        engine.poll(0.0)
    engine.load(weights_of(other, 4))
    engine.submit([Request(1, (1, 2, 3), Sampling(max_tokens=9), seed=0)])
    engine.load(weights_of(other, 5))
    replies = {}
    while len(replies) < 2:
        replies.update((reply.id, reply) for reply in engine.poll(10.0))
    assert replies[0].versions == ((3, 0, 4), (5, 4, 9))
    assert replies[1].versions == ((5, 0, 9),)
    assert engine.version == 5
    # no key or value of the old weights is left where it could be found
    fresh = generate(make_engine(other), [Request(1, (1, 2, 3), Sampling(max_tokens=9), seed=0)])
    closest([replies[1]], fresh)
    again = generate(engine, [Request(1, (1, 2, 3), Sampling(max_tokens=9), seed=0)])
    closest(again, fresh)


def test_weights_from_a_file(tmp_path):
    engine, other = make_engine(), make_model(seed=1)
    tensors = named_weights(other)
    write(tensors, tmp_path / "w.safetensors")
    engine.load(Weights("main", 1, checksum(tensors), path=str(tmp_path / "w.safetensors")))
    requests = make_requests(5)
    closest(generate(engine, requests), generate(make_engine(other), requests))


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay():
    engine, requests = make_engine(), make_requests(3)
    before = generate(engine, requests)
    good = weights_of(make_model(seed=1), 1)
    with pytest.raises(CheckpointError, match="checksum"):
        engine.load(Weights("main", 1, "0" * 64, tensors=good.tensors))
    lacking = {k: v for k, v in good.tensors.items() if k != "model.norm.weight"}
    with pytest.raises(ModelError, match=r"lack 'model\.norm\.weight'"):
        engine.load(Weights("main", 1, checksum(lacking), tensors=lacking))
    assert engine.version == 0
    closest(generate(engine, requests), before)


def test_weights_that_are_not_finite_name_the_request_and_can_be_replaced():
    engine, requests = make_engine(), make_requests(3)
    before = generate(engine, requests)
    good = weights_of(make_model(), 2)
    broken = {**good.tensors, "model.norm.weight": torch.full((64,), torch.nan)}
    engine.submit([Request(77, (1, 2), Sampling(max_tokens=5), seed=0)])
    engine.poll(0.0)
    engine.load(Weights("main", 1, checksum(broken), tensors=broken))
    with pytest.raises(TrainingError, match=r"token 1 of request 77 .* version 1"):
        engine.poll(1.0)
    with pytest.raises(TrainingError, match="sequence 0"):
        engine.score([((1, 2), (3,))])
    engine.load(good)
    closest(generate(engine, requests), before)


def test_out_of_memory_says_what_to_lower_and_can_be_cured():
    model = make_model()
    engine, requests = make_engine(model), make_requests(3)
    before = generate(engine, requests)

    def take_all_memory(*_):
        torch.empty(2**50, dtype=torch.uint8)

    hook = model.get_input_embeddings().register_forward_pre_hook(take_all_memory)
    engine.submit(requests)
    with pytest.raises(ModelError, match="max_batch"):
        engine.poll(1.0)
    hook.remove()
    closest(generate(engine, requests), before)


def test_requests_that_make_no_sense():
    engine = make_engine()
    one = Sampling(max_tokens=1)
    engine.submit([Request(0, (1,), one, seed=0)])
    with pytest.raises(EpisodeError, match="request 0 is in flight"):
        engine.submit([Request(0, (1,), one, seed=0)])
    with pytest.raises(EpisodeError, match="request 5 is in flight"):
        engine.submit([Request(5, (1,), one, seed=0), Request(5, (1,), one, seed=0)])
    with pytest.raises(EpisodeError, match="empty prompt"):
        engine.submit([Request(1, (), one, seed=0)])
    with pytest.raises(EpisodeError, match=f"0 to {VOCABULARY - 1}"):
        engine.submit([Request(1, (1, VOCABULARY), one, seed=0)])
    with pytest.raises(ConfigError, match="tokenizer"):
        engine.submit([Request(1, (1,), Sampling(stop=("x",)), seed=0)])
    with pytest.raises(EpisodeError, match="context"):
        engine.score([((1,) * 500, (1,) * 20)])
    assert [reply.id for reply in engine.poll(10.0)] == [0]


@pytest.mark.parametrize("settings", [{"max_batch": 0}, {"prefix_tokens": -1}, {"pass_tokens": 0}])
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        make_engine(**settings)


def test_half_precision_on_a_cpu():
    model = make_model(sharpness=3.0)
    single, half = make_engine(copy.deepcopy(model)), make_engine(model.to(torch.bfloat16))
    requests = make_requests(10)
    replies = generate(half, requests)
    pairs = [
        (request.prompt_ids, reply.ids) for request, reply in zip(requests, replies, strict=True)
    ]
    for reply, scored, exact in zip(replies, half.score(pairs), single.score(pairs), strict=True):
        assert all(isinstance(nat, float) and nat <= 0 for nat in reply.logprobs)
        assert scored == pytest.approx(exact, abs=0.25)
