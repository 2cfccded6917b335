import numpy as np
import pyspiel
import pytest

from marl_llm.agents.scripted import Uniform
from marl_llm.agents.solvers import Cfr, Mcts, Minimax, Nash, position_values
from marl_llm.errors import ConfigError, GameError
from marl_llm.games.connect_four import ConnectFour
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.types import Move, Outcome


def ask(player, game, seed=0):
    return player.act(game, game.acting()[0], np.random.default_rng(seed))


def outcome_of(game, players, seed):
    """How a game between two players ends for the first seat."""
    rng = np.random.default_rng(seed)
    game.reset(seed)
    while game.acting():
        agent = game.acting()[0]
        game.act(agent, Move(players[game.player(agent)].act(game, agent, rng)))
    return game.outcomes()["player_0"]


def test_minimax_never_loses_to_random_play_from_either_seat():
    game, perfect, random = TicTacToe(), Minimax(), Uniform()
    first = [outcome_of(game, (perfect, random), seed) for seed in range(100)]
    second = [outcome_of(game, (random, perfect), seed) for seed in range(100)]
    assert Outcome.LOSS not in first
    assert Outcome.WIN not in second
    assert first.count(Outcome.WIN) > 80  # a perfect first player wins nearly always


def test_minimax_against_itself_draws():
    games = {outcome_of(TicTacToe(), (Minimax(), Minimax()), seed) for seed in range(20)}
    assert games == {Outcome.DRAW}


def test_tic_tac_toe_is_a_draw_and_has_5478_positions():
    values = position_values("tic_tac_toe()")
    assert len(values) == 5478
    start = pyspiel.load_game("tic_tac_toe").new_initial_state()
    assert values[(0, str(start))] == 0.0


def test_minimax_plays_all_best_actions():
    game = TicTacToe()
    game.reset(0)
    # Every opening move draws under perfect play.
    assert len({ask(Minimax(), game, seed) for seed in range(100)}) == 9
    # Against the centre only the corners hold the draw.
    game.act("player_0", Move("b2"))
    assert {ask(Minimax(), game, seed) for seed in range(60)} == {"a1", "c1", "a3", "c3"}


def test_minimax_refuses_what_it_cannot_solve(monkeypatch):
    cards = KuhnPoker()
    cards.reset(0)
    with pytest.raises(GameError, match="perfect information and no chance moves"):
        ask(Minimax(), cards)
    monkeypatch.setattr("marl_llm.agents.solvers.MAX_POSITIONS", 2_000)
    board = ConnectFour()
    board.reset(0)
    with pytest.raises(GameError, match=r"2,000 positions, too many for minimax; choose .*mcts"):
        ask(Minimax(), board)


def test_mcts_takes_a_win_and_repeats_with_its_seed():
    game = ConnectFour()
    game.reset(0)
    one, two, *_ = game.legal("player_0")
    for action in (one, two, one, two, one, two):
        game.act(game.acting()[0], Move(action))
    player = Mcts(simulations=100)
    assert {ask(player, game, seed) for seed in range(5)} == {one}
    game.reset(0)
    some = [ask(Mcts(simulations=5), game, seed) for seed in range(12)]
    assert some == [ask(Mcts(simulations=5), game, seed) for seed in range(12)]
    assert len(set(some)) > 1


def test_mcts_beats_random_play():
    won = [outcome_of(ConnectFour(), (Mcts(20), Uniform()), s) for s in range(6)]
    lost = [outcome_of(ConnectFour(), (Uniform(), Mcts(20)), s) for s in range(6)]
    assert won.count(Outcome.WIN) >= 5
    assert lost.count(Outcome.LOSS) >= 5


def test_mcts_refuses_hidden_cards_and_settings_out_of_range():
    game = KuhnPoker()
    game.reset(0)
    with pytest.raises(GameError, match="player 'mcts' needs perfect information"):
        ask(Mcts(), game)
    with pytest.raises(ConfigError, match="at least one simulation"):
        Mcts(simulations=0)
    with pytest.raises(ConfigError, match="at least one iteration"):
        Cfr(iterations=0)


@pytest.mark.parametrize("player", [Nash(), Cfr(iterations=300)])
def test_card_solvers_play_by_their_own_card(player):
    game = KuhnPoker()
    seen = {}
    for seed in range(40):
        game.reset(seed)
        for opening in ("bet", "pass"):
            twin = KuhnPoker()
            twin.restore(game.snapshot())
            twin.act("player_0", Move(opening))
            if opening == "bet":
                seen.setdefault(twin.observation("player_1").brief[0], set()).add(
                    ask(player, twin, seed)
                )
    # Facing a bet, the king always calls and the jack always folds.
    assert seen["K"] == {"bet"}
    assert seen["J"] == {"pass"}


def test_nash_plays_leduc_and_matching_pennies():
    game = LeducPoker()
    game.reset(3)
    assert ask(Nash(), game) in game.legal("player_0")
    pennies = MatrixGame()
    pennies.reset(0)
    assert {ask(Nash(), pennies, seed) for seed in range(20)} == set(pennies.legal("player_0"))
