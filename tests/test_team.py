"""The parts of a run that annotators and replays need, made from its settings."""

import sys
import time

import pytest

from marl_llm import team
from marl_llm.agents.scripted import Uniform
from marl_llm.config import compose
from marl_llm.errors import GameError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.rollout.plans import Plan
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.settings import RunSettings
from marl_llm.store import SqliteStore
from marl_llm.store.episodes import AtHand
from marl_llm.types import Request, Sampling

MOODY = """
from marl_llm.games.kuhn import KuhnPoker


class Moody(KuhnPoker):
    '''Deals differently every time.'''

    resets = 0

    def reset(self, seed=None, options=None):
        Moody.resets += 1
        super().reset(seed + Moody.resets, options)
"""


def settings(*words):
    return RunSettings.of(compose(["experiment=kuhn_selfplay", *words]))


def test_a_judge_is_a_model_of_its_own_with_an_engine_of_its_own(tmp_path):
    tokenizer = build_tokenizer(["judge good bad <verdict>good</verdict>"])
    build_model(
        tokenizer, layers=1, width=16, heads=2, kv_heads=1, mlp=32, context=99, seed=0
    ).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = settings(
        f"policies.main.judge.model={tmp_path}", "policies.main.judge.engine.max_batch=3"
    )
    asked = run.policies["main"].judge
    assert asked.engine.max_batch == 3
    voice = team.judge(asked)
    assert voice.engine.context == 99
    voice.engine.submit([Request(0, voice.chat.first("", "good"), Sampling(max_tokens=2), 0)])
    (reply,) = voice.engine.poll(60)
    assert len(reply.ids) >= 1
    assert settings().policies["main"].judge is None


def test_games_that_repeat_themselves_can_be_played_on():
    team.check_replays(settings("+game@games.leduc=leduc", "+game@games.pd=prisoners_dilemma"))


def test_a_game_that_is_not_fixed_by_its_seed_and_moves_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_moody.py").write_text(MOODY)
    monkeypatch.syspath_prepend(tmp_path)
    run = settings("packages=[my_moody]", "games.kuhn._target_=my_moody.Moody")
    with pytest.raises(GameError, match=r"game 'kuhn' cannot be played on .* games check kuhn"):
        team.check_replays(run)
    sys.modules.pop("my_moody")


@pytest.mark.parametrize(
    "words, reaches",
    [
        ((), False),
        (("credit=vine_ppo",), True),
        (("+annotator@policies.main.annotators.stats=token_statistics",), True),
    ],
)
def test_only_who_plays_on_or_attaches_reaches_out(words, reaches):
    assert settings(*words).policies["main"].reaches is reaches


class Flaky(KuhnPoker):
    """Its machinery fails as often as the last digit of its seed says."""

    def start(self, rng, options):
        super().start(rng, options)
        self.fails = options.get("attempt", 0) < self._seed % 10

    def void(self):
        return "the tool did not answer" if self.fails else None


def test_a_void_episode_is_played_again_and_put_as_void_when_all_attempts_fail():
    run = settings("rollout.retries=2", "rollout.group_size=2")
    seats = dict.fromkeys(("player_0", "player_1"), "random")
    plans = [Plan(n, n // 2, "kuhn", seed, seats) for n, seed in enumerate((10, 12, 21, 23))]
    store = SqliteStore(":memory:", time.time, retries=2)
    who, makers = {"random": Uniform()}, {"kuhn": Flaky}
    episodes = team.collect(run, makers, who, {}, {"main": 0}, store, AtHand(), plans, {})
    assert [(one.id, one.attempt, one.void is None) for one in episodes] == [
        (0, 0, True), (1, 2, True), (2, 1, True), (3, 2, False),
    ]  # fmt: skip
    assert store.counts("main").void == 1
    claim = store.claim("main", 1, 0, 60, "refill")
    assert sorted(record.key.episode for record in claim.records) == [0, 1]
    assert store.claim("main", 1, 0, 60, "refill") is None  # one alone has no group
