"""What every estimator owes its users, for every YAML in `configs/credit`."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import marl_llm
from marl_llm.credit.batch import per_token

CONFIGS = sorted((Path(marl_llm.__file__).parent / "configs" / "credit").glob("*.yaml"))
SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=15, deadline=None)


def build(path: Path):
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    module, _, name = node.pop("_target_").rpartition(".")
    return vars(importlib.import_module(module))[name](**node)


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem, scope="module")
def estimator(request):
    return build(request.param)


def same(first, second, atol=1e-9):
    np.testing.assert_allclose(first.advantage, second.advantage, atol=atol, rtol=1e-6)
    np.testing.assert_array_equal(first.weight, second.weight)


def test_there_are_estimators():
    assert len(CONFIGS) >= 9


def test_it_says_what_it_is(estimator):
    assert estimator.level in ("turn", "token")
    assert estimator.evidence in ("paper", "code", "notes", "reading")
    assert estimator.source
    assert isinstance(estimator.needs, frozenset)
    text = type(estimator).__doc__
    assert "Source:" in text
    assert "=" in text, "the docstring shows the formula"


def test_settings_are_frozen_and_travel(estimator):
    assert pickle.loads(pickle.dumps(estimator)) == estimator
    with pytest.raises(FrozenInstanceError):
        estimator.__setattr__(fields(estimator)[0].name, None)


def test_settings_from_yaml_equal_settings_from_python(estimator):
    # A YAML gives lists where Python has tuples.
    again = type(estimator)(**{
        field.name: list(value) if isinstance(value, tuple) else value
        for field in fields(estimator)
        for value in [getattr(estimator, field.name)]
    })  # fmt: skip
    assert again == estimator
    assert hash(again) == hash(estimator)


@LAW
@given(SEEDS)
def test_shapes_and_silent_turns(estimator, random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = estimator.estimate(batch)
    assert credit.level == estimator.level
    assert credit.advantage.dtype == np.float64
    assert per_token(credit, batch).shape == batch.logprobs.shape
    np.testing.assert_array_equal(credit.weight, (batch.lengths > 0).astype(float))
    if credit.level == "turn":
        assert not credit.advantage[batch.lengths == 0].any()
    for part in credit.components.values():
        assert part.shape == (len(batch),)
    assert all(isinstance(value, float) and np.isfinite(value) for value in credit.stats.values())
    assert any(name.startswith("adv_abs_mean/") for name in credit.stats)


def test_it_is_pure(estimator, random_batch):
    batch = random_batch(np.random.default_rng(0))
    before = pickle.dumps(batch)
    first, second = estimator.estimate(batch), estimator.estimate(batch)
    assert pickle.dumps(batch) == before
    assert first.advantage.tobytes() == second.advantage.tobytes()
    assert first.stats == second.stats


@LAW
@given(SEEDS)
def test_the_order_of_rows_does_not_matter(estimator, random_batch, take_rows, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    order = rng.permutation(len(batch))
    if "state" in inspect.signature(estimator.estimate).parameters:
        # A moving average takes episodes in the order of the batch: only rows inside them move.
        order = order[np.argsort(batch.episode[order], kind="stable")]
    there = take_rows(batch, order)
    turns = np.split(per_token(estimator.estimate(there), there), there.offsets[1:-1])
    moved_back = np.concatenate([turns[i] for i in np.argsort(order)])
    expected = per_token(estimator.estimate(batch), batch)
    np.testing.assert_allclose(moved_back, expected, atol=1e-9)


@LAW
@given(SEEDS)
def test_the_numbers_behind_the_names_do_not_matter(estimator, random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)

    def relabel(column, size=1000):
        return rng.permutation(size)[column]

    agent, role, game = (rng.permutation(k) for k in (3, 3, 2))
    names = {
        name: tuple(batch.names[name][i] for i in np.argsort(code))
        for name, code in {"agent": agent, "role": role, "game": game}.items()
    }
    renamed = replace(
        batch,
        group=relabel(batch.group),
        episode=relabel(batch.episode),
        state_key=relabel(batch.state_key),
        agent=agent[batch.agent],
        role=role[batch.role],
        game=game[batch.game],
        names=names,
    )
    first, second = estimator.estimate(batch), estimator.estimate(renamed)
    same(first, second)
    assert first.stats == pytest.approx(second.stats)
    json_equal(first.state, second.state)


def json_equal(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            json_equal(first[key], second[key])
    else:
        assert first == pytest.approx(second)


@LAW
@given(SEEDS)
def test_no_reward_no_credit(estimator, random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    n = len(batch)
    nothing = {name: np.zeros(n) for name in batch.signals}
    credit = estimator.estimate(replace(batch, reward=np.zeros(n), signals=nothing))
    assert not credit.advantage.any(), "zero, exactly"


@LAW
@given(SEEDS)
def test_single_precision_rewards(estimator, random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    single = replace(batch, reward=batch.reward.astype(np.float32))
    credit = estimator.estimate(single)
    assert credit.advantage.dtype == np.float64
    same(credit, estimator.estimate(batch), atol=1e-4)


@LAW
@given(SEEDS)
def test_one_role_only_and_a_row_alone(estimator, random_batch, take_rows, seed):
    batch = random_batch(np.random.default_rng(seed), agents=1)
    estimator.estimate(batch)
    estimator.estimate(take_rows(batch, [0]))


def test_an_empty_batch_is_normal(estimator, random_batch, take_rows):
    credit = estimator.estimate(take_rows(random_batch(np.random.default_rng(0)), []))
    assert credit.advantage.shape == (0,)


def test_nobody_said_anything(estimator, random_batch):
    batch = random_batch(np.random.default_rng(0), silent=1.0)
    credit = estimator.estimate(batch)
    assert not credit.advantage.any()
    assert not credit.weight.any()


def test_missing_signals_are_named(estimator, random_batch):
    batch = replace(random_batch(np.random.default_rng(0)), signals={})
    if estimator.needs:
        with pytest.raises(marl_llm.errors.EpisodeError, match=min(estimator.needs)):
            estimator.estimate(batch)
    else:
        estimator.estimate(batch)


def test_a_state_is_json(estimator, random_batch):
    state = estimator.estimate(random_batch(np.random.default_rng(0))).state
    assert json.loads(json.dumps(state)) == state
