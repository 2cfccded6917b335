"""Every YAML of the group `annotator`, and what `attach` holds annotators to."""

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import yaml

import marl_llm
from marl_llm.agents.plan_execute import PlanExecute
from marl_llm.annotate import attach
from marl_llm.annotate.state_values import StateValues
from marl_llm.config import build
from marl_llm.credit.signals import KNOWN, described
from marl_llm.errors import EpisodeError

FILES = sorted((Path(marl_llm.__file__).parent / "configs" / "annotator").glob("*.yaml"))


@pytest.fixture
def material(make_material, make_table, replies):
    return make_material(make_table(replies["curious"]), count=6, size=2)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_yaml_names_its_annotator_and_says_what_it_attaches(path):
    text = path.read_text()
    node = yaml.safe_load(text)
    made = build(node)
    for field in fields(made):
        if field.name in node and field.default is not MISSING:
            value = node[field.name]
            kept = tuple(value) if isinstance(value, list) else value
            assert kept == field.default, f"the default of {field.name} stands in the dataclass"
    comment = text.splitlines()[0]
    for name in made.signals:
        assert described(name) is not None
        assert name in comment


@pytest.mark.parametrize(
    "name", [name for name, signal in KNOWN.items() if " " not in signal.annotator]
)
def test_a_signal_names_the_yaml_that_attaches_it(name):
    (path,) = (path for path in FILES if path.stem == KNOWN[name].annotator)
    assert name in build(yaml.safe_load(path.read_text())).signals


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_attached_is_what_was_said_and_the_same_every_time(
    path, make_material, make_table, tiny, replies
):
    plans = path.stem.startswith("plan_")

    def reply(prompt, seed):
        if "You judge" in prompt or "These are the turns" in prompt:
            return "<verdict>none</verdict>"
        said = replies["curious"](prompt, seed)
        return f"<switch>KEEP</switch>{said}" if plans else said

    _, learner = tiny()
    role = {"parser": PlanExecute(action_tag="answer"), "user": "{observation} {subgoal}"}
    material = make_material(
        make_table(reply), count=6, size=2, probe=learner, **(role if plans else {})
    )
    annotator = build(yaml.safe_load(path.read_text()))
    batch, again = (attach({"it": annotator}, material, 5) for _ in range(2))
    for name in annotator.signals:
        read = batch.token_signal if KNOWN[name].over == "token" else batch.signal
        np.testing.assert_array_equal(read(name), again.signals[name])
    assert set(batch.signals) - set(annotator.signals) <= {
        f"{name}/missing" for name in annotator.signals
    }


def test_there_are_annotators():
    assert len(FILES) >= 15


@dataclass(frozen=True)
class Dice:
    """Draws a number for each turn."""

    signals: ClassVar[tuple[str, ...]] = ("progress",)

    def annotate(self, material):
        return {"progress": material.rng.normal(size=len(material.batch))}


@dataclass(frozen=True)
class Reads:
    """Doubles what another annotator attached."""

    signals: ClassVar[tuple[str, ...]] = ("potential",)

    def annotate(self, material):
        return {"potential": 2 * material.batch.signal("progress")}


@dataclass(frozen=True)
class Liar:
    """Says one thing and does another."""

    signals: ClassVar[tuple[str, ...]] = ("progress",)

    def annotate(self, material):
        return {"potential": np.zeros(len(material.batch))}


def test_later_annotators_see_the_signals_of_earlier_ones(material):
    batch = attach({"dice": Dice(), "reads": Reads()}, material, 5)
    np.testing.assert_array_equal(batch.signal("potential"), 2 * batch.signal("progress"))
    with pytest.raises(EpisodeError, match="no signal 'progress'"):
        attach({"reads": Reads(), "dice": Dice()}, material, 5)


def test_draws_hang_on_the_name_and_not_on_the_company(material):
    alone = attach({"dice": Dice()}, material, 5).signal("progress")
    company = attach({"values": StateValues(), "dice": Dice()}, material, 5).signal("progress")
    np.testing.assert_array_equal(alone, company)
    assert not np.array_equal(alone, attach({"other": Dice()}, material, 5).signal("progress"))
    assert not np.array_equal(alone, attach({"dice": Dice()}, material, 6).signal("progress"))


def test_an_annotator_attaches_what_it_says(material):
    with pytest.raises(EpisodeError, match="'liar' is to attach progress, and attached potential"):
        attach({"liar": Liar()}, material, 5)


def test_nobody_attaches_nothing(material):
    assert attach({}, material, 5) is material.batch
