"""TextArena's games, where the extra is installed; without it, an error that says so."""

import importlib.util
import pickle
import random
import warnings

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

from marl_llm.errors import ConfigError
from marl_llm.games.textarena_game import TextArenaGame
from marl_llm.types import Move, Outcome

INSTALLED = importlib.util.find_spec("textarena") is not None
needs_textarena = [
    pytest.mark.textarena,
    pytest.mark.skipif(not INSTALLED, reason="needs the textarena extra"),
]


@pytest.mark.skipif(INSTALLED, reason="the extra is installed")
def test_without_the_extra_the_error_says_what_to_install():
    with pytest.raises(ConfigError, match=r"pip install 'marl_llm\[textarena\]'"):
        TextArenaGame(env="TicTacToe-v0", max_turns=9)


def make(env="TicTacToe-v0", **more):
    return TextArenaGame(env=env, max_turns=40, **more)


def play(game, *actions):
    game.reset(seed=1)
    for action in actions:
        game.act(game.acting()[0], Move(action))
    return game


class TestWithTextArena:
    pytestmark = needs_textarena

    def test_a_game_to_its_end(self):
        game = play(make(), "4", "0", "1", "2", "7")  # 1, 4, 7 are a column
        assert game.outcomes() == {"player_0": Outcome.WIN, "player_1": Outcome.LOSS}
        assert game.take_rewards() == {"player_0": 1.0, "player_1": -1.0}

    def test_its_invalid_move_is_ours_paid_by_our_table(self):
        game = play(make(table="mars"), "4", "4", "4")  # TextArena asks once more
        assert game.outcomes() == {
            "player_0": Outcome.OTHER_FORFEIT,
            "player_1": Outcome.ILLEGAL,
        }
        assert game.take_rewards() == {"player_1": -11.0}

    def test_an_episode_shows_nothing_of_the_last_one(self):
        game = make()
        first = play(game).observation("player_0").text
        play(game, "4", "0")
        assert play(game).observation("player_0").text == first

    @pytest.mark.parametrize("env", ["TicTacToe-v0", "KuhnPoker-v0"])
    def test_pettingzoo_tests_copies_and_the_global_generators(self, env):
        random.seed(0)
        np.random.seed(0)
        before = random.getstate(), np.random.get_state()[1].tolist()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            api_test(make(env), num_cycles=10)
            seed_test(lambda: make(env), num_cycles=10)
        game = play(make(env), "[check]")
        copy = pickle.loads(pickle.dumps(game))
        assert copy.acting() == game.acting()
        assert copy.observation(copy.acting()[0]) == game.observation(game.acting()[0])
        assert before == (random.getstate(), np.random.get_state()[1].tolist())

    def test_an_unknown_name_offers_the_nearest(self):
        with pytest.raises(ConfigError, match=r"did you mean 'TicTacToe-v0'"):
            make("TicTacTo-v0")
