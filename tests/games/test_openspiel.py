"""OpenSpiel's games through our text: solvers' values, declared facts, PettingZoo's own tests."""

import warnings
from pathlib import Path

import hydra
import numpy as np
import pytest
from omegaconf import OmegaConf
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import exploitability
from pettingzoo.test import api_test, seed_test

import marl_llm
from marl_llm.errors import GameError
from marl_llm.games.hanabi import Hanabi
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.liars_dice import LiarsDice
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.types import Move, Outcome

CONFIGS = sorted((Path(marl_llm.__file__).parent / "configs" / "game").glob("*.yaml"))


def histories(state):
    """Every history of a small game, leaves included."""
    yield state
    if state.is_terminal():
        return
    if state.is_chance_node():
        actions = [action for action, _ in state.chance_outcomes()]
    elif state.is_simultaneous_node():
        for row in state.legal_actions(0):
            for column in state.legal_actions(1):
                after = state.clone()
                after.apply_actions([row, column])
                yield from histories(after)
        return
    else:
        actions = state.legal_actions()
    for action in actions:
        yield from histories(state.child(action))


def decisions(game):
    return (s for s in histories(game.spiel_game.new_initial_state()) if s.current_player() >= 0)


class FromText(spiel_policy.Policy):
    """A policy of OpenSpiel's that sees a state only as our observation."""

    def __init__(self, game, choose):
        super().__init__(game.spiel_game, list(range(game.scoring.agents)))
        self.text_game, self.choose = game, choose

    def action_probabilities(self, state, player_id=None):
        game = self.text_game.set_state(state)
        (agent,) = game.acting()
        chances = self.choose(game.observation(agent))
        return {game.actions.index(action): chance for action, chance in chances.items()}


def from_keys(game):
    """Uniform over the listed actions, from a table of keys that the text made."""
    table = {}
    for state in decisions(game):
        (agent,) = game.set_state(state).acting()
        seen = game.observation(agent)
        row = {action: 1 / len(seen.legal) for action in seen.legal}
        assert table.setdefault(seen.key, row) == row
    return FromText(game, lambda seen: table[seen.key]), table


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS])
def test_every_configured_game_is_a_pettingzoo_environment(name):
    config = OmegaConf.load(next(path for path in CONFIGS if path.stem == name))
    make = lambda: hydra.utils.instantiate(config)  # noqa: E731
    game = make()
    assert game.name == name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What PettingZoo says of every observation that holds text.
        warnings.filterwarnings("ignore", "Observation is not a NumPy array")
        warnings.filterwarnings("ignore", "Observation space for each agent probably")
        # Its advice on free text as an action, and on a planner of whom there is one.
        warnings.filterwarnings("ignore", "Action space for each agent probably")
        warnings.filterwarnings("ignore", "We recommend agents to be named")
        api_test(game, num_cycles=40)
        seed_test(make, num_cycles=40)
    game.reset(seed=1)
    assert game.acting()[0] in game.render()
    game.close()


@pytest.mark.parametrize(
    ("players", "value", "states"),
    [(2, 11 / 12, 12), (3, None, 48), (4, None, 160)],  # states: cards x decision points
)
def test_uniform_kuhn_through_text_keys(players, value, states):
    game = KuhnPoker(players=players)
    policy, table = from_keys(game)
    assert len(table) == states
    if value is not None:
        assert exploitability.nash_conv(game.spiel_game, policy) == pytest.approx(value)


def test_an_equilibrium_written_in_words_cannot_be_exploited():
    """Kuhn's equilibrium with alpha = 0, keyed by the brief: NashConv 0 needs the right words."""
    bets = {
        "J": 0, "J pass bet": 0, "Q": 0, "Q pass bet": 1 / 3, "K": 0, "K pass bet": 1,
        "J pass": 1 / 3, "J bet": 0, "Q pass": 0, "Q bet": 1 / 3, "K pass": 1, "K bet": 1,
    }  # fmt: skip
    policy = FromText(
        KuhnPoker(), lambda seen: {"bet": bets[seen.brief], "pass": 1 - bets[seen.brief]}
    )
    assert exploitability.nash_conv(policy.game, policy) == pytest.approx(0, abs=1e-12)


def test_uniform_leduc_through_text_keys():
    game = LeducPoker()
    policy, table = from_keys(game)
    assert len(table) == 288
    assert exploitability.nash_conv(game.spiel_game, policy) == pytest.approx(4.747222)


def test_chance_is_drawn_with_the_right_probabilities():
    game = LeducPoker()
    cards = []
    for seed in range(3000):
        game.reset(seed=seed)
        cards.append((game.observation("player_0").text[11], game.observation("player_1").text[11]))
    # The same rank twice: one of the five cards left has it. Standard error 0.0073.
    assert np.mean([a == b for a, b in cards]) == pytest.approx(1 / 5, abs=0.03)
    assert np.mean([a == "J" for a, _ in cards]) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize(
    "game",
    [
        KuhnPoker(),
        KuhnPoker(players=3),
        LeducPoker(),
        MatrixGame(),
        MatrixGame(matrix="matrix_pd", name="pd"),
        MatrixGame(matrix="matrix_sh", name="sh"),
        MatrixGame(matrix="matrix_rps", name="rps"),
    ],
    ids=lambda game: game.name,
)
def test_declared_endings_are_the_ones_that_happen(game):
    """All returns of all leaves, found by playing them, are those of `scoring`, and no others."""
    found = {}
    stakes = set()
    for state in histories(game.spiel_game.new_initial_state()):
        if state.is_terminal():
            mean = sum(state.returns()) / state.num_players()
            for value in state.returns():
                outcome = (
                    Outcome.DRAW if value == mean else Outcome.WIN if value > mean else Outcome.LOSS
                )
                found.setdefault(outcome, set()).add(value)
        elif state.current_player() >= 0:
            (agent,) = game.set_state(state).acting()
            stakes.add(game.stake(agent))
    assert {k: set(v) for k, v in game.scoring.endings.items()} == found
    if stakes:
        assert stakes == set(game.scoring.stakes)


@pytest.mark.parametrize("game", [KuhnPoker(players=3), LeducPoker(), LiarsDice()])
def test_played_rewards_are_openspiels(game):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        game.reset(seed=seed)
        totals = dict.fromkeys(game.possible_agents, 0.0)
        while game.acting():
            (agent,) = game.acting()
            assert agent == game.agent(game.state.current_player())
            game.act(agent, Move(str(rng.choice(game.observation(agent).legal))))
            for who, reward in game.take_rewards().items():
                totals[who] += reward
        assert list(totals.values()) == game.state.returns()


def board(result, table):
    """Play a game of tic-tac-toe to a result for x; what each player got."""
    lines = {
        "win": ("a1", "a2", "b1", "b2", "c1"),
        "loss": ("a1", "a2", "b1", "b2", "c3", "c2"),
        "draw": ("a1", "b1", "c1", "b2", "a2", "c2", "b3", "a3", "c3"),
    }
    game = TicTacToe(table=table)
    game.reset(seed=0)
    for cell in lines[result]:
        game.act(game.acting()[0], Move(cell))
    rewards = game.take_rewards()
    return [rewards.get(agent, 0.0) for agent in game.possible_agents], game.outcomes()["player_0"]


@pytest.mark.parametrize(
    ("table", "win", "loss", "draw"),
    [
        ("zero_sum", [1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]),
        ("mars", [1.0, -1.0], [-1.0, 1.0], [0.1, 0.1]),
        ("spiral", [1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]),
    ],
)
def test_boards_pay_both_seats_by_the_table(table, win, loss, draw):
    assert board("win", table) == (win, Outcome.WIN)
    assert board("loss", table) == (loss, Outcome.LOSS)
    assert board("draw", table) == (draw, Outcome.DRAW)


@pytest.mark.parametrize("table", ["zero_sum", "mars", "spiral"])
def test_poker_pays_chips_under_every_preset(table):
    game = KuhnPoker(table=table).at([2, 0])  # K against J
    game.act("player_0", Move("bet"))
    game.act("player_1", Move("bet"))
    assert game.take_rewards() == {"player_0": 2.0, "player_1": -2.0}
    tie = LeducPoker(table=table).at([0, 0])  # J against J
    for _ in range(4):
        tie.act(tie.acting()[0], Move("call"))
    assert tie.take_rewards() == {}
    assert set(tie.outcomes().values()) == {Outcome.DRAW}


def test_mars_forfeit_in_poker_costs_the_chips_in_the_pot_and_ten():
    game = LeducPoker(table="mars").at([0, 1])
    game.act("player_0", Move("raise"))  # 3 in
    game.act("player_1", Move("raise"))  # 5 in
    game.act("player_0", Move("check"))  # no action of Leduc
    assert game.outcomes()["player_0"] is Outcome.ILLEGAL
    assert game.take_rewards() == {"player_0": -13.0}  # -(3) - 10, and nothing for the other


def test_at_any_history():
    game = KuhnPoker()
    assert game.at([0, 2, 0, 1]) is game
    assert game.observation("player_0").brief == "J pass bet"
    assert game.state.history() == [0, 2, 0, 1]
    game.act("player_0", Move("bet"))
    assert game.take_rewards() == {"player_0": -2.0, "player_1": 2.0}
    copy = KuhnPoker()
    copy.restore(game.snapshot())
    assert copy.state.history() == [0, 2, 0, 1, 1]


@pytest.mark.parametrize(
    ("game", "history", "says"),
    [
        (KuhnPoker(), [0, 0], r"\[0\] cannot follow \[0\], only \[\[1, 2\]\]"),
        (KuhnPoker(), [0], "ends at a chance node"),
        (KuhnPoker(), [0, 1, 0, 0], "ends at its end"),
        (KuhnPoker(), [0, 1, 0, 0, 0], "cannot follow"),
        (MatrixGame(), [0], "cannot follow"),
        (MatrixGame(), [0, 7], "cannot follow"),
    ],
)
def test_a_history_that_is_none_is_an_error_and_not_the_end_of_the_process(game, history, says):
    with pytest.raises(GameError, match=says):
        game.at(history)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: KuhnPoker(players=6), "2 to 5 players, got 6"),
        (lambda: LiarsDice(dice=0), "1 to 5 dice"),
        (lambda: Hanabi(colours=9), "colours of hanabi must be 2 to 5, got 9"),
        (lambda: Hanabi(players=4, colours=2, ranks=2), "smaller hands or more colours"),
        (lambda: MatrixGame(matrix="matrix_pdd"), "did you mean 'matrix_pd'"),
    ],
)
def test_sizes_out_of_range(make, says):
    with pytest.raises(GameError, match=says):
        make()
