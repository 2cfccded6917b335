import io

import numpy as np
import pytest

from marl_llm.agents.human import Human, chosen
from marl_llm.errors import MarlError
from marl_llm.games.needle_pool import NeedlePool
from marl_llm.games.tictactoe import TicTacToe


def asked(typed):
    """The action taken and what was shown, when a person types this at an empty board."""
    game, shown = TicTacToe(), io.StringIO()
    game.reset(0)
    player = Human(io.StringIO(typed), shown)
    return player.act(game, "player_0", np.random.default_rng(0)), shown.getvalue()


def test_the_board_is_shown_and_the_action_taken():
    action, shown = asked("b2\n")
    assert action == "b2"
    assert "The board" in shown
    assert "Not an action" not in shown


def test_an_illegal_line_is_asked_again_with_the_list():
    action, shown = asked("d9\n\n b2 \n")
    assert action == "b2"
    assert shown.count("Not an action here") == 2
    assert "  5  b2" in shown


def test_the_end_of_the_input_is_a_sentence():
    with pytest.raises(MarlError, match="the input ended before player_0 of tictactoe"):
        asked("nonsense\n")


def test_no_input_at_all_has_ended(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    game = TicTacToe()
    game.reset(0)
    with pytest.raises(MarlError, match="the input ended before player_0 of tictactoe"):
        Human(sink=io.StringIO()).act(game, "player_0", np.random.default_rng(0))


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("bet\n", "bet"),
        ("  BET ", "bet"),
        ("Play  card 1", "play card 1"),
        ("2", "pass"),
        ("4", None),
        ("0", None),
        ("²", None),
        ("", None),
        ("fold", None),
    ],
)
def test_what_a_line_means(line, action):
    assert chosen(line, ("bet", "pass", "play card 1")) == action


def test_names_go_before_numbers_and_doubt_is_no_answer():
    assert chosen("2", ("7", "2", "3")) == "2"
    assert chosen("1", ("7", "2", "3")) == "7"
    assert chosen("BET", ("bet", "Bet")) is None
    assert chosen("Bet", ("bet", "Bet")) == "Bet"


def test_free_text_is_taken_if_the_game_accepts_it():
    game, shown = NeedlePool(), io.StringIO()
    game.reset(0)
    player = Human(io.StringIO("open everything\n open  A B \n"), shown)
    assert player.act(game, "planner", np.random.default_rng(0)) == "open A B"
    assert shown.getvalue().count("Not an action here.\n") == 1
