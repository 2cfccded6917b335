"""Every YAML of the groups `loss` and `learner` builds, and the defaults are the dataclass's."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

import marl_llm
from marl_llm.config import build
from marl_llm.learn.balance import FlowRL, TrajectoryBalance
from marl_llm.learn.delta import DelTA
from marl_llm.learn.learner import LearnerSettings
from marl_llm.learn.lora import Lora
from marl_llm.learn.losses import CISPO, GMPO, GSPO, SAPO, PPOClip, Reinforce

CONFIGS = Path(marl_llm.__file__).parent / "configs"
LOSSES = {
    "ppo_clip": PPOClip(),
    "dapo_clip": PPOClip(high=0.28),
    "gspo": GSPO(),
    "cispo": CISPO(),
    "reinforce": Reinforce(),
    "gmpo": GMPO(),
    "sapo": SAPO(),
    "tb": TrajectoryBalance(0.05),
    "flowrl": FlowRL(),
    "delta": DelTA(),
}


def load(path):
    """A node of a group, what it extends included."""
    node = yaml.safe_load(path.read_text())
    below = {}
    for name in node.pop("defaults", []):
        if name != "_self_":
            below |= load(path.with_name(f"{name}.yaml"))
    return below | node


@pytest.mark.parametrize("path", sorted((CONFIGS / "loss").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_loss(path):
    node = load(path)
    made = build(node)
    assert set(node) - {"_target_"} == {field.name for field in fields(made)}
    assert made == LOSSES.get(path.stem, made)


def test_all_losses_have_a_file():
    assert set(LOSSES) <= {path.stem for path in (CONFIGS / "loss").glob("*.yaml")}


@pytest.mark.parametrize("path", sorted((CONFIGS / "learner").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_learner_names_every_setting_but_the_loss(path):
    node = load(path)
    assert set(node) - {"_target_"} == {f.name for f in fields(LearnerSettings)} - {"loss"}
    build(node)


def test_the_default_learner_is_the_dataclass_as_it_stands():
    default = build(load(CONFIGS / "learner" / "default.yaml"))
    assert default == LearnerSettings()
    lora = build(load(CONFIGS / "learner" / "lora.yaml"))
    assert lora == replace(LearnerSettings(), lr=1e-4, lora=Lora())
