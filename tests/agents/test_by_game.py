import numpy as np
import pytest

from marl_llm.agents.by_game import ByGame
from marl_llm.agents.scripted import Fixed
from marl_llm.errors import ConfigError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.tictactoe import TicTacToe

PLAYER = ByGame({"kuhn": Fixed(("bet",)), "tictactoe": Fixed(("b2",))})


def first_move(game):
    game.reset(seed=0)
    return PLAYER.act(game, "player_0", np.random.default_rng(0))


def test_each_game_has_its_own_player():
    assert first_move(KuhnPoker()) == "bet"
    assert first_move(TicTacToe()) == "b2"


def test_a_game_without_a_player_is_an_error_with_the_names():
    with pytest.raises(ConfigError, match=r"nobody for 'leduc'.*known: kuhn, tictactoe"):
        first_move(LeducPoker())
