"""What every estimator owes its users, for every YAML in `configs/credit`.

Laws that a formula breaks by design are declared in its card, and then not asked of it.
"""

from __future__ import annotations

import importlib
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
from marl_llm.credit import assign
from marl_llm.credit.batch import per_token
from marl_llm.credit.given import Given
from marl_llm.credit.signals import KNOWN, SIGNAL_KEYS
from marl_llm.errors import EpisodeError

CONFIGS = sorted((Path(marl_llm.__file__).parent / "configs" / "credit").glob("*.yaml"))
SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=10, deadline=None)
SURE = {"replayed", "event_exogenous"}  # never missing: whoever made the episodes knows them


def build(path: Path):
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    module, _, name = node.pop("_target_").rpartition(".")
    return vars(importlib.import_module(module))[name](**node)


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem, scope="module")
def estimator(request):
    return build(request.param)


@pytest.fixture(scope="session")
def ask(make_replays):
    """Credit as a run would ask for it, with chance and replays at hand."""

    def asked(estimator, batch):
        return assign(estimator, batch, Given(np.random.default_rng(7), make_replays(batch)))

    return asked


def keeps(estimator, law):
    if law in estimator.card.breaks:
        pytest.skip(f"{estimator.card.name} declares that it does not keep the law {law!r}")


def same(first, second, atol=1e-9):
    np.testing.assert_allclose(first.advantage, second.advantage, atol=atol, rtol=1e-6)
    np.testing.assert_allclose(first.weight, second.weight, atol=atol, rtol=1e-6)


def by_turn(credit, batch):
    """Credit of the tokens of each turn, a list of N arrays."""
    return np.split(per_token(credit, batch), batch.offsets[1:-1])


def test_there_are_estimators():
    assert len(CONFIGS) >= 9


def test_names_are_not_shared():
    names = {}
    for path in CONFIGS:
        kind = type(build(path))
        assert names.setdefault(kind.card.name, kind) is kind, f"two classes called {path.stem}"


def test_it_says_what_it_is(estimator):
    card = estimator.card
    assert all(name in KNOWN for name in card.needs)
    text = type(estimator).__doc__
    assert "Source:" in text
    assert "=" in text, "the docstring shows the formula"
    if any(KNOWN[name].annotator for name in card.needs):
        assert all(f'"{name}"' in text for name in card.needs), "the docstring names its signals"


def test_settings_are_frozen_and_travel(estimator):
    assert pickle.loads(pickle.dumps(estimator)) == estimator
    for field in fields(estimator):
        with pytest.raises(FrozenInstanceError):
            estimator.__setattr__(field.name, None)


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
def test_shapes_and_silent_turns(estimator, random_batch, ask, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = ask(estimator, batch)
    sampled = batch.lengths > 0
    assert credit.level == estimator.card.level
    assert credit.advantage.dtype == np.float64
    assert per_token(credit, batch).shape == batch.logprobs.shape
    assert credit.weight.shape == (len(batch),)
    assert np.all(credit.weight >= 0)
    assert not credit.weight[~sampled].any()
    if credit.level == "turn":
        assert not credit.advantage[~sampled].any()
    if credit.targets is not None:
        assert credit.targets.shape in ((len(batch),), batch.logprobs.shape)
    assert all(isinstance(value, float) and np.isfinite(value) for value in credit.stats.values())
    assert any(name.startswith("adv_abs_mean/") for name in credit.stats)


@LAW
@given(SEEDS)
def test_components_add_up(estimator, random_batch, ask, seed):
    batch = random_batch(np.random.default_rng(seed))
    credit = ask(estimator, batch)
    assert credit.components
    for name, part in credit.components.items():
        assert part.shape == credit.advantage.shape, name
    counted = np.ones(len(credit.advantage), dtype=bool)
    if credit.level == "turn":
        counted = credit.weight > 0
    total = sum(credit.components.values())
    np.testing.assert_allclose(total[counted], credit.advantage[counted], atol=1e-9)


def test_it_is_pure(estimator, random_batch, ask):
    batch = random_batch(np.random.default_rng(0))
    before = pickle.dumps(batch)
    first, second = ask(estimator, batch), ask(estimator, batch)
    assert pickle.dumps(batch) == before
    assert first.advantage.tobytes() == second.advantage.tobytes()
    assert first.stats == second.stats


@LAW
@given(SEEDS)
def test_a_memory_does_not_hear_of_the_order_inside_an_episode(estimator, random_batch, ask, seed):
    """It takes episodes as they stand in the batch, over whichever workers their turns came."""
    if "order" not in estimator.card.breaks or estimator.card.draws:
        pytest.skip("the order of rows does not matter at all, or decides what is drawn")
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    order = rng.permutation(len(batch))
    order = order[np.argsort(batch.episode[order], kind="stable")]
    there = batch.take(order)
    turns = by_turn(ask(estimator, there), there)
    moved_back = np.concatenate([turns[i] for i in np.argsort(order)])
    np.testing.assert_allclose(moved_back, per_token(ask(estimator, batch), batch), atol=1e-8)


@LAW
@given(SEEDS)
def test_the_numbers_behind_the_names_do_not_matter(estimator, random_batch, ask, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)

    def relabel(column, size=1000):
        return rng.permutation(size)[column]

    if estimator.card.draws:
        pytest.skip("what is drawn hangs on the order of the numbers")
    agent, role, game = (rng.permutation(k) for k in (3, 3, 2))
    names = {
        name: tuple(batch.names[name][i] for i in np.argsort(code))
        for name, code in {"agent": agent, "role": role, "game": game}.items()
    }
    keys = {name: np.where(batch.signals[name] < 0, -1, relabel(batch.signals[name]))
            for name in SIGNAL_KEYS if name in batch.signals}  # fmt: skip
    renamed = replace(
        batch,
        group=relabel(batch.group),
        episode=relabel(batch.episode),
        state_key=relabel(batch.state_key),
        action_key=relabel(batch.action_key),
        agent=agent[batch.agent],
        role=role[batch.role],
        game=game[batch.game],
        names=names,
        signals={**batch.signals, **keys},
    )
    first, second = ask(estimator, batch), ask(estimator, renamed)
    same(first, second, atol=1e-8)
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
def test_turns_of_others_in_between_do_not_matter(estimator, random_batch, ask, seed):
    """A scripted player's or a tool's turns are no rows; they only leave gaps in the numbering."""
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    wider = replace(batch, turn=3 * batch.turn + 1)
    same(ask(estimator, batch), ask(estimator, wider))


def without_rewards(estimator, ask, draw, rng):
    """The credit of nothing at all."""
    batch = draw(rng)
    nothing = {
        name: signal if KNOWN[name].over == "key" else np.zeros(len(signal))
        for name, signal in batch.signals.items()
    } | {"event_exogenous": np.ones(len(batch))}
    zero = np.zeros(len(batch))
    credit = ask(estimator, replace(batch, reward=zero, shaping=zero, signals=nothing))
    return credit.advantage, 0.0


def beside_louder_groups(estimator, ask, draw, rng):
    """The credit of a group beside others with large rewards, and alone."""
    batch = draw(rng)
    group = rng.integers(3)  # not always the first, which a memory hears of before all others
    mine = np.flatnonzero(batch.group == group)
    scale = np.where(batch.group == group, 1.0, 1000.0)
    louder = replace(batch, reward=scale * batch.reward, shaping=scale * batch.shaping)
    alone = batch.take(mine)
    turns = by_turn(ask(estimator, louder), batch)
    return np.concatenate([turns[i] for i in mine]), per_token(ask(estimator, alone), alone)


def with_a_constant(estimator, ask, draw, rng):
    """The credit with and without a constant for every agent's episode."""
    batch = draw(rng, silent=0.0)
    # On the last turn, so that the return from every turn on moves by the same.
    last = batch.agents().after == 0
    moved = replace(batch, reward=np.where(last, batch.reward + rng.uniform(-5, 5), batch.reward))
    return ask(estimator, moved).advantage, ask(estimator, batch).advantage


def in_another_order(estimator, ask, draw, rng):
    """The credit of rows in another order, put back, and in their own."""
    batch = draw(rng)
    order = rng.permutation(len(batch))
    there = batch.take(order)
    turns = by_turn(ask(estimator, there), there)
    back = np.concatenate([turns[i] for i in np.argsort(order)])
    return back, per_token(ask(estimator, batch), batch)


LAWS = {
    "zero": (without_rewards, 0.0),
    "groups": (beside_louder_groups, 1e-9),
    "shift": (with_a_constant, 1e-6),
    "order": (in_another_order, 1e-8),
}


@pytest.mark.parametrize("law", LAWS)
@LAW
@given(SEEDS)
def test_it_keeps_the_laws_that_it_does_not_declare(estimator, random_batch, ask, law, seed):
    keeps(estimator, law)
    compared, tolerance = LAWS[law]
    got, expected = compared(estimator, ask, random_batch, np.random.default_rng(seed))
    np.testing.assert_allclose(got, expected, atol=tolerance, rtol=1e-7 if tolerance else 0.0)


DECLARED = sorted({
    (type(estimator), law)
    for estimator in map(build, CONFIGS) for law in estimator.card.breaks
}, key=str)  # fmt: skip


@pytest.mark.parametrize(("kind", "law"), DECLARED, ids=lambda x: getattr(x, "__name__", x))
def test_it_breaks_the_laws_that_it_declares(kind, law, random_batch, ask):
    """A law that holds is a promise that users can lean on: no card may hide it."""
    compared, tolerance = LAWS[law]
    for estimator in (e for e in map(build, CONFIGS) if type(e) is kind):
        for seed in range(20):
            got, expected = compared(estimator, ask, random_batch, np.random.default_rng(seed))
            if not np.allclose(got, expected, atol=tolerance, rtol=1e-7):
                return
    raise AssertionError(f"{kind.card.name} keeps the law {law!r}, which its card says it breaks")


@LAW
@given(SEEDS)
def test_turns_without_a_known_reward_are_set_aside(estimator, random_batch, ask, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    if estimator.card.draws:
        pytest.skip("what is drawn hangs on who is there")
    lost = rng.random(len(batch)) < 0.15
    agents = batch.agents()
    out = np.isin(agents.of, agents.of[lost])
    rows = np.flatnonzero(~out)
    kept = batch.take(rows)
    expected = by_turn(ask(estimator, kept), kept)
    credit = ask(estimator, batch.with_signals({"unscored": lost.astype(float)}))
    turns = by_turn(credit, batch)
    for row, values in zip(rows, expected, strict=True):
        np.testing.assert_allclose(turns[row], values, atol=1e-9)
    assert not credit.weight[out].any()
    assert not any(turns[row].any() for row in np.flatnonzero(out))
    assert credit.stats["unscored_turns"] == np.sum(out & (batch.lengths > 0))


@LAW
@given(SEEDS)
def test_single_precision(estimator, random_batch, ask, seed):
    batch = random_batch(np.random.default_rng(seed))
    single = replace(
        batch,
        reward=batch.reward.astype(np.float32),
        signals={
            name: signal.astype(np.float32) if signal.dtype.kind == "f" else signal
            for name, signal in batch.signals.items()
        },
    )
    credit = ask(estimator, single)
    assert credit.advantage.dtype == np.float64
    same(credit, ask(estimator, batch), atol=1e-3)


@pytest.mark.parametrize("scale", [1e8, 1e-12])
def test_rewards_of_any_size(estimator, random_batch, ask, scale):
    batch = random_batch(np.random.default_rng(0))
    batch = replace(batch, reward=scale * batch.reward, shaping=scale * batch.shaping)
    credit = ask(estimator, batch)  # finite, or `Credit` would refuse it
    counted = np.repeat(credit.weight > 0, 1 if credit.level == "turn" else batch.lengths)
    size = max(1.0, *(np.abs(part).max() for part in credit.components.values()))
    total = sum(credit.components.values())
    np.testing.assert_allclose(total[counted], credit.advantage[counted], atol=1e-9 * size)
    assert all(map(np.isfinite, credit.stats.values()))


def test_labels_that_could_not_be_had(estimator, random_batch, ask):
    rng = np.random.default_rng(0)
    batch = random_batch(rng)
    labels = {n for n in estimator.card.needs if KNOWN[n].over == "turn"} - SURE
    if not labels:
        pytest.skip("it reads no label of a turn")
    holes = rng.random(len(batch)) < 0.3
    for lost in (holes, np.ones(len(batch), dtype=bool)):
        credit = ask(
            estimator,
            batch.with_signals(
                {name: np.where(lost, np.nan, batch.signals[name]) for name in labels}
            ),
        )
        assert credit.stats["missing_labels"] >= np.sum(lost & (batch.lengths > 0))


@LAW
@given(SEEDS)
def test_one_role_only_and_a_row_alone(estimator, random_batch, take_rows, ask, seed):
    batch = random_batch(np.random.default_rng(seed), agents=1)
    ask(estimator, batch)
    ask(estimator, take_rows(batch, [0]))


def test_an_empty_batch_is_normal(estimator, random_batch, take_rows, ask):
    credit = ask(estimator, take_rows(random_batch(np.random.default_rng(0)), []))
    assert credit.advantage.shape == (0,)


def test_nobody_said_anything(estimator, random_batch, ask):
    batch = random_batch(np.random.default_rng(0), silent=1.0)
    credit = ask(estimator, batch)
    assert not credit.advantage.any()
    assert not credit.weight.any()


def test_missing_signals_are_named(estimator, random_batch):
    batch = replace(random_batch(np.random.default_rng(0)), signals={})
    if estimator.card.needs:
        first = min(estimator.card.needs)
        with pytest.raises(EpisodeError, match=f"needs the signal '{first}'.*comes from"):
            assign(estimator, batch)


def test_a_state_is_json(estimator, random_batch, ask):
    state = ask(estimator, random_batch(np.random.default_rng(0))).state
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("seed", range(3))
def test_planners_and_the_agents_that_they_call(estimator, random_calls, ask, seed):
    """Three roles, several agents of one, calls within calls: what holds of a flat team holds."""

    def draw(rng, **options):
        return random_calls(rng, groups=3, **options)

    batch = draw(np.random.default_rng(seed))
    credit = ask(estimator, batch)
    counted = np.repeat(credit.weight > 0, 1 if credit.level == "turn" else batch.lengths)
    total = sum(credit.components.values())
    np.testing.assert_allclose(total[counted], credit.advantage[counted], atol=1e-9)
    for law, (compared, tolerance) in LAWS.items():
        # Draws of chance hang on which other groups are there, though not on what they earn.
        if law not in estimator.card.breaks and not (law == "groups" and estimator.card.draws):
            got, expected = compared(estimator, ask, draw, np.random.default_rng(seed))
            np.testing.assert_allclose(got, expected, atol=tolerance, err_msg=law)


OF_STATES = {
    "value", "value_next", "value_high", "value_event", "value_behind", "span", "reward_others",
    "potential", "potential_next",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_what_stands_where_nothing_was_said_does_not_matter(estimator, random_batch, ask, seed):
    """Under a label that is missing, and beside a turn without tokens.

    What is said of states is an exception: a turn without tokens stands at one, too.
    """
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, silent=0.3)
    labels = [n for n in estimator.card.needs if KNOWN[n].over == "turn" and n not in SURE]
    lost = {name: rng.random(len(batch)) < 0.2 for name in labels}
    holes = batch.with_signals(
        {name: np.where(gone, np.nan, batch.signals[name]) for name, gone in lost.items()}
    )
    noise = {
        name: np.where(
            gone | (batch.lengths == 0) & (name not in OF_STATES),
            100 * rng.normal(size=len(batch)),
            holes.signals[name],
        )
        for name, gone in lost.items()
    }
    loud = replace(holes, signals={**holes.signals, **noise})
    same(ask(estimator, loud), ask(estimator, holes))


OTHERWISE = {  # settings beside those of the YAML that are methods of their own
    "at_grpo": [{"of": "to_go"}],
    "agentprm_mc": [{"clock": "end"}, {"centred": False}],
    "gigpo": [{"mode": "mean_std_norm", "unit": "agent"}],
    "hae": [{"form": "theory"}, {"truncation": "same_state"}, {"whiten": False}],
    "hcapo": [{"smoothing": 0.5}],
    "hgpo": [{"base": True}, {"mode": "mean_norm"}],
    "igpo": [{"gain": "log_probability"}],
    "lare_reading": [{"per": "agent"}],
    "m_grpo": [{"alignment": "nested"}, {"alignment": "none"}],
    "magrpo": [{"siblings": "node"}, {"normalise": False, "mode": "rloo"}],
    "mappo": [{"normalise": False}, {"by": ["agent"]}],
    "mars": [{"pool": "trajectories"}, {"leave_one_out": True}, {"scale": True}],
    "mxn": [{"executors": "design"}, {"executors": "question"}],
    "rae": [{"order": "update_first"}],
    "toca_stratified_reading": [{"kappa": 0.0}],
}


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name, several in OTHERWISE.items() for options in several],
    ids=str,
)
def test_other_settings(name, options, random_batch, random_calls, ask):
    estimator = replace(build(CONFIGS[0].with_name(f"{name}.yaml")), **options)
    for draw in (random_batch, random_calls):
        batch = draw(np.random.default_rng(0))
        credit = ask(estimator, batch)
        assert credit.advantage.any()
        counted = np.repeat(credit.weight > 0, 1 if credit.level == "turn" else batch.lengths)
        total = sum(credit.components.values())
        np.testing.assert_allclose(total[counted], credit.advantage[counted], atol=1e-9)
        got, expected = in_another_order(estimator, ask, draw, np.random.default_rng(1))
        if "order" not in estimator.card.breaks:
            np.testing.assert_allclose(got, expected, atol=1e-8)
