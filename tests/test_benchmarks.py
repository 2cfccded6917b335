"""The scripts in benchmarks/ name what there is: run by hand, they would break unseen."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from marl_llm import config
from marl_llm.settings import RunSettings

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.fixture
def load(monkeypatch):
    def loaded(name):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


@pytest.mark.parametrize("name", [path.stem for path in SCRIPTS if path.stem != "trl_grpo"])
def test_a_script_can_be_loaded(load, name):  # trl_grpo runs in an environment of its own
    assert callable(load(name).main)


@pytest.mark.parametrize("question", ["team", "search", "staleness"])
def test_every_arm_composes_and_differs(load, question):
    arms = load("arms").ARMS[question]
    runs = [RunSettings.of(config.compose([*words, "seed=0"])) for words in arms.values()]
    assert len({run.updates for run in runs}) == 1
    assert all(runs[i] != runs[j] for i in range(len(runs)) for j in range(i))


def test_the_rules_to_compare_exist(load):
    assert set(load("credit_rules").RULES) <= set(config.choices("credit"))


def test_every_arm_is_a_run_whose_credit_gets_its_signals(load):
    for arms in load("arms").ARMS.values():
        for words in arms.values():
            run = RunSettings.of(config.compose(list(words)))
            assert not any(policy.lacks(name) for name, policy in run.policies.items())


def test_the_arms_of_the_household_differ_in_credit_alone(load):
    arms = load("arms").ARMS["household"]
    runs = {arm: RunSettings.of(config.compose(list(words))) for arm, words in arms.items()}
    rules = {arm: type(run.policies["main"].credit).__name__ for arm, run in runs.items()}
    assert rules == {
        "HAE": "HAE", "GAE over turns": "GAE", "GAE over turns with lam 1": "GAE", "GRPO": "GRPO",
    }  # fmt: skip
    first, *others = (
        replace(run, policies={"main": replace(run.policies["main"], credit=None, annotators={})})
        for run in runs.values()
    )
    assert all(other == first for other in others)
    of_flat = [run.policies["main"] for arm, run in runs.items() if arm != "HAE"]
    assert [sorted(policy.annotators) for policy in of_flat] == [["state_values"]] * 2 + [[]]
