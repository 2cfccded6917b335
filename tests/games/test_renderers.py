"""The words of each game: exact texts, all that an agent knows, nothing that it does not."""

import numpy as np
import pytest

from marl_llm.games.connect_four import ConnectFour
from marl_llm.games.kuhn import KuhnPoker, deck
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.liars_dice import LiarsDice
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.types import Move


def after(game, *actions, seed=0):
    game.reset(seed=seed)
    for action in actions:
        game.act(game.acting()[0], Move(action))
    return game


def test_kuhn():
    game = KuhnPoker().at([0, 2])
    assert game.observation("player_0").text == (
        "Your card: J. Bets so far: none.\nLegal actions: pass, bet."
    )
    game.act("player_0", Move("pass"))
    game.act("player_1", Move("bet"))
    seen = game.observation("player_0")
    assert seen.text == (
        "Your card: J. Bets so far: you pass, opponent bet.\nLegal actions: pass, bet."
    )
    assert (seen.brief, seen.key, seen.role) == ("J pass bet", "0pb", "player")
    other = game.observation("player_1")  # not its turn
    assert other.text == "Your card: K. Bets so far: opponent pass, you bet."
    assert other.legal == ()


def test_kuhn_for_many():
    # Cards T, J, Q, K, A; player_2 of 4 holds card 4, the ace.
    game = KuhnPoker(players=4).at([0, 1, 4, 2, 0, 1])
    assert game.observation("player_2").text.splitlines()[0] == (
        "You are player_2 of 4. Your card: A. Bets so far: player_0 pass, player_1 bet."
    )
    game.act("player_2", Move("bet"))
    game.act("player_3", Move("pass"))
    # player_1 opened: after player_3 it is player_0's turn, then it is over.
    assert game.acting() == ("player_0",)
    assert game.observation("player_0").brief == "T pass bet bet pass"
    game.act("player_0", Move("pass"))
    # 4 antes and two bets: the ace wins what the others put in, 1 + 2 + 1.
    assert game.take_rewards() == {
        "player_0": -1.0, "player_1": -2.0, "player_2": 4.0, "player_3": -1.0
    }  # fmt: skip
    assert [deck(n) for n in (2, 3, 4, 5)] == ["JQK", "JQKA", "TJQKA", "9TJQKA"]


def test_leduc():
    game = LeducPoker().at([0, 1, 1, 2, 1, 2, 1, 2])
    seen = game.observation("player_0")
    assert seen.text == (
        "Your card: J. Shared card: K. Chips put in: you 3, opponent 7.\n"
        "First round: you call, opponent raise, you call. Second round: you call, opponent raise.\n"
        "Legal actions: fold, call, raise."
    )
    assert seen.brief == "J call raise call K call raise"
    first = LeducPoker().at([0, 1])
    assert first.observation("player_0").text == (
        "Your card: J. Shared card: not yet open. Chips put in: you 1, opponent 1.\n"
        "First round: none yet.\nLegal actions: call, raise."
    )


def test_liars_dice():
    game = LiarsDice().at([3, 1, 3, 4])
    seen = game.observation("player_0")
    assert seen.text == (
        "Your dice: 4. Bids so far: you 1x4, opponent 1x5.\n"
        "Legal actions: 1x6, 2x1, 2x2, 2x3, 2x4, 2x5, 2x6, liar."
    )
    assert seen.brief == "4 1x4 1x5"
    many = LiarsDice(dice=2).at([4, 1, 2, 2])
    assert many.observation("player_0").brief == "2 5"


@pytest.mark.parametrize(
    ("bid", "dice", "winner"),
    [
        ("2x3", (3, 3), 0),  # two threes
        ("2x3", (3, 6), 0),  # the six is wild
        ("2x3", (3, 4), 1),  # one three only
    ],
)
def test_liars_dice_pays_as_its_rules_say(bid, dice, winner):
    game = LiarsDice().at([face - 1 for face in dice])
    game.act("player_0", Move(bid))
    game.act("player_1", Move("liar"))
    assert game.take_rewards()[f"player_{winner}"] == 1.0


def test_tictactoe():
    game = after(TicTacToe(), "a1", "c1", "b2", "c3")
    seen = game.observation("player_0")
    assert seen.text == (
        "You are x. The board:\n  a b c\n1 x . o\n2 . x .\n3 . . o\n"
        "Legal actions: b1, a2, c2, a3, b3."
    )
    assert seen.brief == "x b1 o a2 x c2 a3 b3 o"
    assert game.observation("player_1").text.startswith("You are o.")
    other = after(TicTacToe(), "b2", "c3", "a1", "c1").observation("player_0")
    assert other == seen  # the order of moves is no information


def test_connect_four():
    game = after(ConnectFour(), "4", "3", "5", "4")
    seen = game.observation("player_0")
    assert seen.text == (
        "You are x. The board, top row first:\n1 2 3 4 5 6 7\n"
        + ". . . . . . .\n" * 4
        + ". . . o . . .\n. . o x x . .\nLegal actions: 1, 2, 3, 4, 5, 6, 7."
    )
    assert seen.brief == "3 o 4 x o 5 x"
    assert after(ConnectFour()).observation("player_0").brief == "empty"
    full = after(ConnectFour(), *"111111")
    assert full.observation("player_0").legal == tuple("234567")


def test_matrix():
    game = after(MatrixGame(matrix="matrix_pd", name="pd", title="The prisoner's dilemma"))
    seen = game.observation("player_1")
    assert seen.text == (
        "You are player_1. Both players choose now, and neither sees the other's choice.\n"
        "Legal actions: cooperate, defect."
    )
    assert seen.key != game.observation("player_0").key
    assert "cooperate and defect: 0 and 10" in game.rules()


@pytest.mark.parametrize(
    ("make", "deals", "actions"),
    [
        (KuhnPoker, [[0, 1], [0, 2]], ("pass", "bet")),
        (lambda: KuhnPoker(players=3), [[0, 1, 2], [0, 2, 1], [0, 3, 1]], ("pass", "bet", "pass")),
        (LeducPoker, [[0, 0], [0, 1], [0, 2]], ("raise", "raise")),
        (LiarsDice, [[3, face] for face in range(6)], ("1x4", "2x2")),
    ],
)
def test_hidden_cards_of_others_change_nothing(make, deals, actions):
    """All deals that differ in what player_0 cannot see give it one and the same observation."""
    for upto in range(len(actions) + 1):
        views = set()
        for deal in deals:
            game = make().at(deal)
            for action in actions[:upto]:
                game.act(game.acting()[0], Move(action))
            views.add(game.observation("player_0"))
        assert len(views) == 1


@pytest.mark.parametrize("make", [KuhnPoker, LeducPoker, LiarsDice, TicTacToe, ConnectFour])
def test_text_and_key_say_the_same(make):
    """Different information, different text; the same, the same."""
    game, texts, keys = make(), {}, {}
    for seed in range(150):
        rng = np.random.default_rng(seed)
        game.reset(seed=seed)
        while game.acting():
            (agent,) = game.acting()
            seen = game.observation(agent)
            assert texts.setdefault(seen.key, (seen.text, seen.brief)) == (seen.text, seen.brief)
            assert keys.setdefault(seen.text, seen.key) == seen.key
            game.act(agent, Move(str(rng.choice(seen.legal))))
