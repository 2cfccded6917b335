"""`TextGame`: the contract and PettingZoo's interface are one episode, whatever agents say."""

import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import GameError
from marl_llm.games.connect_four import ConnectFour
from marl_llm.games.hanabi import Hanabi
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.liars_dice import LiarsDice
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.outcomes import OutcomeTable, Payoff, Scoring
from marl_llm.games.text_game import TextGame, View
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.types import FORFEITS, Move, Outcome

GAMES = [
    TicTacToe,
    ConnectFour,
    KuhnPoker,
    lambda **more: KuhnPoker(players=4, **more),
    LeducPoker,
    LiarsDice,
    MatrixGame,
    lambda **more: Hanabi(colours=2, ranks=2, hand=3, hints=3, **more),
    lambda **more: Hanabi(players=3, colours=3, ranks=3, hand=3, **more),
]
every_game = pytest.mark.parametrize("make", GAMES)


def play(game, seed, moves):
    """Play to the end by an endless list of numbers; all texts and rewards, in order."""
    game.reset(seed=seed)
    seen = []
    for number in moves:
        if not game.acting():
            break
        agent = game.acting()[-1]  # not the first: simultaneous movers come in any order
        observation = game.observation(agent)
        seen.append(observation)
        game.act(agent, Move(observation.legal[number % len(observation.legal)]))
        seen.append(dict(game.take_rewards()))
    return seen, dict(game.outcomes())


def numbers(seed):
    return np.random.default_rng(seed).integers(1000, size=300).tolist()


class Nim(TextGame):
    """The example of the module's docstring, as a user would write it."""

    def __init__(self, table="zero_sum", **more):
        endings = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,)}
        super().__init__(
            name="nim",
            actions=("1", "2"),
            natural_turns=7,
            table=table,
            scoring=Scoring(2, "opposed", "result", endings),
            **more,
        )

    def start(self, rng, options):
        self.stones, self.mover = 7, 0

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


def test_a_users_game_needs_only_the_hooks():
    game = Nim()
    game.reset(seed=0)
    for action in ("2", "2", "2", "1"):  # 7 = 2 + 2 + 2 + 1: player_1 takes the last
        game.act(game.acting()[0], Move(action))
    assert game.outcomes() == {"player_0": Outcome.LOSS, "player_1": Outcome.WIN}
    assert game.take_rewards() == {"player_0": -1.0, "player_1": 1.0}
    assert game.take_rewards() == {}


@every_game
def test_step_is_act(make):
    aec, direct = make(), make()
    aec.reset(seed=5)
    direct.reset(seed=5)
    totals = dict.fromkeys(direct.possible_agents, 0.0)
    for number in numbers(1):
        if not direct.acting():
            break
        agent = direct.acting()[0]
        seen, *_ = aec.last()
        observation = direct.observation(agent)
        assert aec.agent_selection == agent
        assert seen["text"] == observation.text
        assert [n for n, on in zip(aec.actions, seen["action_mask"], strict=True) if on] == list(
            observation.legal
        )
        action = observation.legal[number % len(observation.legal)]
        aec.step(aec.actions.index(action))
        direct.act(agent, Move(action))
        for who, reward in direct.take_rewards().items():
            totals[who] += reward
        assert aec.rewards == direct.rewards
    assert all(aec.terminations.values())
    paid = {}
    for agent in aec.agent_iter():
        _, paid[agent], terminated, truncated, info = aec.last()
        assert terminated and not truncated
        assert info == {"outcome": direct.outcomes()[agent]}
        aec.step(None)
    assert set(paid) == set(aec.possible_agents) and aec.agents == []
    assert sum(totals.values()) == pytest.approx(0) or not direct.zero_sum


@every_game
def test_games_side_by_side_do_not_disturb_each_other(make):
    alone = [play(make(), seed, numbers(seed)) for seed in (1, 2)]
    random.seed(3)
    np.random.seed(3)
    outside = random.getstate(), np.random.get_state()[1].tolist()
    games = [make(), make()]
    for game, seed in zip(games, (1, 2), strict=True):
        game.reset(seed=seed)
    seen = [[], []]
    for turn in range(300):
        for i, game in enumerate(games):
            if not game.acting():
                continue
            agent = game.acting()[-1]
            observation = game.observation(agent)
            number = numbers(i + 1)[turn]
            game.act(agent, Move(observation.legal[number % len(observation.legal)]))
            seen[i] += [observation, dict(game.take_rewards())]
    assert seen == [alone[0][0], alone[1][0]]
    assert outside == (random.getstate(), np.random.get_state()[1].tolist())


@every_game
def test_snapshot_and_pickle_at_every_turn(make):
    game = make()
    whole = play(game, 7, numbers(7))
    game.reset(seed=7)
    for turn, number in enumerate(numbers(7)):
        if not game.acting():
            break
        for copy in (make(), pickle.loads(pickle.dumps(game))):
            copy.restore(game.snapshot())
            rest = []
            for later in numbers(7)[turn:]:
                if not copy.acting():
                    break
                agent = copy.acting()[-1]
                observation = copy.observation(agent)
                rest.append(observation)
                copy.act(agent, Move(observation.legal[later % len(observation.legal)]))
                rest.append(dict(copy.take_rewards()))
            assert rest == whole[0][2 * turn :]
            assert copy.outcomes() == whole[1]
        agent = game.acting()[-1]
        legal = game.observation(agent).legal
        game.act(agent, Move(legal[number % len(legal)]))
        game.take_rewards()
    ended = make()
    ended.restore(game.snapshot())
    assert ended.outcomes() == game.outcomes() and ended.snapshot() == game.snapshot()


def test_snapshot_keeps_unread_rewards_refusals_and_dead_agents():
    game = TicTacToe(table=OutcomeTable(illegal_ends=False))
    game.reset(seed=0)
    game.act("player_0", Move("nonsense"))
    copy = TicTacToe(table=game.table)
    copy.restore(game.snapshot())
    assert copy.observation("player_0") == game.observation("player_0")
    assert copy.take_rewards() == {"player_0": -0.1, "player_1": 0.1}
    game.act("player_0", Move(None, Outcome.FORMAT))
    game.step(None)
    copy.restore(game.snapshot())
    assert copy.agents == ["player_1"]
    assert copy.take_rewards() == pytest.approx({"player_0": -1.1, "player_1": 1.1})
    with pytest.raises(GameError, match=r"snapshot is of tictactoe.*kuhn"):
        KuhnPoker().restore(game.snapshot())
    with pytest.raises(GameError, match="reset it first"):
        KuhnPoker().snapshot()


@every_game
@pytest.mark.parametrize("fault", sorted(FORFEITS))
def test_every_fault_of_every_agent_ends_the_game(make, fault):
    game = make()
    for offender in game.possible_agents:
        game.reset(seed=0)
        while game.acting():
            agent = game.acting()[0]
            legal = game.observation(agent).legal
            move = Move(None, fault) if agent == offender else Move(legal[0])
            game.act(agent, move)
        assert game.outcomes() == {
            agent: fault if agent == offender else Outcome.OTHER_FORFEIT
            for agent in game.possible_agents
        }
        rewards = game.take_rewards()
        if game.zero_sum:
            others = len(game.possible_agents) - 1
            assert rewards == {
                agent: game.scoring.worst * (1 if agent == offender else -1 / others)
                for agent in game.possible_agents
            }


GARBAGE = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", " ", "PASS", "pass\n", "\x00", "a" * 100_000, "<answer>", "\ud800"]),
)


@pytest.mark.parametrize("make", [TicTacToe, KuhnPoker, MatrixGame])
@settings(max_examples=50, deadline=None)
@given(garbage=GARBAGE)
def test_garbage_is_an_illegal_move(make, garbage):
    game = make()
    game.reset(seed=1)
    agent = game.acting()[0]
    game.act(agent, Move(garbage))
    for other in game.acting():
        game.act(other, Move(game.actions[0]))
    expected = garbage not in game.actions
    assert (game.outcomes().get(agent) is Outcome.ILLEGAL) is expected


def test_retries_penalise_and_the_last_one_ends():
    game = KuhnPoker(table=OutcomeTable(illegal_ends=False, tries=3))
    assert game.max_turns == 9
    game.reset(seed=0)
    fresh = game.observation("player_0")
    for _ in range(2):
        game.act("player_0", Move("call"))
        assert game.acting() == ("player_0",)
        assert game.take_rewards() == {"player_0": -0.1, "player_1": 0.1}
        again = game.observation("player_0")
        assert again.text == fresh.text + "\nYour last action is not allowed here; choose another."
        assert (again.key, again.legal) == (fresh.key, fresh.legal)
    game.act("player_0", Move("call"))
    assert game.outcomes()["player_0"] is Outcome.ILLEGAL
    assert game.take_rewards() == {"player_0": -2.0, "player_1": 2.0}


def test_retries_are_counted_per_move_and_end_with_it():
    game = TicTacToe(table=OutcomeTable(illegal_ends=False, tries=2))
    game.reset(seed=0)
    for cell in ("b2", "a1", "c3"):
        game.act(game.acting()[0], Move("z9"))
        game.act(game.acting()[0], Move(cell))
        assert "not allowed" not in game.observation(game.acting()[0]).text
    assert game.outcomes() == {}


def test_simultaneous_moves_stay_hidden_and_faults_wait():
    game = MatrixGame()
    game.reset(seed=0)
    before = game.observation("player_1")
    game.act("player_0", Move("heads"))
    assert game.acting() == ("player_1",) and game.observation("player_1") == before
    assert game.take_rewards() == {}
    game.act("player_1", Move("tails"))
    assert game.take_rewards() == {"player_0": -1.0, "player_1": 1.0}
    game.reset(seed=0)
    game.act("player_0", Move(None, Outcome.FORMAT))
    assert game.acting() == ("player_1",) and not game.outcomes()
    game.act("player_1", Move(None, Outcome.LENGTH))
    assert game.outcomes() == {"player_0": Outcome.FORMAT, "player_1": Outcome.LENGTH}
    assert game.take_rewards() == {}  # -1 + 1 for both


def test_turn_limit_truncates():
    game = TicTacToe(max_turns=2)
    game.reset(seed=0)
    game.act("player_0", Move("a1"))
    game.act("player_1", Move("b1"))
    assert game.acting() == ()
    assert set(game.outcomes().values()) == {Outcome.TRUNCATED}
    assert game.take_rewards() == {}
    assert all(game.truncations.values()) and not any(game.terminations.values())
    paid = TicTacToe(max_turns=2, table=OutcomeTable(truncated=Payoff(-0.5, 0.25)))
    paid.reset(seed=0)
    paid.act("player_0", Move("a1"))
    paid.act("player_1", Move("b1"))  # it would be player_0's turn
    assert paid.take_rewards() == {"player_0": -0.5, "player_1": 0.25}
    odd = MatrixGame(max_turns=1)  # a round of two does not fit into one turn
    odd.reset(seed=0)
    assert set(odd.outcomes().values()) == {Outcome.TRUNCATED}


@every_game
def test_legal_actions_can_be_left_out(make):
    listed, silent = make(), make(list_legal=False)
    for game in (listed, silent):
        game.reset(seed=0)
    agent = listed.acting()[0]
    told, kept = listed.observation(agent), silent.observation(agent)
    assert kept.legal is None and "Legal actions" not in kept.text
    assert told.text == f"{kept.text}\nLegal actions: {', '.join(told.legal)}."
    assert (told.key, told.brief) == (kept.key, kept.brief)
    assert all(action in silent.rules() for action in silent.actions)


def test_asking_for_what_cannot_be_says_so():
    game = TicTacToe()
    with pytest.raises(GameError, match="never reset"):
        game.act("player_0", Move("a1"))
    game.reset(seed=0)
    with pytest.raises(GameError, match="player_1 cannot move in tictactoe now; to move: player_0"):
        game.act("player_1", Move("a1"))
    with pytest.raises(GameError, match="9"):
        game.step(9)
    with pytest.raises(GameError, match="None"):
        game.step(None)
    with pytest.raises(GameError, match="player_0, player_1"):
        game.player("player_7")
    with pytest.raises(GameError, match="max_turns"):
        TicTacToe(max_turns=0)


def test_a_new_seed_follows_the_last_one():
    one, two = KuhnPoker(), KuhnPoker()
    deals = []
    for game in (one, two):
        game.reset(seed=11)
        texts = []
        for _ in range(20):
            game.reset()
            texts.append(game.observation("player_0").text)
        deals.append(texts)
    assert deals[0] == deals[1] and len(set(deals[0])) == 3
