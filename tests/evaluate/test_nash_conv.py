"""The model's own NashConv: against replies whose probabilities are known, and against play."""

import json
import math
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Boxed, Tags
from marl_llm.agents.role import Role, Seat
from marl_llm.errors import ConfigError
from marl_llm.evaluate.nash_conv import Thoughts, measure, model_policy, nash_conv
from marl_llm.evaluate.text_tree import equilibrium_policy, text_tree, written_policy
from marl_llm.games.catalog import build
from marl_llm.serve import generate
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.types import Completion, Finish, Request, Sampling

KUHN = text_tree(build("kuhn"))
ROLE = Role("player", user="{brief}", sampling=Sampling(max_tokens=40))  # short: quick to teach
TEXTS = [
    text
    for state in KUHN.states.values()
    for text in (state.observation.text, state.observation.brief, *state.actions)
]
CHAT = Chat(build_tokenizer(TEXTS * 4))


@dataclass
class Finite:
    """An engine whose model is known: by prompt, a few whole replies with their probabilities.

    Conditional probabilities of tokens are ratios of the summed probabilities of the replies that
    go on so, which is what any language model's are.
    """

    replies: dict  # prompt ids -> {reply ids: probability}
    version: int = 7
    context: int = 512
    waiting: list = field(default_factory=list)
    scored: list = field(default_factory=list)

    def submit(self, requests):
        self.waiting += requests

    def poll(self, timeout):
        done, self.waiting = [self._sample(request) for request in self.waiting], []
        return done

    def _sample(self, request):
        rng = np.random.default_rng(request.seed)
        options = self.replies[request.prompt_ids]
        ids = list(options)[rng.choice(len(options), p=list(options.values()))]
        for end in range(1, min(len(ids), request.sampling.max_tokens) + 1):
            if any(stop in CHAT.decode(ids[:end]) for stop in request.sampling.stop):
                return Completion(request.id, ids[:end], (0.0,) * end, (), Finish.STOP)
        end = min(len(ids), request.sampling.max_tokens)
        finish = Finish.STOP if end == len(ids) else Finish.LENGTH
        return Completion(request.id, ids[:end], (0.0,) * end, (), finish)

    def score(self, sequences, temperature=1.0):
        self.scored += sequences
        return [self._score(prompt, ids) for prompt, ids in sequences]

    def _score(self, prompt, ids):
        start = max(n for n in range(len(prompt)) if prompt[:n] in self.replies)
        options, before = self.replies[prompt[:start]], prompt[start:]
        logprobs = []
        for end in range(len(ids)):
            seen, longer = before + ids[:end], before + ids[: end + 1]
            now, then = (
                sum(p for reply, p in options.items() if reply[: len(part)] == part)
                for part in (seen, longer)
            )
            logprobs.append(math.log(then / now) if then else -math.inf)
        return logprobs

    def load(self, weights):
        raise NotImplementedError


def prompt_of(key, role=ROLE):
    return Seat(role, CHAT, KUHN.rules).prompt(KUHN.states[key].observation)


def finite(replies, role=ROLE):
    """An engine that gives these replies (text -> probability) in every state."""
    encoded = {CHAT.encode(text): p for text, p in replies.items()}
    return Finite({prompt_of(key, role): encoded for key in KUHN.states})


MIXED = {
    "<think>bold</think><answer>bet</answer>": 0.25 * 0.9,
    "<think>bold</think><answer>fold</answer>": 0.25 * 0.1,
    "<think>shy</think><answer>bet</answer>": 0.5 * 0.2,
    "<think>shy</think><answer>pass</answer>": 0.5 * 0.8,
    "<think>no answer</think>": 0.15,
    "out of form <answer>bet</answer>": 0.1,
}


def test_probabilities_worked():
    # mass(bet) = .25 · .9 + .5 · .2 = .325, mass(pass) = .5 · .8 = .4; broken thoughts give none.
    # So the legal mass is .725 and the policy bets with .325/.725 = .448.
    policy = model_policy(KUHN, ROLE, CHAT, finite(MIXED), seed=0, thoughts=Thoughts(count=400))
    for state in policy.states.values():
        assert state.legal_mass == pytest.approx(0.725, abs=0.08)
        assert state.actions["bet"] == pytest.approx(0.325 / 0.725, abs=0.1)
        assert sum(state.actions.values()) == pytest.approx(1)
    assert (policy.thoughts, policy.version) == ("sampled, 400 per state", 7)


def test_thoughts_are_scored_once_each_however_often_they_were_sampled():
    engine = finite(MIXED)
    model_policy(KUHN, ROLE, CHAT, engine, seed=0, thoughts=Thoughts(count=100))
    # 12 states, two readable thoughts, two actions
    assert len(engine.scored) == 12 * 2 * 2


def test_a_fixed_thought_asks_no_reply():
    replies = {}
    for key, state in KUHN.states.items():
        bet = 0.9 if state.observation.brief.startswith("K") else 0.2
        texts = {a: ROLE.parser.render(state.observation.brief, a) for a in ("bet", "pass")}
        replies[prompt_of(key)] = {
            CHAT.encode(texts["bet"]): bet / 2,
            CHAT.encode(texts["pass"]): (1 - bet) / 2,
            CHAT.encode("<think>else</think>"): 0.5,
        }
    policy = model_policy(KUHN, ROLE, CHAT, Finite(replies), seed=0, thoughts=Thoughts("fixed"))
    assert policy.states["2"].actions["bet"] == pytest.approx(0.9)
    assert policy.states["0b"].actions["bet"] == pytest.approx(0.2)
    assert policy.states["0b"].legal_mass == pytest.approx(1.0)  # given the thought
    assert policy.thoughts == "fixed: the observation in brief"


def test_no_thought():
    engine = finite({"<answer>bet</answer>": 0.6, "<answer>pass</answer>": 0.2, "bet": 0.2})
    policy = model_policy(KUHN, ROLE, CHAT, engine, seed=0, thoughts=Thoughts("none"))
    assert policy.states["1"].actions["bet"] == pytest.approx(0.75)
    silent = replace(ROLE, parser=Tags(think="none"))
    policy = model_policy(KUHN, silent, CHAT, engine, seed=0, thoughts=Thoughts("fixed"))
    assert policy.states["1"].actions["bet"] == pytest.approx(0.75)


def test_replies_that_would_hit_a_limit_do_not_count():
    reply = ROLE.parser.render("bold", "bet")
    length = len(CHAT.encode(reply))
    engine = finite({reply: 1.0})
    for limit, mass in ((length, 1.0), (length - 1, 0.0)):
        role = replace(ROLE, sampling=Sampling(max_tokens=limit))
        policy = model_policy(KUHN, role, CHAT, engine, seed=0)
        assert {state.legal_mass for state in policy.states.values()} == {mass}
        longest = max(len(prompt) for prompt in engine.replies)
        engine.context = longest + limit  # for the longest prompt the context is as narrow
        policy = model_policy(KUHN, ROLE, CHAT, engine, seed=0)
        assert min(state.legal_mass for state in policy.states.values()) == mass
        engine.context = 512


def test_without_any_legal_reply_play_is_uniform_and_says_so():
    policy = model_policy(KUHN, ROLE, CHAT, finite({"nonsense": 1.0}), seed=0)
    result = nash_conv(policy, KUHN)
    assert result.nash_conv == pytest.approx(11 / 12)
    assert result.legal_mass == 0.0


def test_a_token_across_the_tag_is_scored_with_the_action():
    tokenizer = build_tokenizer(TEXTS)
    tokenizer.add_tokens([">b"])
    chat = Chat(tokenizer)
    role = replace(ROLE, parser=Tags(answer_tag="x", think="none"))
    bet, passing = (chat.encode(f"<x>{action}</x>") for action in ("bet", "pass"))
    assert "<x>" not in [chat.decode(bet[:n]) for n in range(len(bet) + 1)]
    prompts = [Seat(role, chat, KUHN.rules).prompt(s.observation) for s in KUHN.states.values()]
    engine = Finite({prompt: {bet: 0.7, passing: 0.3} for prompt in prompts})
    policy = model_policy(KUHN, role, chat, engine, seed=0)
    for state in policy.states.values():
        assert state.actions["bet"] == pytest.approx(0.7)
        assert state.legal_mass == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": "dialogue"}, "needs memory: observation, got 'dialogue'"),
        ({"memory": 2}, "needs memory: observation, got 2"),
        ({"parser": Boxed()}, "needs the parser Tags, got Boxed"),
        ({"sampling": Sampling(temperature=0)}, "temperature > 0"),
        ({"sampling": Sampling(top_p=0.9)}, "top_p 1"),
        ({"sampling": Sampling(top_k=20)}, "top_k 0"),
    ],
)
def test_roles_without_a_probability_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        model_policy(KUHN, replace(ROLE, **change), CHAT, finite(MIXED), seed=0)


def test_bad_thoughts_are_refused():
    with pytest.raises(ConfigError, match="'sampled', 'fixed' or 'none', got 'samples'"):
        Thoughts("samples")
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        Thoughts(count=0)


# The real engine, with a tiny model that was taught a known policy in a few seconds.


def leaning(state):
    """Bets with .35, .5, .65 for J, Q, K."""
    bet = {"J": 0.35, "Q": 0.5, "K": 0.65}[state.observation.brief[0]]
    return {"pass": 1 - bet, "bet": bet}


@pytest.fixture(scope="module")
def engine():
    torch.set_num_threads(1)
    model = build_model(CHAT.tokenizer, seed=0)
    rows = [
        (prompt_of(key), CHAT.encode(ROLE.parser.render(state.observation.brief, action)), p)
        for key, state in KUHN.states.items()
        for action, p in leaning(state).items()
    ]
    width = max(len(prompt) + len(reply) for prompt, reply, _ in rows)
    ids = torch.tensor([[*a, *b, *[0] * (width - len(a) - len(b))] for a, b, _ in rows])
    weight = torch.zeros(len(rows), width)
    for row, (prompt, reply, p) in enumerate(rows):
        weight[row, len(prompt) : len(prompt) + len(reply)] = p
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        logprobs = model(ids[:, :-1]).logits.log_softmax(-1)
        chosen = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
        loss = -(chosen * weight[:, 1:]).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return TransformersEngine(model, end_ids=CHAT.end_ids, tokenizer=CHAT.tokenizer)


def test_a_taught_policy_is_measured_as_what_it_was_taught(engine):
    truth = nash_conv(written_policy(KUHN, leaning), KUHN)
    for thoughts in (Thoughts(), Thoughts("fixed")):
        measured = measure(KUHN, ROLE, CHAT, engine, seed=0, thoughts=thoughts)
        assert measured.result.nash_conv == pytest.approx(truth.nash_conv, abs=0.08)
        assert measured.result.legal_mass > 0.9
        for key, state in measured.policy.states.items():
            assert state.actions["bet"] == pytest.approx(leaning(KUHN.states[key])["bet"], abs=0.1)


def test_measured_probabilities_are_those_of_play(engine):
    # What is scored must be what is played: whole replies, read by the role's own parser.
    policy = model_policy(KUHN, ROLE, CHAT, engine, seed=0, thoughts=Thoughts(count=64))
    games = 400
    for key in ("0", "2pb"):
        requests = [
            Request(i, prompt_of(key), ROLE.request_sampling, seed=1000 + i) for i in range(games)
        ]
        moves = [
            ROLE.parser.parse(CHAT.decode(reply.ids), reply.finish)
            for reply in generate(engine, requests)
        ]
        state = policy.states[key]
        for action, share in state.actions.items():
            p = share * state.legal_mass
            played = sum(move.action == action for move in moves) / games
            assert played == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / games) + 0.01)


def test_it_repeats_and_is_quick(engine):
    start = time.perf_counter()
    first = measure(KUHN, ROLE, CHAT, engine, seed=1)
    seconds = time.perf_counter() - start
    second = measure(KUHN, ROLE, CHAT, engine, seed=1)
    assert second.result.nash_conv == pytest.approx(first.result.nash_conv, abs=1e-4)
    assert measure(KUHN, ROLE, CHAT, engine, seed=2).policy != first.policy
    assert seconds < 5  # 0.1 s on an idle core


def test_json_holds_policy_and_equilibrium(engine):
    reference = equilibrium_policy(KUHN)
    measured = measure(KUHN, ROLE, CHAT, engine, seed=0, reference=reference)
    data = json.loads(json.dumps(measured.as_json()))
    assert data["nash_conv"] == measured.result.nash_conv
    assert (data["players"], data["thoughts"], data["version"]) == (2, "sampled, 8 per state", 0)
    row = data["table"]["2b"]
    assert row["observation"].startswith("Your card: K.")
    assert row["nash"]["bet"] == pytest.approx(1, abs=1e-3)  # the king always calls
    assert set(row["model"]) == {"pass", "bet"}
    assert measure(KUHN, ROLE, CHAT, engine, seed=0).as_json()["table"]["2b"]["nash"] is None
