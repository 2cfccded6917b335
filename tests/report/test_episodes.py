"""Recorded games: what goes in comes out, and a batch can be made of it again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marl_llm.credit.columns import from_episodes
from marl_llm.errors import CheckpointError, EpisodeError
from marl_llm.report.episodes import (
    advantages_by_turn,
    episode_files,
    read_episodes,
    write_episodes,
)
from marl_llm.types import Episode, Event, Finish, Observation, Outcome, Turn

# Any character at all, lone surrogates and line separators too: a model may write anything.
texts = st.text(st.characters(exclude_categories=()), max_size=8)
numbers = st.floats(-1e6, 1e6)
ids = st.integers(0, 2**20)
events = st.lists(
    st.builds(Event, st.sampled_from(["joined", "left", "replaced"]), texts, ids), max_size=2
).map(tuple)
observations = st.builds(
    Observation, agent=texts, role=texts, text=texts, brief=texts, key=texts,
    legal=st.none() | st.lists(texts, max_size=3).map(tuple), parent=st.none() | ids, events=events,
)  # fmt: skip


@st.composite
def turns(draw) -> Turn:
    sampled = tuple(draw(st.lists(ids, max_size=4)))
    n = len(sampled)
    return Turn(
        observation=draw(observations),
        policy=draw(st.none() | st.sampled_from(["self", "other"])),
        player=draw(texts),
        prompt_ids=tuple(draw(st.lists(ids, max_size=3))),
        ids=sampled,
        logprobs=tuple(draw(st.lists(st.floats(-50, 0), min_size=n, max_size=n))),
        versions=((draw(ids), 0, n),) if n else (),
        reply=draw(texts),
        action=draw(st.none() | texts),
        fault=draw(st.none() | st.sampled_from(Outcome)),
        finish=draw(st.none() | st.sampled_from(Finish)),
        reward=draw(numbers),
        shaping=draw(numbers),
        parent=draw(st.none() | ids),
    )


episodes = st.builds(
    Episode, id=ids, attempt=ids, game=texts, group=ids, seed=st.integers(0, 2**63 - 1),
    turns=st.lists(turns(), max_size=4).map(tuple), seats=st.dictionaries(texts, texts, max_size=2),
    returns=st.dictionaries(texts, numbers, max_size=2),
    outcomes=st.dictionaries(texts, st.sampled_from(Outcome), max_size=2),
    terminated=st.booleans(), events=events, seconds=st.floats(0, 1e6),
)  # fmt: skip


# A file per example: slow on a busy machine, which is no failure.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(episodes, max_size=3))
def test_what_goes_in_comes_out(tmp_path_factory, games: list[Episode]):
    run_dir = tmp_path_factory.mktemp("run")
    decoders = {"self": lambda token: f"<{token}>", "other": lambda token: f"[{token}]"}
    path = write_episodes(run_dir, 40, games, decoders, {})
    found = read_episodes(path)
    assert [recorded.episode for recorded in found] == games
    for recorded in found:
        assert recorded.update == 40
        for turn, pieces, credit in zip(
            recorded.episode.turns, recorded.token_texts, recorded.advantages, strict=True
        ):
            # Each policy's tokens in the words of its own tokenizer.
            form = {"self": "<{}>", "other": "[{}]", None: "{}"}[turn.policy]
            assert pieces == tuple(form.format(token) for token in turn.ids)
            assert len(credit) == len(pieces) and all(math.isnan(value) for value in credit)


def small_turn(agent: str, policy: str | None, tokens: int) -> Turn:
    return Turn(
        observation=Observation(agent, "player", "text", "brief", ("pass",), f"key of {agent}"),
        policy=policy, player=policy or "random", prompt_ids=(1, 2), ids=tuple(range(tokens)),
        logprobs=tuple(-0.1 * (i + 1) for i in range(tokens)), versions=((3, 0, tokens),),
        reply="", action="pass", fault=None, finish=Finish.STOP, reward=1.0, shaping=-0.25,
    )  # fmt: skip


def small_episode(id: int, *turns: Turn) -> Episode:
    return Episode(
        id=id, attempt=0, game="kuhn_poker", group=id // 2, seed=5, turns=turns,
        seats={"a": "self", "b": "random"}, returns={"a": 1.0, "b": -1.0},
        outcomes={"a": Outcome.WIN, "b": Outcome.LOSS}, terminated=True,
    )  # fmt: skip


DECODERS = {"self": str, "other": str}
GAMES = [
    small_episode(
        7, small_turn("a", "self", 2), small_turn("b", None, 0), small_turn("a", "self", 3)
    ),
    small_episode(8, small_turn("b", "other", 2), small_turn("a", "self", 1)),
]


def test_flat_credit_finds_its_tokens(tmp_path: Path):
    # Policy "self" has 2 + 3 + 1 tokens, in episode and playing order.
    credit = advantages_by_turn(GAMES, "self", np.array([0.1, 0.2, 1.1, 1.2, 1.3, math.nan]))
    assert {key: list(map(str, value)) for key, value in credit.items()} == {
        (7, 0): ["0.1", "0.2"], (7, 2): ["1.1", "1.2", "1.3"], (8, 1): ["nan"]
    }  # fmt: skip
    path = write_episodes(tmp_path, 3, GAMES[1:], DECODERS, credit)  # a sample of the batch
    (recorded,) = read_episodes(path)
    assert all(math.isnan(value) for turn in recorded.advantages for value in turn)
    (first, _) = read_episodes(write_episodes(tmp_path, 4, GAMES, DECODERS, credit))
    assert first.advantages == ((0.1, 0.2), (), (1.1, 1.2, 1.3))
    assert first.token_texts[0] == ("0", "1")


@pytest.mark.parametrize("tokens", [5, 7])
def test_credit_of_another_batch_is_refused(tokens: int):
    with pytest.raises(EpisodeError, match=f"{tokens} advantages for 6 tokens"):
        advantages_by_turn(GAMES, "self", np.zeros(tokens))


def test_credit_of_another_turn_is_refused(tmp_path: Path):
    with pytest.raises(EpisodeError, match="turn 0 of episode 7 has 2 sampled tokens but 1"):
        write_episodes(tmp_path, 0, GAMES, DECODERS, {(7, 0): [0.5]})
    assert episode_files(tmp_path) == {}


def test_the_batch_can_be_made_again(tmp_path: Path):
    found = read_episodes(write_episodes(tmp_path, 3, GAMES, DECODERS, {}))
    before = from_episodes(GAMES, "self")
    after = from_episodes([recorded.episode for recorded in found], "self")
    assert len(before) == 3 and before.names == after.names
    for column in ("group", "episode", "agent", "turn", "reward", "version", "state_key",
                   "action_key", "terminated", "offsets", "logprobs"):  # fmt: skip
        np.testing.assert_array_equal(getattr(before, column), getattr(after, column))


def test_a_line_is_json_for_other_tools(tmp_path: Path):
    credit = {(7, 0): [0.5, -0.5]}
    line = write_episodes(tmp_path, 3, GAMES, DECODERS, credit).read_text().splitlines()[0]
    record = json.loads(line, parse_constant=pytest.fail)
    assert record["schema"] == 1 and record["update"] == 3 and record["outcomes"]["a"] == "win"
    assert record["turns"][0]["tokens"] == [["0", -0.1, 0.5], ["1", -0.2, -0.5]]
    assert record["turns"][1]["tokens"] == [] and record["turns"][1]["policy"] is None


def test_files_by_update(tmp_path: Path):
    for update in (100, 0, 20):
        write_episodes(tmp_path, update, GAMES, DECODERS, {})
    (tmp_path / "episodes" / "notes.txt").write_text("mine")
    files = episode_files(tmp_path)
    assert list(files) == [0, 20, 100] and files[20].name == "update_000020.jsonl"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": 2}', "line 2 has schema 2, this version reads 1"),
        ('{"schema": 1}', "line 2 is not an episode"),
        ("[]", "line 2 is not an episode"),
        ('{"schema": 1, "id"', "line 2 is not an episode"),
    ],
)
def test_foreign_lines_are_named(tmp_path: Path, line: str, message: str):
    path = write_episodes(tmp_path, 0, GAMES[:1], DECODERS, {})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(CheckpointError, match=message):
        read_episodes(path)
