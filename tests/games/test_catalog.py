"""Every game of the catalog passes the conformance suite; names, settings and trust are checked."""

import json
import pickle
import sys
from dataclasses import asdict

import pytest
import yaml

from marl_llm.errors import ConfigError
from marl_llm.games import catalog
from marl_llm.games.check import CALL_CHECKS, check_game
from marl_llm.games.delegation import Delegation
from marl_llm.games.kuhn import KuhnPoker

NIM = '''
from marl_llm.games.outcomes import Scoring
from marl_llm.games.text_game import TextGame, View
from marl_llm.types import Outcome


class Nim(TextGame):
    """Take one or two of seven stones; whoever takes the last one wins."""

    def __init__(self, stones: int = 7, table="zero_sum"):
        self.stones_at_first = stones
        ends = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,)}
        super().__init__(
            name="nim", actions=("1", "2"), natural_turns=stones, table=table,
            scoring=Scoring(2, "opposed", "result", ends),
        )

    def start(self, rng, options):
        self.stones, self.mover = self.stones_at_first, 0

    def movers(self):
        return (self.possible_agents[self.mover],) if self.stones else ()

    def legal(self, agent):
        return ("1", "2") if self.stones > 1 else ("1",)

    def play(self, moves):
        self.stones -= int(moves[self.possible_agents[self.mover]])
        self.mover = 1 - self.mover

    def earnings(self):
        if self.stones:
            return (0.0, 0.0)
        return (-1.0, 1.0) if self.mover == 0 else (1.0, -1.0)

    def view(self, agent):
        return View(f"Stones left: {self.stones}.", str(self.stones), str(self.stones))

    def rules(self):
        return "Two players take 1 or 2 stones in turn; whoever takes the last one wins."


NOT_A_GAME = 3


def make_dict():
    return {}
'''


ROCK_PAPER_SCISSORS = """
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class RockPaperScissors(ParallelEnv):
    metadata = {"name": "rps"}

    def __init__(self):
        self.possible_agents = ["left", "right"]
        self.agents = []

    def observation_space(self, agent):
        return spaces.Box(0, 1, (1,), np.int8)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        beaten = (actions["left"] - actions["right"]) % 3
        left = {0: 0.0, 1: 1.0, 2: -1.0}[beaten]
        self.agents = []
        rewards, over = {"left": left, "right": -left}, dict.fromkeys(actions, True)
        infos = {agent: {} for agent in actions}
        return self._seen(), rewards, over, dict.fromkeys(actions, False), infos

    def _seen(self):
        return {agent: np.zeros(1, np.int8) for agent in self.possible_agents}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a package and a file of the user's."""
    (tmp_path / "their_pkg").mkdir()
    (tmp_path / "their_pkg" / "__init__.py").touch()
    (tmp_path / "their_pkg" / "nim.py").write_text(NIM)
    (tmp_path / "their_nim.py").write_text(NIM)
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - before:
        if name.startswith("their_"):
            del sys.modules[name]


def allowed_to_skip(game):
    """What some kinds of games do not have."""
    checks = set()
    if not game.actions:
        checks |= {"listed_is_accepted", "rules_name_the_actions"}
    if isinstance(game, Delegation):
        checks |= {"pays_what_it_declares", "seats_swap", "faults_follow_the_table"}
        # Who calls one at a time has no order; who moves in a world sees more than tools say.
        checks |= {"reports_keep_their_order", "parallel_snapshots_restore"}
        checks |= {"tasks_are_all_they_see"}
    return checks


@pytest.mark.parametrize("name", catalog.names())
def test_every_game_passes_the_suite(name):
    make = catalog.maker(name)
    found = check_game(make, seeds=(0, 1), episodes=60, make_without_list=make.without_list())
    assert [str(finding) for finding in found if finding.status == "failed"] == []
    skipped = {finding.check for finding in found if finding.status == "skipped"}
    assert skipped <= {"draws_reachable"} | allowed_to_skip(make())


@pytest.mark.parametrize("name", ["relay_chain", "phantom_search"])
def test_a_game_for_one_agent_with_the_tools_passes_the_suite(name):
    make = catalog.maker(name, {"level": 1, "solo": True})
    found = check_game(make, seeds=(0, 1), episodes=60, make_without_list=make.without_list())
    assert [str(finding) for finding in found if finding.status == "failed"] == []


@pytest.mark.parametrize("name", ["needle_pool", "needle_crates"])
def test_games_with_calls_at_once_skip_no_check_of_calls(name):
    found = check_game(catalog.maker(name), episodes=60, checks=CALL_CHECKS)
    assert {finding.status for finding in found} == {"passed"}


@pytest.mark.parametrize("table", ["mars", "spiral"])
@pytest.mark.parametrize("name", ["connect_four", "kuhn_3p", "hanabi_mini", "stag_hunt"])
def test_games_pass_under_the_papers_tables_too(name, table):
    found = check_game(catalog.maker(name, {"table": table}), seeds=(0,), episodes=40)
    assert [str(finding) for finding in found if finding.status == "failed"] == []


@pytest.mark.parametrize("name", catalog.names())
def test_names_agree_with_the_yaml_and_makers_pickle(name):
    make = pickle.loads(pickle.dumps(catalog.maker(name)))
    assert make().name == name
    assert make() is not make()
    assert catalog.maker(name).without_list()().list_legal is False


def test_settings_replace_the_yaml():
    game = catalog.build("kuhn", {"players": 4, "name": "four"})
    assert (game.name, game.scoring.agents) == ("four", 4)
    assert isinstance(game, KuhnPoker)


def test_describe_lists_the_facts():
    rows = {row.name: row for row in catalog.describe()}
    assert tuple(rows) == catalog.names()
    json.dumps([asdict(row) for row in rows.values()])
    kuhn, pennies, board = rows["kuhn"], rows["matching_pennies"], rows["tictactoe"]
    assert (kuhn.players, kuhn.moves, kuhn.information) == (2, "sequential", "imperfect")
    assert (kuhn.solver, kuhn.max_turns, kuhn.zero_sum) == ("exact NashConv", 3, True)
    assert (pennies.moves, pennies.solver) == ("simultaneous", "exact NashConv")
    assert (board.information, board.solver, board.max_turns) == ("perfect", "minimax", 9)
    assert rows["hanabi_mini"].interest == "shared"
    # By default a forfeit costs the rules' worst, two chips in Kuhn poker, and the sum stays zero.
    assert kuhn.outcomes["win"] == {"returns": [1.0, 2.0]}
    assert kuhn.outcomes["illegal"] == {"own": [-2.0], "others": [2.0]}


def test_the_outcome_rows_follow_the_table():
    mars = catalog.entry(catalog.build("tictactoe", {"table": "mars"})).outcomes
    assert mars["draw"] == {"returns": [0.1]}
    assert mars["format"] == {"own": [-11.0], "others": [0.0]}  # the stake of 1, and 10 more
    spiral = catalog.entry(catalog.build("tictactoe", {"table": "spiral"})).outcomes
    assert spiral["illegal"] == {"own": [-1.5], "others": [0.5]}
    assert spiral["truncated"] == {"own": [0.0], "others": [0.0]}


@pytest.mark.parametrize("name", ["their_pkg.nim:Nim", "their_nim.py:Nim"])
def test_a_users_class_by_module_or_file(folder, name):
    make = catalog.maker(name, {"stones": 5})
    assert make().max_turns == 5
    assert pickle.loads(pickle.dumps(make()))
    found = {f.check: f for f in check_game(catalog.maker(name), episodes=40)}
    assert [str(f) for f in found.values() if f.status == "failed"] == []
    row = catalog.entry(catalog.build(name))
    assert (row.solver, row.information) == ("none", "unknown")


def test_a_users_yaml_with_a_nested_target(folder):
    (folder / "their_env.py").write_text(ROCK_PAPER_SCISSORS)
    settings = {
        "_target_": "marl_llm.games.pettingzoo_game.PettingZooGame",
        "name": "rps",
        "env": {"_target_": "their_env.RockPaperScissors"},
        "codec": {
            "_target_": "marl_llm.games.pettingzoo_game.DiscreteCodec",
            "rules": "Rock beats scissors, scissors beat paper, paper beats rock.",
            "actions": ["rock", "paper", "scissors"],
        },
        "interest": "opposed",
        "max_turns": 2,
    }
    (folder / "rps.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError, match=r"outside marl_llm; .* name 'their_env' too"):
        catalog.build("rps.yaml")
    make = catalog.maker("rps.yaml", packages=("their_env",))
    assert catalog.entry(make()).moves == "simultaneous"
    found = check_game(make, episodes=40, make_without_list=make.without_list())
    assert [str(finding) for finding in found if finding.status != "passed"] == []


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("khun", {}, "unknown game 'khun'; did you mean 'kuhn'?"),
        ("chess", {}, "unknown game 'chess'; known: connect_four, "),
        ("kuhn", {"playerz": 3}, "has no setting 'playerz'; did you mean 'players'?"),
        ("no_such_pkg.game:Nim", {}, "cannot import 'no_such_pkg.game'"),
        ("their_pkg.nim:Nin", {}, "has no 'Nin' to call; did you mean 'Nim'?"),
        ("their_pkg.nim:NOT_A_GAME", {}, "has no 'NOT_A_GAME' to call"),
        ("their_pkg.nim:make_dict", {}, "makes a dict, which is no game"),
        ("gone.py:Nim", {}, "no file 'gone.py'"),
        ("gone.yaml", {}, "no file 'gone.yaml'"),
        ("broken.yaml", {}, "broken.yaml is no valid YAML"),
        ("list.yaml", {}, "must be a mapping with _target_"),
        ("crash.py:Nim", {}, "crash.py fails on import: ZeroDivisionError"),
        ("json.py:Nim", {}, "would be a second module called 'json'"),
        ("evil.yaml", {}, "'os.system' is outside marl_llm"),
        ("needs.yaml", {}, "needs the settings env, codec, max_turns"),
    ],
)
def test_bad_names_and_files_say_what_to_do(folder, name, settings, words):
    (folder / "broken.yaml").write_text("_target_: [")
    (folder / "list.yaml").write_text("- 1")
    (folder / "evil.yaml").write_text("_target_: os.system\ncommand: touch evil")
    (folder / "needs.yaml").write_text("_target_: marl_llm.games.pettingzoo_game.PettingZooGame")
    (folder / "crash.py").write_text("1 / 0")
    (folder / "json.py").write_text(NIM)
    with pytest.raises(ConfigError) as caught:
        catalog.build(name, settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / "evil").exists()
