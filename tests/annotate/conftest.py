"""Material to annotate: small games, a model that answers by a table, and a tiny real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role
from marl_llm.annotate.material import Material, Reach, Voice
from marl_llm.annotate.replays import Replays
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.outcomes import Scoring
from marl_llm.games.text_game import TextGame, View
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.learn.reference import KL
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.types import Completion, Finish, Outcome, Sampling

COLOURS = ("red", "blue", "green")
TEXTS = ["look red blue green The ball is hidden", "pass bet J Q K", "<answer>pass</answer>"] * 3


class Riddle(TextGame):
    """Which colour is the ball? Looking shows it; naming a colour ends the game."""

    def __init__(self, name="riddle", known=True):
        self._known = known
        super().__init__(
            name=name,
            actions=("look", *COLOURS),
            natural_turns=4,
            scoring=Scoring(1, "shared", "result", {Outcome.WIN: (1.0,), Outcome.LOSS: (0.0,)}),
            table="zero_sum",
        )

    def start(self, rng, options):
        self.ball = COLOURS[rng.integers(3)]
        self.looks, self.said = 0, None

    def movers(self):
        return () if self.said or self.looks > 3 else ("player_0",)

    def legal(self, agent):
        return self.actions

    def play(self, moves):
        (action,) = moves.values()
        self.looks += action == "look"
        self.said = None if action == "look" else action

    def earnings(self):
        return (float(self.said == self.ball),)

    def result(self, agent):
        return Outcome.WIN if self.said == self.ball else Outcome.LOSS

    def view(self, agent):
        shown = self.ball if self.looks else "hidden"
        return View(f"The ball is {shown}.", brief=shown, key=f"{shown} {self.looks}")

    def rules(self):
        return "Name the colour of the ball."

    def answer(self):
        return self.ball if self._known else super().answer()


GAMES = {"riddle": Riddle, "unknown": lambda: Riddle("unknown", known=False), "kuhn": KuhnPoker}
ROLE = Role(
    name="player",
    user="{observation}",
    parser=Tags(think="none"),
    sampling=Sampling(max_tokens=40),
    list_legal=False,
)


class Table:
    """An engine that answers and scores by functions of texts.

    Attributes:
        asked: the texts of all prompts that were replied to.
        scored: all sequences that were scored, as texts, in the calls in which they came.
    """

    def __init__(
        self,
        chat: Chat,
        reply: Callable[[str, int], str] = lambda prompt, seed: "",
        opinion: Callable[[str, str], float] = lambda prompt, text: -1.0,
        context: int = 10_000,
    ):
        self.version, self.context = 0, context
        self.asked, self.requests, self.scored = [], [], []
        self.reply, self.opinion, self.finish = reply, opinion, Finish.STOP
        self._chat = chat
        self._waiting = []

    def text(self, ids):
        return self._chat.tokenizer.decode(ids, skip_special_tokens=False)

    def submit(self, requests):
        self._waiting.extend(requests)
        self.requests.extend(requests)

    def poll(self, timeout):
        if not self._waiting:
            return []
        request = self._waiting.pop(0)
        prompt = self.text(request.prompt_ids)
        self.asked.append(prompt)
        ids = self._chat.encode(self.reply(prompt, request.seed))
        return [
            Completion(
                request.id, ids, (-0.5,) * len(ids), ((self.version, 0, len(ids)),), self.finish
            )
        ]

    def score(self, sequences, temperature=1.0):
        texts = [(self.text(prompt), self.text(ids)) for prompt, ids in sequences]
        self.scored.append((texts, temperature))
        return [
            [self.opinion(*pair) / temperature] * len(ids)
            for pair, (_, ids) in zip(texts, sequences, strict=True)
        ]

    def load(self, weights):
        raise NotImplementedError


class Replay:
    """Plays on, and remembers the episodes of each rollout."""

    def __init__(self, makers, seats, engine):
        self.rollouts, self._idle = [], {}
        self._makers, self._seats, self._engine = makers, seats, engine

    def __call__(self, plans, players):
        seats = {**self._seats, **players}
        episodes = play(plans, self._makers, seats, {"main": self._engine}, seed=7, idle=self._idle)
        self.rollouts.append(episodes)
        return episodes


class NoProbe:
    """A learner that nobody asks."""


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer(TEXTS, 400)


@pytest.fixture(scope="session")
def chat(tokenizer):
    return Chat(tokenizer)


@pytest.fixture(scope="session")
def tiny(tokenizer):
    """A tiny model's engine and its learner, with the same weights."""

    def make(**settings):
        def model():
            return build_model(
                tokenizer, layers=1, width=16, heads=2, kv_heads=1, mlp=32, context=512, seed=0
            )

        engine = TransformersEngine(model(), end_ids=[tokenizer.eos_token_id], tokenizer=tokenizer)
        settings = LearnerSettings(**{"kl": KL(keep=True), **settings})
        return engine, Learner("main", model(), settings, seed=3)

    return make


@pytest.fixture(scope="session")
def make_table(chat):
    def make(*args, **options):
        return Table(chat, *args, **options)

    return make


@pytest.fixture
def make_material(chat):
    """Episodes of a game, played by an engine, and what an annotator of them gets."""

    def make(
        engine,
        game="riddle",
        count=4,
        *,
        size=1,
        seed=0,
        judge=None,
        probe=None,
        makers=GAMES,
        columns=None,
        **role,
    ):
        seats = {"self": ModelSeat(replace(ROLE, **role), chat, "main")}
        agents = {game: makers[game]().possible_agents}
        replay = Replay(makers, seats, engine)
        plans = balanced(seed, 0, count, size, agents, [("self",)])
        episodes = play(plans, makers, seats, {"main": engine}, seed=seed)
        columns = columns or (lambda played: from_episodes(played, "main"))
        batch = columns(episodes)
        turns = tuple(turns_of(episodes, "main"))
        return Material(
            policy="main",
            episodes=tuple(episodes),
            turns=turns,
            batch=batch,
            temperatures=np.ones(len(turns)),
            probe=probe or NoProbe(),
            reach=Reach(
                games=makers,
                seats=seats,
                scorer=engine,
                judge=Voice(judge or engine, chat),
                play=replay,
            ),
            replays=Replays(
                episodes={episode.id: episode for episode in episodes},
                batch=batch,
                columns=columns,
                play=replay,
            ),
            rng=np.random.default_rng(0),
        )

    return make


def say(action):
    return f"<answer>{action}</answer>"


def curious(prompt, seed):
    """Looks, then names what it saw."""
    shown = [colour for colour in COLOURS if f"The ball is {colour}" in prompt]
    return say(shown[-1] if shown else "look")


@pytest.fixture(scope="session")
def games():
    return GAMES


@pytest.fixture(scope="session")
def riddle():
    return Riddle


@pytest.fixture(scope="session")
def replies():
    return {"curious": curious, "say": say}
