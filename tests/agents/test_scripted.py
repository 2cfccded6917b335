from collections import Counter

import numpy as np
import pyspiel
import pytest

from marl_llm.agents.scripted import Fixed, Leaning, Noisy, Table, Uniform, WinOrBlock, strength
from marl_llm.agents.spiel import draw
from marl_llm.errors import ConfigError, GameError
from marl_llm.games.connect_four import ConnectFour
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.types import Move


def placed(game, *actions):
    """The game after these actions of whoever is to move."""
    game.reset(0)
    for action in actions:
        game.act(game.acting()[0], Move(action))
    return game


def ask(player, game, seed=0):
    return player.act(game, game.acting()[0], np.random.default_rng(seed))


def asked_often(player, game, times=300):
    return Counter(ask(player, game, seed) for seed in range(times))


def test_uniform_plays_every_legal_action_and_no_other():
    game = placed(TicTacToe(), "a1", "b2")
    counts = asked_often(Uniform(), game)
    assert set(counts) == set(game.legal("player_0"))
    assert min(counts.values()) > 20  # 300 / 7 = 43 expected, standard deviation 6


def test_the_same_generator_gives_the_same_action():
    game = placed(TicTacToe())
    for player in (Uniform(), Noisy(Uniform(), 0.5), WinOrBlock()):
        assert [ask(player, game, s) for s in range(9)] == [ask(player, game, s) for s in range(9)]


def test_fixed_follows_its_list_by_the_game_and_not_by_a_memory():
    player = Fixed(("a1", "b2", "c3"))
    first, second = placed(TicTacToe()), placed(TicTacToe(), "a1", "a2")
    # One object, two games in between one another.
    assert (ask(player, first), ask(player, second), ask(player, first)) == ("a1", "b2", "a1")
    with pytest.raises(GameError, match="'a1', is not legal"):
        ask(player, placed(TicTacToe(), "a1"))
    with pytest.raises(GameError, match=r"has 1 actions and player_0 .* number 2"):
        ask(Fixed(("a1",)), second)


def test_noise_is_a_share_of_uniform_play():
    game = placed(KuhnPoker())
    assert set(asked_often(Noisy(Fixed(("bet",)), 0.0), game, 50)) == {"bet"}
    # Slips in half of the turns, half of them to pass: 0.25, standard deviation 0.025.
    assert 0.15 < asked_often(Noisy(Fixed(("bet",)), 0.5), game)["pass"] / 300 < 0.35
    with pytest.raises(ConfigError, match="probability"):
        Noisy(Uniform(), 1.5)


def test_a_table_plays_its_rows():
    game = placed(KuhnPoker())
    key = game.observation("player_0").key
    assert set(asked_often(Table({key: {"pass": 0.0, "bet": 1.0}}), game, 50)) == {"bet"}
    with pytest.raises(GameError, match="no row for"):
        ask(Table({"elsewhere": {"bet": 1.0}}), game)
    for bad in ({"bet": 0.5}, {"bet": 1.5, "pass": -0.5}, {}):
        with pytest.raises(ConfigError, match="sum to 1"):
            Table({"key": bad})


def test_draw_never_takes_an_impossible_choice():
    class Top:
        def random(self):
            return np.nextafter(1.0, 0.0)

    assert draw(Top(), {"a": 0.1, "b": 0.2, "c": 0.0}) == "b"


@pytest.mark.parametrize(("card", "bet"), [(0, 0.35), (1, 0.50), (2, 0.65)])
def test_the_weak_player_bets_with_35_50_65_percent(card, bet):
    state = pyspiel.load_game("kuhn_poker").new_initial_state()
    for action in (card, (card + 1) % 3):
        state.apply_action(action)
    assert Leaning().chances(state, 0) == pytest.approx({0: 1 - bet, 1: bet})


def test_strength_in_leduc_counts_pairs():
    for name, dealt in (
        ("leduc_poker(suit_isomorphism=true)", (0, 2, 0)),
        ("leduc_poker", (0, 4, 1)),
    ):
        state = pyspiel.load_game(name).new_initial_state()
        state.apply_action(dealt[0])  # a jack
        state.apply_action(dealt[1])  # a king
        assert (strength(state, 0), strength(state, 1)) == (0.0, 1.0)
        for call in (1, 1):
            state.apply_action(call)
        state.apply_action(dealt[2])  # the other jack is opened
        assert (strength(state, 0), strength(state, 1)) == (1.0, 1.0)


def test_the_weak_player_in_leduc_shares_the_rest():
    state = pyspiel.load_game("leduc_poker").new_initial_state()
    for action in (2, 4, 2):  # queen and king dealt, a raise
        state.apply_action(action)
    # The king raises with .65; fold and call share .35.
    assert Leaning().chances(state, 1) == pytest.approx({0: 0.175, 1: 0.175, 2: 0.65})
    assert ask(Leaning(), placed(LeducPoker())) in ("call", "raise")
    with pytest.raises(GameError, match="not of tic_tac_toe"):
        ask(Leaning(), placed(TicTacToe()))


def test_win_or_block_wins_before_it_blocks():
    # x: a1 b1, o: a2 b2; x to move wins at c1 and would have to block c2.
    game = placed(TicTacToe(), "a1", "a2", "b1", "b2")
    assert set(asked_often(WinOrBlock(), game, 30)) == {"c1"}
    # x: a1 b1, o: a2; o must block c1.
    game = placed(TicTacToe(), "a1", "a2", "b1")
    assert set(asked_often(WinOrBlock(), game, 30)) == {"c1"}
    # No threats: anything.
    assert len(asked_often(WinOrBlock(), placed(TicTacToe()))) == 9
    # x: a1 c1 a3 threatens b1 and a2: lost, so anything.
    game = placed(TicTacToe(), "a1", "b2", "c1", "c3", "a3")
    assert set(asked_often(WinOrBlock(), game)) == set(game.legal("player_1"))


def test_win_or_block_blocks_in_connect_four_and_refuses_cards():
    game = placed(ConnectFour())
    one, *_, last = game.legal("player_0")
    # Three in column one against three in the last: whoever is to move wins.
    game = placed(ConnectFour(), one, last, one, last, one)
    assert set(asked_often(WinOrBlock(), game, 10)) == {one}
    game = placed(ConnectFour(), one, last, one, last, one, last)
    assert set(asked_often(WinOrBlock(), game, 10)) == {one}
    with pytest.raises(GameError, match="perfect information and no chance moves"):
        ask(WinOrBlock(), placed(KuhnPoker()))
