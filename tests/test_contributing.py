"""CONTRIBUTING.md teaches by example: every example on it is built, and every command run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from marl_llm import config
from marl_llm.agents.scripted import Uniform
from marl_llm.annotate.material import Material, Reach
from marl_llm.credit.batch import TurnBatch
from marl_llm.games import catalog
from marl_llm.games.check import check_game
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import play
from marl_llm.types import Finish, Move

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {  # path -> text, of the blocks that say in their first line which file they are
    named[1]: text for _, text in BLOCKS if (named := re.match(r"# (marl_llm/\S+)\n", text))
}
MODULES = sorted(path for path in FILES if path.endswith(".py"))
YAMLS = sorted(path for path in FILES if path.endswith(".yaml"))
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line]

# Runs commands one after the other in one process, a person's part in a game included, and prints
# their exit codes as the last line.
DRIVER = """
import io, json, sys
from marl_llm import cli
codes = []
for words in json.loads(sys.argv[1]):
    sys.stdin = io.StringIO("1\\n" * 50)
    codes.append(cli.main(words))
print(json.dumps(codes))
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The page's modules, as if they lay where the page puts them."""
    for path in MODULES:
        name = path.removesuffix(".py").replace("/", ".")
        file = tmp_path / f"{name}.py"
        file.write_text(FILES[path], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)


def made(path):
    return config.build(yaml.safe_load(FILES[path]))


def test_the_page_has_all_six():
    groups = {"game", "role", "credit", "annotator", "loss", "player"}
    assert {path.split("/")[2] for path in YAMLS} == groups
    assert len(MODULES) == 5  # a role needs none
    for path in FILES:
        assert not (ROOT / path).exists(), f"{path} is no longer an example: choose another name"


@pytest.mark.parametrize("path", MODULES)
def test_examples_are_in_the_house_style(path):
    ruff = [sys.executable, "-m", "ruff"]
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *check, "--quiet", "--stdin-filename", path, "-"],
            input=FILES[path],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_game_passes_the_conformance_suite(modules, tmp_path):
    file = tmp_path / "nim.yaml"
    file.write_text(FILES["marl_llm/configs/game/nim.yaml"], encoding="utf-8")
    make = catalog.maker(str(file))
    found = check_game(make, episodes=60, make_without_list=make.without_list())
    assert [str(finding) for finding in found if finding.status == "failed"] == []
    assert {finding.check for finding in found if finding.status == "skipped"} <= {
        "draws_reachable"
    }


def test_the_role_asks_and_reads(modules):
    role = made("marl_llm/configs/role/planner.yaml")
    game = catalog.build("kuhn")
    game.reset(seed=0)
    seen = game.observation("player_0")
    system, user = role.system_text(game.rules(), "player_0"), role.user_text(game.rules(), seen)
    assert "player_0" in system
    assert "Kuhn poker" in system
    assert seen.text in user
    assert "<move>your action</move>" in user
    reply = "<plan>a queen</plan><move>pass</move>"
    assert role.parser.parse(reply, Finish.STOP) == Move("pass")


def test_the_estimator_on_a_batch_by_hand(modules):
    signs = made("marl_llm/configs/credit/signs.yaml")
    # One agent, four episodes of one turn: mean (3 + 0 + 0 + 1) / 4 = 1.
    credit = signs.estimate(batch([3.0, 0.0, 0.0, 1.0]))
    assert credit.advantage.tolist() == [1.0, -1.0, -1.0, 0.0]
    assert credit.weight.tolist() == [1.0] * 4
    parts = {name: part.tolist() for name, part in credit.components.items()}
    assert parts == {"return": [3, 0, 0, 1], "baseline": [-1] * 4, "scaling": [-1, 0, 0, 0]}


def test_the_annotator_on_turns_by_hand(modules):
    legality = made("marl_llm/configs/annotator/legality.yaml")
    lineup = balanced(0, 0, 4, 1, {"kuhn": ["player_0", "player_1"]}, [("random",)])
    games = {"kuhn": KuhnPoker}
    first, *rest = play(lineup, games, {"random": Uniform()}, {}, seed=0)
    # A legal action, one that Kuhn poker does not know, a reply without action, and no reply.
    changes = {"action": "fold"}, {"action": None, "ids": (1,)}, {"action": None}
    turns = [
        first.turns[0],
        *(replace(e.turns[0], **c) for e, c in zip(rest, changes, strict=True)),
    ]
    turns = [replace(turn, policy="main") for turn in turns]
    episodes = [replace(e, turns=(turn,)) for e, turn in zip((first, *rest), turns, strict=True)]
    material = Material(
        policy="main",
        episodes=tuple(episodes),
        turns=tuple(turns),
        batch=None,
        temperatures=np.ones(4),
        probe=None,
        reach=Reach(games=games, seats={}, scorer=None, judge=None, play=None),
        replays=None,
        rng=np.random.default_rng(0),
    )
    found = legality.annotate(material)["grounded"].tolist()
    assert found[:3] == [1.0, 0.0, 0.0]
    assert np.isnan(found[3])


def test_the_loss_has_its_minimum_at_the_edge(modules):
    loss = made("marl_llm/configs/loss/spo.yaml")
    # dℓ/d log π = ρ (-A + |A| (ρ - 1) / ε): -A at ρ = 1, and 0 at 1 + ε for A > 0, 1 - ε for A < 0.
    ratio = torch.tensor([1.0, 1.0, 1.2, 0.8], dtype=torch.float64)
    advantages = torch.tensor([2.0, -2.0, 2.0, -2.0], dtype=torch.float64)
    logprobs = ratio.log().requires_grad_()
    terms = loss.terms(logprobs, torch.zeros_like(ratio), advantages, torch.ones(4))
    terms.loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-2.0, 2.0, 0.0, 0.0], abs=1e-12)
    assert not terms.clipped.any()


def test_the_player_plays(modules):
    player = made("marl_llm/configs/player/favourite.yaml")
    for name, action in (("kuhn", "bet"), ("tictactoe", "b2")):
        game = catalog.build(name)
        game.reset(seed=0)
        assert player.act(game, "player_0", np.random.default_rng(0)) == action


@pytest.mark.slow
def test_every_command_does_what_it_says(tmp_path):
    """With the files in place, in a copy of the package and in a process of its own."""
    shutil.copytree(
        ROOT / "marl_llm", tmp_path / "marl_llm", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path, text in FILES.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    words = [shlex.split(line)[1:] for line in COMMANDS if line.startswith("marl-llm ")]
    assert len(words) >= 7
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(words)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0] * len(words), done.stdout + done.stderr


def test_other_commands_name_what_there_is():
    known = [line for line in COMMANDS if line.startswith("marl-llm ")]
    for line in COMMANDS:
        if line not in known:
            runner, file, *_ = line.split()
            assert runner == "pytest", line
            assert (ROOT / file).is_file(), line
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make (\w+) +#", PAGE)) <= targets


def test_what_the_page_names_is_there():
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|toml|txt|md))`", PAGE):
        places = [ROOT / name, ROOT / "marl_llm" / name, *(ROOT / "marl_llm").glob(f"*/{name}")]
        assert any(place.exists() for place in places), name


def batch(reward):
    """One turn of one agent per episode, one token each."""
    n = len(reward)
    zeros = np.zeros(n, dtype=np.int64)
    ones = np.ones(n, dtype=bool)
    integers = {field.name: zeros for field in fields(TurnBatch)[:14]}
    columns = {
        "episode": np.arange(n),
        "reward": np.asarray(reward),
        "shaping": np.zeros(n),
        "terminated": ones,
        "truncated": ~ones,
        "version": zeros,
        "state_key": zeros,
        "action_key": zeros,
        "offsets": np.arange(n + 1),
        "logprobs": np.full(n, -0.5),
    }
    return TurnBatch(**{**integers, **columns})
