from pathlib import Path

import numpy as np
import pytest
import yaml

from marl_llm.agents.role import Role
from marl_llm.agents.solvers import Mcts
from marl_llm.config import build
from marl_llm.games.connect_four import ConnectFour
from marl_llm.games.household.single import Household
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.needle_pool import NeedlePool
from marl_llm.games.relay_chain import RelayChain
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.types import Finish, Move, Observation

CONFIGS = Path(__file__).parents[2] / "marl_llm" / "configs"
ROLES = sorted((CONFIGS / "role").glob("*.yaml"))
PLAYERS = sorted((CONFIGS / "player").glob("*.yaml"))


def made(path):
    return build(yaml.safe_load(path.read_text()))


def test_there_are_presets():
    assert len(ROLES) >= 4
    assert len(PLAYERS) >= 9


@pytest.mark.parametrize("path", ROLES, ids=lambda path: path.stem)
def test_a_role_preset_says_how_to_answer_or_is_taught(path):
    role = made(path)
    assert isinstance(role, Role)
    seen = Observation("player_1", "player", "Your card: K.", "K", ("pass", "bet"), "2p")
    told = role.system_text("The rules.", "player_1") + role.user_text("The rules.", seen)
    assert "Your card: K." in told
    reply = role.parser.render("K", "bet")
    assert role.parser.parse(reply, Finish.STOP) == Move("bet")
    if path.stem != "tiny":
        assert role.parser.instructions in told
        assert "The rules." in told
        assert "player_1" in told


@pytest.mark.parametrize("path", PLAYERS, ids=lambda path: path.stem)
def test_a_player_preset_plays_its_games(path):
    player = made(path)
    if path.stem == "human":
        assert player.name == "human"
        return
    games = {
        "solver": [RelayChain, NeedlePool],
        "hasty": [RelayChain, NeedlePool],
        "minimax": [TicTacToe],
        "mcts_100": [TicTacToe, ConnectFour],
        "mcts_1000": [TicTacToe],
        "win_or_block": [TicTacToe, ConnectFour],
        "weak_kuhn": [KuhnPoker],
        "weak_leduc": [LeducPoker],
        "cfr": [KuhnPoker],
        "nash": [KuhnPoker, LeducPoker],
        "household_solver": [Household],
        "skipper": [Household],
    }.get(path.stem, [KuhnPoker, TicTacToe])
    assert player.name == path.stem
    for kind in games:
        game = kind()
        game.reset(1)
        agent = game.acting()[0]
        assert game.accepts(agent, player.act(game, agent, np.random.default_rng(0)))


def test_the_search_presets_are_those_of_the_published_evaluations():
    assert made(CONFIGS / "player" / "mcts_100.yaml") == Mcts(100, 2.0, 10, "mcts_100")
    assert made(CONFIGS / "player" / "mcts_1000.yaml") == Mcts(1000, 2.0, 10, "mcts_1000")
